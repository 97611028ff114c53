package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	routers "github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// newRegular starts a router over whole engines, which are in the place of the
// stack's decodes, beside those that a test writes.
func newRegular(t *testing.T, policy string, engines int, change func(*simengine.Config), scripts ...*script) *stack {
	t.Helper()
	s := &stack{t: t, client: &http.Client{Transport: &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: patience}).DialContext,
	}}}
	for i := range engines {
		cfg := simengine.Config{Role: simengine.Regular, ID: fmt.Sprintf("regular-%d", i), TimeScale: 0.01, HealthDelay: -1}
		if change != nil {
			change(&cfg)
		}
		e, err := simengine.Start(cfg)
		require.NoError(t, err)
		s.decodes = append(s.decodes, e)
		w := routers.Worker(pd.WorkerID(cfg.ID), e)
		w.Model = cfg.Model
		s.workers = append(s.workers, w)
	}
	for _, script := range scripts {
		s.workers = append(s.workers, script.worker)
	}
	if engines > 0 {
		s.d = s.decodes[0]
	}
	router, err := routers.Start(routers.Options{
		Workers: s.workers, Regular: true, Policy: policy,
		Hooks: pd.Hooks{
			Done: s.done, Leg: s.leg, Bound: s.bound,
			Panic: func(value any, stack []byte) { assert.Fail(t, "panic", "%v\n%s", value, stack) },
		},
		Pools:        func(o *pools.Options) { o.Breakers.Disabled = true },
		Orchestrator: func(o *pd.Orchestrator) { o.Retry = pd.Retry{MaxAttempts: 3, InitialBackoff: time.Millisecond} },
	})
	require.NoError(t, err)
	s.url, s.app, s.set, s.rooms, s.orchestrator = router.URL, router.App, router.Set, router.Rooms, router.Orchestrator
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.requireNothingLeft(setup{mayDie: true})
		assert.NoError(t, router.Close())
		for _, e := range s.engines() {
			assert.NoError(t, e.Close())
		}
	})
	return s
}

// last is the latest record of a path.
func last(t *testing.T, e *simengine.Engine, path string) simengine.Record {
	t.Helper()
	all := e.Records()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Path == path {
			return all[i]
		}
	}
	require.Fail(t, "nothing came", path)
	panic("unreachable")
}

func TestWholeEnginesGetEveryPathAsItCame(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "", 1, nil)
	f := func(path, body string, says ...string) {
		t.Run(path, func(t *testing.T) {
			r := s.do(http.MethodPost, path, body)
			assert.Equal(t, 200, r.status, r.body)
			require.NoError(t, r.err)
			for _, text := range says {
				assert.Contains(t, r.body, text)
			}
			got := last(t, s.d, strings.SplitN(path, "?", 2)[0])
			assert.Equal(t, body, string(got.Body), "no rid, no room, no other byte")
			_, query, _ := strings.Cut(path, "?")
			assert.Equal(t, query, got.Query)
		})
	}
	f("/generate", ` {"text":"Hi", "zzz":{"a":[1.50]},"sampling_params":{"max_new_tokens":2}} `, `"completion_tokens":2`)
	f("/generate?a=b", `{"text":"Hi","bootstrap_room":7,"sampling_params":{"max_new_tokens":2,"n":3}}`, `},{`)
	f("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":2,"n":2,"seed":5}`, `"index":1`)
	f("/v1/completions", `{"model":"tiny","prompt":["a","b"],"max_tokens":2,"n":2}`, `"index":3`)
	f("/v1/embeddings", `{"model":"tiny","input":["a","b"]}`, `"embedding":[`)
	f("/v1/rerank", `{"query":"q","documents":["a","b"]}`, `"score":`)
	f("/v1/classify", `{"model":"tiny","input":"a"}`, `"probs":`)
	f("/v1/score", `{"model":"tiny","query":"q","items":["a"],"label_token_ids":[5,6]}`, `"scores":`)
	f("/v1/messages", `{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"a"}]}`, `"type":"message"`)
	f("/v1/responses", `{"model":"tiny","input":"a","max_output_tokens":2}`, `"object":"response"`)
	for _, prefix := range []string{"", "/v1"} {
		r := s.do(http.MethodPost, prefix+"/tokenize", `{"model":"tiny","prompt":"ab"}`)
		assert.Equal(t, 200, r.status, r.body)
		assert.Contains(t, r.body, `"count":2`)
	}
	r := s.do(http.MethodPost, "/v1/audio/transcriptions", "--x\r\n\xff--x--", "Content-Type", "multipart/form-data; boundary=x")
	assert.Equal(t, 404, r.status, "the engine's own answer")
	assert.JSONEq(t, `{"detail":"Not Found"}`, r.body)
}

func TestStreamsOfWholeEngines(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "", 1, nil)
	f := func(path, body, first, end string) {
		t.Run(path, func(t *testing.T) {
			r := s.do(http.MethodPost, path, body)
			require.NoError(t, r.err)
			assert.Equal(t, 200, r.status, r.body)
			assert.True(t, strings.HasPrefix(r.body, first), "%.200s", r.body)
			assert.Contains(t, r.body[max(0, len(r.body)-2000):], end)
			assert.Equal(t, body, string(last(t, s.d, path).Body))
		})
	}
	f("/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":3,"n":2}}`, "data: {", "data: [DONE]\n\n")
	f("/v1/chat/completions", `{"model":"tiny","stream":true,"n":3,"messages":[{"role":"user","content":"a"}],"max_tokens":3}`, "data: {", "data: [DONE]\n\n")
	f("/v1/messages", `{"model":"tiny","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"a"}]}`, "event: message_start", "event: message_stop")
	f("/v1/responses", `{"model":"tiny","stream":true,"max_output_tokens":3,"input":"a"}`, "event: response.created", "event: response.")
}

