package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// F113: a router is ready when it has a pair for a request, and not before.
func TestF113ReadyIsWhoHasAPair(t *testing.T) {
	t.Parallel()
	prefill, decode := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0")
	stranger := lone(t, simengine.Decode, "decode-1", func(c *simengine.Config) { c.Model = "other" })
	s := fleetless(t, setup{})
	f := func(status int, what string) {
		t.Helper()
		r := s.do(http.MethodGet, "/readiness", "")
		assert.Equal(t, status, r.status, "%s: %s", what, r.body)
		if status != http.StatusOK {
			assert.JSONEq(t, `{"status":"not ready","reason":"insufficient healthy workers"}`, r.body)
			assert.Equal(t, http.StatusServiceUnavailable, s.post(generateCall(2).with(object{"model": "tiny"})).status, what)
		}
		assert.Equal(t, http.StatusOK, s.do(http.MethodGet, "/health", "").status, "the process is well all the time")
	}
	f(503, "nobody")
	s.joining(prefill, nil)
	s.joins(prefill)
	f(503, "a prefill alone")
	s.joining(stranger, nil)
	s.joins(stranger)
	f(503, "a decode of another model")
	decode.SetPathFault("/health", &simengine.Fault{Status: http.StatusServiceUnavailable})
	id := s.joining(decode, nil)
	s.eventually(func() bool { return s.at(decode).Reason != "" }, "it has been looked at")
	f(503, "a decode that starts")
	decode.SetPathFault("/health", nil)
	s.joins(decode)
	f(200, "a pair")
	s.ok(generateCall(2).with(object{"model": "tiny"}))

	s.order(id, "drain")
	r := s.do(http.MethodGet, "/readiness", "")
	assert.Equal(t, http.StatusServiceUnavailable, r.status, "a decode that drains: %s", r.body)
	s.order(id, "resume")
	require.Equal(t, http.StatusAccepted, s.do(http.MethodDelete, "/workers/"+string(id), "").status)
	s.goes(decode)
	f(503, "nobody again")
	s.settled(prefill, decode, stranger)
}

// F113 wants 503 while decode's breaker is open, and does not get it. A breaker is
// closed by requests alone: a router that is sent none because it says that it is
// not ready would stay so for ever.
func TestF113AnOpenBreakerIsNoReasonToSendNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{health: watched, pools: breaking(pools.Breakers{Failures: 3, Open: lasting})})
	s.ready()
	s.opened("decode-0", s.d, 3)
	assert.Equal(t, http.StatusOK, s.readiness())
	s.d.SetFault(nil)
	s.eventually(func() bool { return s.post(generateCall(2)).status == http.StatusOK }, "a request finds out that it is well")
	assert.Equal(t, "closed", s.shown("decode-0").Breaker)
}

// newEchoes are whole engines that a test writes, and a router over them.
func newEchoes(t *testing.T, n int, serve func(w http.ResponseWriter, r *http.Request, got received)) (*stack, []*script) {
	t.Helper()
	var all []*script
	for i := range n {
		all = append(all, scripted(t, fmt.Sprint("regular-", i), pd.Regular, serve))
	}
	return newRegular(t, "round_robin", 0, nil, all...), all
}

// F115: what pairs cannot serve is refused, by name and without a call to an
// engine: their bodies have no place for what pairs two legs.
func TestF115PairsRefuseWhatTheyCannotServe(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	for _, path := range []string{"/v1/messages", "/v1/responses"} {
		for _, stream := range []bool{false, true} {
			r := s.post(call{path: path, body: object{"model": "tiny", "input": "a", "max_tokens": 2, "stream": stream}}, "x-api-key", "k")
			assert.Equal(t, http.StatusNotImplemented, r.status, path)
			assert.Contains(t, r.body, "not served over prefill/decode pairs")
		}
	}
	for _, e := range s.engines() {
		assert.Empty(t, e.Records())
	}
}

