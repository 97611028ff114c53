package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/router"
)

// secretive engines ask for keys and show them in their descriptions.
func secretive(t *testing.T) *stack {
	t.Helper()
	keyed := func(c *simengine.Config) { c.APIKey, c.AdminKey = "s3cret-of-engines", "" }
	return newStack(t, setup{prefills: 2, decodes: 2, prefill: keyed, decode: keyed, workers: func(all []*pd.Worker) {
		for _, w := range all {
			w.APIKey = "s3cret-of-engines"
		}
	}})
}

func TestTheSurface(t *testing.T) {
	t.Parallel()
	s := secretive(t)
	f := func(method, path, body string, status int, says ...string) {
		t.Run(method+" "+path, func(t *testing.T) {
			r := s.do(method, path, body)
			assert.Equal(t, status, r.status, r.body)
			require.NoError(t, r.err)
			for _, text := range says {
				assert.Contains(t, r.body, text)
			}
			assert.NotEmpty(t, r.header.Get("X-Request-Id"))
			assert.NotContains(t, r.body, "s3cret", "no key is shown")
			assert.NotContains(t, r.body, "127.0.0.1", "no host is shown")
			for _, e := range s.engines() {
				assert.NotContains(t, r.body, strings.TrimPrefix(e.URL(), "http://"), "no address is shown")
			}
		})
	}
	for _, path := range []string{"/health", "/liveness", "/ping"} {
		f("GET", path, "", 200, "OK")
	}
	f("GET", "/readiness", "", 200, `"status":"ready"`, `"healthy_workers":4`)
	f("GET", "/health_generate", "", 200, `"status":"healthy"`, "prefill-1", "decode-1")
	f("GET", "/v1/models", "", 200, `"object":"list"`, `"id":"tiny"`)
	f("GET", "/v1/models/tiny", "", 200, `"id":"tiny"`)
	f("GET", "/v1/models/none", "", 404, "model_not_found")
	for _, path := range []string{"/model_info", "/get_model_info"} {
		f("GET", path, "", 200, `"is_generation":true`)
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		f("GET", path, "", 200, `"internal_states":[{`, `"prefill":[{"worker":"prefill-0"`, `"decode":[{"worker":"decode-0"`, `"max_total_num_tokens":4096`)
	}
	f("GET", "/get_loads", "", 200, `{"worker":"prefill-0","role":"prefill","load":0}`, `{"worker":"decode-1","role":"decode","load":0}`)
	f("GET", "/v1/loads", "", 200, `"decode-1":{`, `"num_running_reqs":0`)
	f("POST", "/flush_cache", "", 200, `"workers_flushed":4`)
	f("POST", "/flush_cache?timeout=1", "", 200, `"status":"success"`)
	f("POST", "/flush_cache?timeout=x", "", 400)
	f("POST", "/abort_request", `{"rid":"nobody"}`, 200)
	for _, prefix := range []string{"", "/v1"} {
		f("POST", prefix+"/tokenize", `{"model":"tiny","prompt":"ab"}`, 200, `"count":2`)
		f("POST", prefix+"/detokenize", `{"model":"tiny","tokens":[100,101]}`, 200, `"text":"ab"`)
	}
	f("POST", generatePath, generateCall(2).json(), 200)
	f("PUT", generatePath, generateCall(2).json(), 200)
	f("POST", chatPath, chatCall(2).json(), 200)
	f("POST", completionsPath, completionsCall(2).json(), 200)
	for _, path := range []string{
		"/v1/embeddings", "/v1/rerank", "/rerank", "/v1/classify", "/v1/score", "/v1/responses", "/v1/messages",
	} {
		// F115: a pair's engines refuse these, which have no bootstrap fields; they say so.
		f("POST", path, `{}`, 501, "not served over prefill/decode pairs")
	}
	// F116: what is not known is not passed to some worker by other rules.
	for _, path := range []string{"/", "/v2/models", "/generate/x", "/v1/messages/count_tokens", "/GENERATE", "/inference/v1/generate"} {
		f("POST", path, `{}`, 404, "no such path")
	}
	f("GET", generatePath, "", 405)
	f("POST", "/health", "", 405)
	f("DELETE", "/v1/models", "", 405)
	f("PUT", chatPath, chatCall(2).json(), 405)
}

// The engines' keys are put in once, in place of the client's.
func TestAWorkersOwnKeyReplacesTheClients(t *testing.T) {
	t.Parallel()
	s := secretive(t)
	for _, c := range calls(2) {
		require.Equal(t, 200, s.post(c, "Authorization", "Bearer of-the-client").status)
	}
	assert.Equal(t, 200, s.abortRequest(object{"rid": "nobody"}).status)
	for _, e := range s.engines() {
		assert.Len(t, aborts(e), 1, "an engine notes only what had its key")
		for _, rec := range e.Records() {
			assert.Equal(t, []string{"Bearer s3cret-of-engines"}, rec.Header.Values("Authorization"), "%s %s", e.ID(), rec.Path)
		}
	}
}

