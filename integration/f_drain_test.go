package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// held are workers that hold back the requests that have a certain field, until
// its channel is closed. In a stream one event comes before.
type held map[string]chan struct{}

func (h held) script(t *testing.T, id string, role pd.Role, fields ...string) *script {
	t.Helper()
	return scripted(t, id, role, func(w http.ResponseWriter, r *http.Request, got received) {
		stream := strings.Contains(got.body, `"stream":true`)
		if stream && role == pd.Decode {
			pieces(w, "data: {\"text\":\"a\"}\n\n")
		}
		for _, field := range fields {
			if !strings.Contains(got.body, `"`+field+`":true`) {
				continue
			}
			select {
			case <-h[field]:
			case <-r.Context().Done():
				return
			}
		}
		if stream {
			pieces(w, "data: [DONE]\n\n")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"a"}`)
	})
}

// inFlight is the field of requests that are still in flight when a test drains
// their worker.
const inFlight = "in_flight"

// twoDecodes is a stack of one prefill and two decodes, which hold requests that
// are in flight until release is called.
func twoDecodes(t *testing.T, want setup) (s *stack, decodes []*script, release func()) {
	t.Helper()
	h := held{inFlight: make(chan struct{})}
	decodes = []*script{h.script(t, "decode-0", pd.Decode, inFlight), h.script(t, "decode-1", pd.Decode, inFlight)}
	want.prefills, want.decodes = -1, -1
	want.scripts = append([]*script{readyPrefill(t)}, decodes...)
	return newStack(t, want), decodes, func() { close(h[inFlight]) }
}

// tenStreams are open and have begun, in turn on all endpoints.
func (s *stack) tenStreams() (all []*listener) {
	s.t.Helper()
	for i := range 10 {
		l := s.listen(calls(4)[2*(i%3)].streamed().with(object{inFlight: true}))
		l.next()
		all = append(all, l)
	}
	return all
}

// order posts to a worker's route, which answers with the worker.
func (s *stack) order(id pd.WorkerID, what string) shownWorker {
	s.t.Helper()
	r := s.do(http.MethodPost, "/workers/"+string(id)+"/"+what, "")
	require.Equal(s.t, http.StatusOK, r.status, r.body)
	return decoded[shownWorker](s.t, r.body)
}

// drained waits for a worker to have nothing left, in both routes that show it.
func (s *stack) drained(id pd.WorkerID) {
	s.t.Helper()
	s.eventually(func() bool { return s.shown(id).Drained }, "%s is drained", id)
	r := s.do(http.MethodGet, "/workers/"+string(id), "")
	require.Equal(s.t, http.StatusOK, r.status)
	w := decoded[shownWorker](s.t, r.body)
	assert.Equal(s.t, shownWorker{ID: id, State: pools.Draining, Breaker: "closed", Healthy: true, Drained: true}, w)
}

func TestF53ADrainingWorkerFinishesWhatItHas(t *testing.T) {
	t.Parallel()
	s, decodes, release := twoDecodes(t, setup{})
	streams := s.tenStreams() // five on each
	w := s.order("decode-0", "drain")
	assert.Equal(t, pools.Draining, w.State)
	assert.Equal(t, 5, w.InFlight)
	assert.False(t, w.Drained)
	for range 6 {
		s.ok(generateCall(2))
	}
	assert.Len(t, decodes[0].requests(), 5, "it gets nothing new")
	assert.Len(t, decodes[1].requests(), 11)
	assert.False(t, s.shown("decode-0").Drained)
	release()
	for i, l := range streams {
		r := l.rest()
		require.NoError(t, r.err, "stream %d", i)
		assert.Equal(t, []string{"[DONE]"}, r.events(), "stream %d", i)
	}
	s.drained("decode-0")
	for range 4 {
		s.ok(generateCall(2))
	}
	assert.Len(t, decodes[0].requests(), 5)

	assert.Equal(t, pools.Ready, s.order("decode-0", "resume").State)
	for range 4 {
		s.ok(generateCall(2))
	}
	assert.Len(t, decodes[0].requests(), 7, "its share")
}

// F53: what has not finished in the time given ends with an error event, and is
// not tried again.
func TestF53ATimeLimitEndsWhatADrainingWorkerStillHas(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	s, decodes, release := twoDecodes(t, setup{orchestrator: retrying(5, nil)})
	streams := s.tenStreams() // five on each, in turn
	waiting := s.start(generateCall(2).with(object{inFlight: true}))
	s.eventually(func() bool { return len(decodes[0].requests()) == 6 }, "and a plain call")
	began := time.Now()
	s.order("decode-0", "drain?timeout_secs=0.5")
	for i := 0; i < len(streams); i += 2 {
		r := streams[i].rest()
		assert.Error(t, r.err, "stream %d ends broken", i)
		require.Len(t, r.events(), 1, "and without [DONE]")
		assert.Contains(t, r.events()[0], "worker decode-0 was taken out of service")
		if streams[i].resp.Request.URL.Path != generatePath { // whose code is the status
			assert.Contains(t, r.events()[0], `"code":"worker_removed"`)
		}
	}
	assert.GreaterOrEqual(t, time.Since(began), limit)
	r := waiting.wait(t)
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "worker_removed", r.header.Get("X-Tandem-Error"))
	assert.NotEmpty(t, r.header.Get("Retry-After"))
	s.drained("decode-0")
	s.eventually(func() bool { return decodes[0].aborted() >= 6 }, "the worker is told of each")

	release()
	for i := 1; i < len(streams); i += 2 {
		r := streams[i].rest()
		require.NoError(t, r.err, "stream %d is the other's", i)
		assert.Equal(t, []string{"[DONE]"}, r.events(), "stream %d", i)
	}
	for id, outcomes := range s.outcomes(22) {
		assert.NotContains(t, outcomes, pd.Fault, "%s is not to blame", id)
	}
	assert.Equal(t, pools.Ready, s.order("decode-0", "resume").State)
}

func TestF53ResumingUndoesTheTimeLimit(t *testing.T) {
	t.Parallel()
	s, _, release := twoDecodes(t, setup{})
	l := s.listen(generateCall(2).with(object{inFlight: true}).streamed())
	l.next()
	s.order("decode-0", "drain?timeout_secs=1")
	s.order("decode-1", "drain")
	r := s.post(generateCall(2))
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "no_decode_available", r.header.Get("X-Tandem-Error"))
	assert.Contains(t, r.body, "2 draining")
	s.order("decode-0", "resume")
	s.ok(generateCall(2))
	time.Sleep(1200 * time.Millisecond)
	release()
	rest := l.rest()
	require.NoError(t, rest.err)
	assert.Equal(t, []string{"[DONE]"}, rest.events())
}

// F53, for a prefill: its prefills in flight finish, and a decode that has the
// KV already has nothing to do with it, time limit or not.
func TestF53ADrainingPrefillHurtsNoDecode(t *testing.T) {
	t.Parallel()
	const prefilling, decoding = "prefilling", "decoding"
	h := held{prefilling: make(chan struct{}), decoding: make(chan struct{})}
	prefills := []*script{h.script(t, "prefill-0", pd.Prefill, prefilling), h.script(t, "prefill-1", pd.Prefill, prefilling)}
	decode := h.script(t, "decode-0", pd.Decode, prefilling, decoding)
	s := newStack(t, setup{prefills: -1, decodes: -1, scripts: append(prefills, decode)})
	coupled := s.listen(generateCall(2).with(object{decoding: true}).streamed()) // by the first
	coupled.next()
	s.ok(generateCall(2)) // by the other
	call := s.start(generateCall(2).with(object{prefilling: true}))
	s.eventually(func() bool { return s.inFlight("prefill-0") == 1 && len(prefills[0].requests()) == 2 }, "it computes")
	assert.Equal(t, 1, s.order("prefill-0", "drain").InFlight)
	for range 3 {
		s.ok(generateCall(2))
	}
	s.eventually(func() bool { return len(prefills[1].requests()) == 4 }, "the other has them all, were it behind decode's answer")
	assert.Len(t, prefills[0].requests(), 2)
	close(h[prefilling])
	assert.Equal(t, 200, call.wait(t).status)
	s.drained("prefill-0")

	s.order("prefill-0", "drain?timeout_secs=0.1") // which finds nothing
	time.Sleep(300 * time.Millisecond)
	close(h[decoding])
	r := coupled.rest()
	require.NoError(t, r.err)
	assert.Equal(t, []string{"[DONE]"}, r.events())
}