// F115: whole engines are asked as they were, and their events come as they are.
func TestF115WholeEnginesServeEveryKindOfMessage(t *testing.T) {
	t.Parallel()
	const events = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n: ping\n\nevent: odd\r\ndata: {\"a\":1}\r\n\r\nevent: message_stop\ndata: {}\n\n"
	s, engines := newEchoes(t, 2, func(w http.ResponseWriter, r *http.Request, got received) {
		if strings.Contains(got.body, `"stream":true`) {
			pieces(w, events[:30], events[30:])
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"path":%q}`, r.URL.Path)
	})
	n := 0
	for _, path := range []string{"/v1/messages", "/v1/responses", "/v1/messages/count_tokens"} {
		for _, stream := range []bool{false, true} {
			c := call{path: path, body: object{"model": "claude", "input": "a", "stream": stream}}
			r := s.post(c, "x-api-key", "k", "anthropic-version", "2023-06-01")
			require.Equal(t, http.StatusOK, r.status, r.body)
			want := fmt.Sprintf(`{"path":%q}`, path)
			if stream {
				want = events
			}
			assert.Equal(t, want, r.body)
			n++
			var all []received
			for _, e := range engines {
				all = append(all, e.requests()...)
			}
			require.Len(t, all, n, "one engine is asked, once")
			for _, got := range all {
				assert.Equal(t, []string{"k", "2023-06-01"}, []string{got.header.Get("x-api-key"), got.header.Get("anthropic-version")})
			}
		}
	}
}

// F116: a path that a router of pairs does not know is none of its own, whatever
// it looks like: nobody is asked by other rules.
func TestF116PairsHaveNoSidePath(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	for _, path := range []string{"/inference/v1/generate", "/v2/generate", "/generate/x", "/v1/messages/count_tokens", "/v1/of/tomorrow"} {
		assert.Equal(t, http.StatusNotFound, s.post(call{path: path, body: generateCall(2).body}).status, path)
	}
	for _, e := range s.engines() {
		assert.Empty(t, e.Records())
	}
}

// F116: over whole engines a path that nobody has heard of counts as any other.
func TestF116UnknownPathsOfWholeEnginesCount(t *testing.T) {
	t.Parallel()
	s, engines := newEchoes(t, 2, func(w http.ResponseWriter, r *http.Request, got received) {
		if strings.Contains(got.body, "held") {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	p := s.start(call{path: "/v1/of/tomorrow", body: object{"held": 1}})
	s.eventually(func() bool { return len(engines[0].requests())+len(engines[1].requests()) == 1 }, "it is there")
	busy := 0
	if len(engines[1].requests()) == 1 {
		busy = 1
	}
	assert.Equal(t, 1, s.shown(engines[busy].worker.ID).InFlight)
	s.order(engines[busy].worker.ID, "drain")
	for range 4 {
		assert.Equal(t, http.StatusNoContent, s.post(call{path: "/v1/of/tomorrow", body: object{}}).status)
	}
	assert.Len(t, engines[busy].requests(), 1, "and a worker that drains is left out")
	p.leave()
	require.Error(t, p.wait(t).err)
	s.eventually(func() bool { return s.shown(engines[busy].worker.ID).Drained }, "what it had is given back")
	assert.Equal(t, http.StatusNotFound, s.post(call{path: "/inference/v1/generate", body: object{}}).status, "what is not under /v1/ is nobody's")
}

// fleetCalls is the answer of a call to the whole fleet.
type fleetCalls struct {
	Status     string
	Total      int `json:"total_workers"`
	Successful []pd.WorkerID
	Failed     []struct {
		Worker pd.WorkerID
		Role   string
		Error  string
	}
	Results map[pd.WorkerID]struct{ Status int }
}

// F118: who looks after engines calls all of them at once; one that hangs costs
// the others nothing.
func TestF118OneEngineThatHangs(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 3})
	all := []pd.WorkerID{"prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"}
	call := func(path string, status int) (out fleetCalls) {
		t.Helper()
		r := s.do(http.MethodPost, path, `{"mode":"in_place"}`)
		require.Equal(t, status, r.status, r.body)
		return decoded[fleetCalls](t, r.body)
	}
	s.decodes[1].SetPathFault("/pause_generation", &simengine.Fault{Hang: true})
	began := time.Now()
	got := call("/pause_generation?timeout_secs=1", http.StatusPartialContent)
	assert.Less(t, time.Since(began), time.Second+soon)
	assert.Equal(t, "partial_success", got.Status)
	assert.Equal(t, 5, got.Total)
	assert.Equal(t, []pd.WorkerID{"prefill-0", "prefill-1", "decode-0", "decode-2"}, got.Successful)
	require.Len(t, got.Failed, 1)
	assert.Equal(t, []any{pd.WorkerID("decode-1"), "decode", "no answer in time"}, []any{got.Failed[0].Worker, got.Failed[0].Role, got.Failed[0].Error})
	assert.Len(t, got.Results, 4)

	s.decodes[1].SetPathFault("/pause_generation", nil)
	assert.Equal(t, all, call("/pause_generation", http.StatusOK).Successful, "again, which changes nothing for the others")
	for _, role := range []string{"prefill", "decode"} {
		got := call("/continue_generation?role="+role, http.StatusOK)
		assert.Equal(t, len(got.Results), got.Total)
		for _, id := range got.Successful {
			assert.True(t, strings.HasPrefix(string(id), role), "%s is no %s", id, role)
		}
	}
	for _, c := range calls(2) {
		s.ok(c)
	}
}