// Without a key of a worker's own the client's passes, to aborts too.
func TestTheClientsKeyPassesElsewhere(t *testing.T) {
	t.Parallel()
	keyed := func(c *simengine.Config) { c.APIKey = "shared" }
	s := newStack(t, setup{prefill: keyed, decode: func(c *simengine.Config) { keyed(c); slowly(c) }})
	refused := s.post(generateCall(2))
	assert.Equal(t, 401, refused.status)
	assert.Contains(t, refused.body, "Unauthorized")
	l := s.listen(generateCall(500).streamed(), "Authorization", "Bearer shared")
	l.next()
	l.leave()
	s.idle()
	all := generations(s.d)
	s.told(s.d, all[len(all)-1].Rids[0])
}

func TestHeadersPassFromEndToEnd(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r := s.post(generateCall(2),
		"X-Request-Id", "mine", "traceparent", parent, "X-Unknown", "a", "X-Unknown", "b",
		"Connection", "X-Hop", "X-Hop", "no", "Keep-Alive", "timeout=9", "TE", "trailers", "Accept-Encoding", "gzip, br")
	require.Equal(t, 200, r.status)
	assert.Equal(t, "mine", r.header.Get("X-Request-Id"))
	for _, e := range s.engines() {
		h := generations(e)[0].Header
		assert.Equal(t, []string{"mine"}, h.Values("X-Request-Id"))
		assert.Equal(t, []string{parent}, h.Values("Traceparent"))
		assert.Equal(t, []string{"a", "b"}, h.Values("X-Unknown"))
		assert.Equal(t, "identity", h.Get("Accept-Encoding"))
		for _, name := range []string{"X-Hop", "Keep-Alive", "Te", "Connection", "Expect"} {
			assert.Empty(t, h.Values(name), name)
		}
	}
	made := s.post(generateCall(2))
	id := made.header.Get("X-Request-Id")
	assert.NotEmpty(t, id)
	assert.Equal(t, id, generations(s.p)[1].Header.Get("X-Request-Id"))
	assert.Equal(t, id, generations(s.d)[1].Header.Get("X-Request-Id"))
}

func TestACompressedBodyIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	r := s.post(generateCall(2), "Content-Encoding", "gzip")
	assert.Equal(t, http.StatusUnsupportedMediaType, r.status)
	assert.Empty(t, s.p.Records())
}

// Infos are worth something when a worker is missing too.
func TestInfosDoWithoutAWorkerThatIsGone(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 2})
	s.kill(s.prefills[0])
	for _, path := range []string{"/v1/models", "/model_info", "/server_info", "/get_loads", "/v1/loads"} {
		r := s.do(http.MethodGet, path, "")
		assert.Equal(t, 200, r.status, "%s: %s", path, r.body)
		assert.True(t, json.Valid([]byte(r.body)))
		assert.NotContains(t, r.body, strings.TrimPrefix(s.prefills[0].URL(), "http://"))
	}
	assert.Contains(t, s.do(http.MethodGet, "/get_loads", "").body, `{"worker":"prefill-0","role":"prefill","load":-1}`)
	assert.Equal(t, 200, s.do(http.MethodGet, "/readiness", "").status)
	health := s.do(http.MethodGet, "/health_generate", "")
	assert.Equal(t, 503, health.status, "a worker that is gone is no good health")
	assert.Contains(t, health.body, `{"worker":"prefill-0","role":"prefill","error":"cannot be reached"}`)
	assert.Contains(t, health.body, `{"worker":"prefill-1","role":"prefill","status":200}`)
	assert.NotContains(t, health.body, strings.TrimPrefix(s.prefills[0].URL(), "http://"))
	flushed := s.do(http.MethodPost, "/flush_cache", "")
	assert.Equal(t, http.StatusPartialContent, flushed.status)
	assert.Contains(t, flushed.body, `"worker":"prefill-0"`)
	assert.Equal(t, 200, s.do(http.MethodPost, "/tokenize", `{"model":"tiny","prompt":"ab"}`).status)
	s.kill(s.prefills[1])
	gone := s.do(http.MethodPost, "/tokenize", `{"model":"tiny","prompt":"ab"}`)
	assert.Equal(t, 503, gone.status)
}

// The load is what the engines say of running and waiting requests.
func TestLoadsCountWhatRuns(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly})
	var running []*listener
	for range 3 {
		l := s.listen(generateCall(500).streamed())
		l.next()
		running = append(running, l)
	}
	r := s.do(http.MethodGet, "/get_loads", "")
	assert.Contains(t, r.body, fmt.Sprintf(`{"worker":"decode-0","role":"decode","load":%d}`, len(running)))
	for _, l := range running {
		l.leave()
	}
}

// A body over the limit is refused, whether it says how long it is or not.
func TestABodyOverTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{router: smallBodies})
	big := generateCall(2).with(object{"text": strings.Repeat("x", 3000)})
	r := s.post(big)
	assert.Equal(t, http.StatusRequestEntityTooLarge, r.status)
	assert.Equal(t, "payload_too_large", r.header.Get("X-Tandem-Error"))
	assert.NotContains(t, r.body, "xxxx")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+generatePath, struct{ *strings.Reader }{strings.NewReader(big.json())})
	require.NoError(t, err)
	resp, err := s.client.Do(req)
	require.NoError(t, err)
	assert.Equal(t, http.StatusRequestEntityTooLarge, whole(resp).status)
	assert.Empty(t, s.p.Records())
	s.ok(generateCall(2))
}

func smallBodies(c *router.Config) { c.MaxPayload = 2000 }