// A body that is no JSON, and one lost over it.
func TestAnUploadGoesElsewhereWhenNobodyIsThere(t *testing.T) {
	t.Parallel()
	upload := "--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\x00\xff\r\n--x--"
	heard := func(w http.ResponseWriter, _ *http.Request, _ received) { _, _ = w.Write([]byte(`{"text":"hello"}`)) }
	a, b := scripted(t, "regular-a", pd.Regular, heard), scripted(t, "regular-b", pd.Regular, heard)
	a.worker.URL = "http://127.0.0.1:1"
	s := newRegular(t, "", 0, nil, a, b)
	for range 2 {
		r := s.do(http.MethodPost, "/v1/audio/transcriptions", upload, "Content-Type", "multipart/form-data; boundary=x")
		assert.Equal(t, 200, r.status, r.body)
	}
	got := b.requests()
	require.Len(t, got, 2)
	assert.Equal(t, upload, got[0].body)
	assert.Contains(t, got[0].header["Content-Type"], "multipart/form-data; boundary=x")
}

func TestAClientThatLeavesFreesAWholeEngine(t *testing.T) {
	t.Parallel()
	for _, rid := range []string{"", "mine"} {
		t.Run("rid "+rid, func(t *testing.T) {
			t.Parallel()
			s := newRegular(t, "", 1, slowly)
			c := generateCall(900).streamed()
			if rid != "" {
				c = c.with(object{"rid": rid})
			}
			l := s.listen(c)
			l.next()
			left := time.Now()
			l.leave()
			freed(t, s.d, 0, left)
			s.idle()
			if rid == "" {
				assert.Empty(t, aborts(s.d))
			} else {
				s.told(s.d, rid)
			}
			assert.Equal(t, map[pd.WorkerID][]pd.Outcome{"regular-0": {pd.Left}}, s.outcomes(1))
		})
	}
}

func TestAWholeEngineThatDiesIsStoodInFor(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "round_robin", 2, slowly)
	l := s.listen(generateCall(900).streamed()) // one of them
	l.next()
	busy, other := 0, 1
	if len(generations(s.decodes[1])) > 0 {
		busy, other = 1, 0
	}
	s.decodes[busy].Kill()
	cut := l.rest()
	assert.Error(t, cut.err, "a cut stream looks cut")
	assert.Contains(t, cut.body, `"error":{`)
	assert.NotContains(t, cut.body, "[DONE]")
	for range 4 {
		for _, c := range calls(2) {
			s.ok(c)
		}
	}
	assert.Len(t, generations(s.decodes[other]), 24)
}

func TestAWholeEngineThatDrainsGetsNothingNew(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "round_robin", 2, nil)
	require.True(t, s.set.Drain("regular-0"))
	for range 6 {
		s.ok(chatCall(2))
	}
	assert.Empty(t, generations(s.decodes[0]))
	assert.Len(t, generations(s.decodes[1]), 6)
	require.True(t, s.set.Resume("regular-0"))
	require.True(t, s.set.Drain("regular-1"))
	s.ok(chatCall(2))
	assert.Len(t, generations(s.decodes[0]), 1)
	require.True(t, s.set.Drain("regular-0"))
	r := s.post(chatCall(2))
	assert.Equal(t, 503, r.status)
	assert.Contains(t, r.body, "no_regular_available")
	assert.Contains(t, r.body, "2 draining")
}

func TestEachModelHasWholeEnginesOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "cache_aware", 4, func(c *simengine.Config) {
		c.Model = map[string]string{"regular-0": "chat", "regular-1": "embed", "regular-2": "chat", "regular-3": "embed"}[c.ID]
	})
	for range 4 {
		s.ok(chatCall(2).with(object{"model": "chat"}))
		r := s.do(http.MethodPost, "/v1/embeddings", `{"model":"embed","input":"a"}`)
		require.Equal(t, 200, r.status, r.body)
	}
	for i, e := range s.decodes {
		for _, rec := range e.Records() {
			assert.Equal(t, i%2 == 1, rec.Path == "/v1/embeddings", "%s got %s", e.ID(), rec.Path)
		}
	}
	r := s.do(http.MethodPost, "/v1/embeddings", `{"model":"none","input":"a"}`)
	assert.Equal(t, 404, r.status)
	assert.Contains(t, r.body, "model_not_found")
}

// What an engine keeps is on that engine alone: a session's key finds it again.
func TestAStoredResponseIsFoundByItsSession(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "consistent_hashing", 4, nil)
	for i := range 12 {
		key := fmt.Sprintf("session-%d", i)
		made := s.do(http.MethodPost, "/v1/responses", `{"model":"tiny","input":"a","max_output_tokens":2}`, "X-SMG-Routing-Key", key)
		require.Equal(t, 200, made.status, made.body)
		id := decoded[struct{ ID string }](t, made.body).ID
		got := s.do(http.MethodGet, "/v1/responses/"+id, "", "X-SMG-Routing-Key", key)
		assert.Equal(t, 200, got.status, got.body)
		gone := s.do(http.MethodDelete, "/v1/responses/"+id, "", "X-SMG-Routing-Key", key)
		assert.Equal(t, 200, gone.status, gone.body)
	}
}

func TestAnAbortReachesAWholeEngine(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "", 2, slowly)
	l := s.listen(generateCall(900).streamed().with(object{"rid": "mine"}))
	l.next()
	assert.Equal(t, 200, s.abortRequest(object{"rid": "mine"}).status)
	end := l.rest()
	require.NoError(t, end.err, "an abort's stream ends as the engine ends it")
	assert.Contains(t, end.body, `"type":"abort"`)
	assert.Empty(t, aborts(s.decodes[1]), "the one that has it is told")
}

func TestASurfaceOfWholeEngines(t *testing.T) {
	t.Parallel()
	s := newRegular(t, "", 2, nil)
	f := func(path string, says ...string) {
		t.Helper()
		r := s.do(http.MethodGet, path, "")
		assert.Equal(t, 200, r.status, "%s: %s", path, r.body)
		for _, text := range says {
			assert.Contains(t, r.body, text)
		}
		assert.NotContains(t, r.body, "127.0.0.1")
	}
	f("/readiness", `"healthy_workers":2`)
	f("/health_generate", `"status":"healthy"`, "regular-1")
	f("/v1/models", `"id":"tiny"`)
	f("/model_info", `"is_generation":true`)
	f("/server_info", `"internal_states":[{`, `"regular":[{"worker":"regular-0"`)
	f("/get_loads", `{"worker":"regular-0","role":"regular","load":0}`)
	r := s.do(http.MethodPost, "/flush_cache", "")
	assert.Equal(t, 200, r.status, r.body)
	refused := s.do(http.MethodPost, "/generate", `{"text":`)
	assert.Equal(t, 400, refused.status)
	assert.Empty(t, generations(s.d))
}

// Nine tenants, each with a long prompt of its own, on two engines of which each
// has room for six: whoever sends each tenant to everybody keeps nothing cached.
func TestTwoReplicasKeepMoreWhenTheCacheIsMinded(t *testing.T) {
	t.Parallel()
	const tenants, rounds = 9, 6
	rate := func(policy string) float64 {
		s := newRegular(t, policy, 2, func(c *simengine.Config) { c.ContextLength, c.MaxTotalTokens = 4096, 9000 })
		prompt, cached := 0, 0
		for round := range rounds {
			for tenant := range tenants {
				system := strings.Repeat(fmt.Sprintf("You serve tenant %d. ", tenant), 70)
				body, err := json.Marshal(object{
					"text": system + fmt.Sprintf("Question %d?", round), "sampling_params": object{"max_new_tokens": 1},
				})
				require.NoError(t, err)
				r := s.do(http.MethodPost, "/generate", string(body))
				require.Equal(t, 200, r.status, r.body)
				meta := decoded[struct {
					Meta struct {
						Prompt int `json:"prompt_tokens"`
						Cached int `json:"cached_tokens"`
					} `json:"meta_info"`
				}](t, r.body).Meta
				prompt, cached = prompt+meta.Prompt, cached+meta.Cached
			}
		}
		return float64(cached) / float64(prompt)
	}
	minded, not := rate("cache_aware"), rate("round_robin")
	t.Logf("cached: round_robin %.0f %%, cache_aware %.0f %%", 100*not, 100*minded)
	assert.Less(t, not, 0.3)
	assert.Greater(t, minded, 0.7)
}
