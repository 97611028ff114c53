package integration

import (
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
	s := newStack(t, setup{decodes: 2, decode: slowly})
	streams := s.tenStreams(250) // of 5 s, five on each
	w := s.order("decode-0", "drain")
	assert.Equal(t, pools.Draining, w.State)
	assert.Equal(t, 5, w.InFlight)
	assert.False(t, w.Drained)
	for range 6 {
		s.ok(generateCall(2))
	}
	assert.Len(t, generations(s.d), 5, "it gets nothing new")
	assert.Len(t, generations(s.decodes[1]), 11)
	for i, l := range streams {
		r := l.rest()
		require.NoError(t, r.err, "stream %d", i)
		events := r.events()
		assert.Equal(t, "[DONE]", events[len(events)-1], "stream %d", i)
	}
	s.drained("decode-0")
	assert.Equal(t, 200, s.readiness())

	assert.Equal(t, pools.Ready, s.order("decode-0", "resume").State)
	for range 4 {
		s.ok(generateCall(2))
	}
	assert.Len(t, generations(s.d), 7, "its share")

	s.order("decode-0", "drain")
	s.drained("decode-0")
	s.kill(s.d) // now it may
	for range 4 {
		s.ok(generateCall(2))
	}
	assert.Zero(t, s.shown("decode-0").InFlight)
}

// F53: what has not finished in the time given ends with an error event.
func TestF53ATimeLimitEndsWhatADrainingWorkerStillHas(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decodes: 2, decode: slowly, orchestrator: retrying(5, nil)})
	streams := s.tenStreams(350) // of 7 s, five on each
	waiting := s.start(generateCall(300))
	arrived(t, s.d, 6)
	began := time.Now()
	s.order("decode-0", "drain?timeout_secs=0.5")
	cut := 0
	for i := 0; i < len(streams); i += 2 { // round robin
		r := streams[i].rest()
		assert.Error(t, r.err, "stream %d ends broken", i)
		events := r.events()
		require.NotEmpty(t, events)
		last := events[len(events)-1]
		assert.Contains(t, last, "worker decode-0 was taken out of service")
		if i%3 != 0 {
			assert.Contains(t, last, `"code":"worker_removed"`)
		}
		assert.NotContains(t, events, "[DONE]")
		cut++
	}
	assert.Equal(t, 5, cut)
	assert.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond)
	r := waiting.wait(t)
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "worker_removed", r.header.Get("X-Tandem-Error"))
	assert.NotEmpty(t, r.header.Get("Retry-After"))
	for i := range 6 {
		freed(t, s.d, i, began.Add(500*time.Millisecond))
	}
	s.drained("decode-0")

	for i := 1; i < len(streams); i += 2 {
		r := streams[i].rest()
		require.NoError(t, r.err, "stream %d is the other's", i)
		assert.True(t, strings.HasSuffix(r.body, "data: [DONE]\n\n"), "stream %d", i)
	}
	s.order("decode-0", "resume")
	for _, outcomes := range s.outcomes(22) {
		assert.NotContains(t, outcomes, pd.Fault, "nobody is blamed")
	}
}

// A resumed worker keeps what it has: the time limit of its draining is over.
func TestF53ResumingUndoesTheTimeLimit(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly})
	l := s.listen(generateCall(150).streamed()) // of 3 s
	l.next()
	s.order("decode-0", "drain?timeout_secs=0.5")
	r := s.post(generateCall(2))
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "no_decode_available", r.header.Get("X-Tandem-Error"))
	assert.Contains(t, r.body, "1 draining")
	s.order("decode-0", "resume")
	s.ok(generateCall(2))
	rest := l.rest()
	require.NoError(t, rest.err)
	assert.Len(t, rest.events(), 150, "149 events and [DONE]")
}

// F53, for a prefill: its prefills in flight finish, and a decode that has the
// KV already has nothing to do with it, time limit or not.
func TestF53ADrainingPrefillHurtsNoDecode(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 2, decode: slowly,
		prefill: func(c *simengine.Config) { c.Speed.PrefillDelay = 500 * time.Millisecond },
	})
	coupled := s.listen(generateCall(150).streamed()) // of 3 s
	coupled.next()
	s.ok(generateCall(2))                            // by the other
	inFlight := []*pending{s.start(generateCall(2))} // by the first
	s.eventually(func() bool { return s.p.Loads().Waiting == 1 }, "it computes")
	assert.Equal(t, 1, s.order("prefill-0", "drain").InFlight)
	for range 3 {
		inFlight = append(inFlight, s.start(generateCall(2)))
	}
	for _, p := range inFlight {
		assert.Equal(t, 200, p.wait(t).status)
	}
	assert.Len(t, generations(s.p), 2)
	assert.Len(t, generations(s.prefills[1]), 4)
	s.drained("prefill-0")
	s.order("prefill-0", "drain?timeout_secs=0.1") // which finds nothing
	r := coupled.rest()
	require.NoError(t, r.err)
	assert.Len(t, r.events(), 150, "149 events and [DONE]")
}
