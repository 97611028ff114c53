package integration

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/policy"
)

// readiness is the status of /readiness.
func (s *stack) readiness() int {
	s.t.Helper()
	return s.do(http.MethodGet, "/readiness", "").status
}

// becomes waits for a worker's state.
func (s *stack) becomes(id pd.WorkerID, state pools.State) {
	s.t.Helper()
	s.eventually(func() bool { return s.set.Find(id).State() == state }, "%s is %s", id, state)
}

// restart starts a killed engine again. Its port may be that of another
// connection for a moment.
func (s *stack) restart(e *simengine.Engine) {
	s.t.Helper()
	s.eventually(func() bool { return e.Restart() == nil }, "%s starts again", e.ID())
}

// F38: both engines start again at their addresses, and no breaker or mark from
// before keeps them out. The test has the process for itself: another one could
// take the ports meanwhile.
func TestF38RestartedEnginesServeAtOnce(t *testing.T) {
	const interval = 2 * time.Second
	s := newStack(t, setup{
		health: func(h *health.Options) { h.Interval, h.Timeout = interval, time.Second },
		pools:  breaking(pools.Breakers{Failures: 3, Open: lasting}),
	})
	s.ready()
	s.opened("prefill-0", s.p, 3)
	s.p.SetFault(nil)
	for _, e := range s.engines() {
		e.Kill()
	}
	s.becomes("prefill-0", pools.Dead)
	s.becomes("decode-0", pools.Dead)
	assert.Equal(t, 503, s.readiness())
	r := s.post(generateCall(2))
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "no_prefill_available", r.header.Get("X-Tandem-Error"))
	assert.Contains(t, r.body, "1 dead")

	for _, e := range s.engines() {
		s.restart(e)
	}
	started := time.Now()
	s.eventually(func() bool { return s.post(generateCall(2)).status == 200 }, "the first success")
	// The probes are within the interval, give or take a tenth, and a second
	// that confirms the first within one more second.
	assert.Less(t, time.Since(started), interval+time.Second+soon)
	assert.Equal(t, 200, s.readiness())
	for _, e := range []pd.WorkerID{"prefill-0", "decode-0"} {
		assert.Equal(t, "closed", s.shown(e).Breaker)
	}
	for range 10 {
		s.ok(generateCall(2))
	}
}

// often looks at the workers so often that a test need not wait.
func often(h *health.Options) {
	h.Interval, h.Timeout, h.Successes = 200*time.Millisecond, 300*time.Millisecond, 1
}

// F43: an engine that computes answers /health late, or never. Its tokens show
// that it lives.
func TestF43AWorkerWhoseTokensFlowIsAlive(t *testing.T) {
	t.Parallel()
	f := func(name string, fault simengine.Fault) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var probes atomic.Int64
			s := newStack(t, setup{
				decodes: 2, pools: func(o *pools.Options) { o.Policies = pools.Share(new(policy.RoundRobin), sticky("decode-0")) },
				decode: func(c *simengine.Config) { c.Speed.TokenInterval = 10 * time.Millisecond },
				health: func(h *health.Options) {
					often(h)
					h.Interval = 400 * time.Millisecond // a token may take longer than 10 ms
					h.Probed = func(w *pd.Worker, _ time.Duration, err error) {
						if w.ID == "decode-0" && err != nil {
							probes.Add(1)
						}
					}
				},
			})
			s.ready()
			l := s.listen(generateCall(200).streamed()) // of 2 s
			l.next()
			s.d.SetPathFault("/health", &fault)
			ended := make(chan reply, 1)
			go func() { ended <- l.rest() }()
			for streams := true; streams; {
				select {
				case r := <-ended:
					assert.NoError(t, r.err)
					streams = false
				case <-time.After(20 * time.Millisecond):
					require.Equal(t, pools.Ready, s.set.Find("decode-0").State())
				}
			}
			// With no more tokens, three bad answers show it.
			s.becomes("decode-0", pools.Dead)
			assert.GreaterOrEqual(t, probes.Load(), int64(3))
			s.ok(generateCall(2))
			assert.Len(t, generations(s.decodes[1]), 1)
		})
	}
	f("it hangs", simengine.Fault{Hang: true})
}

// F43: silence, as of an engine that compiles for minutes, does not take out the
// last worker of a role; a bad answer does.
func TestF43TheLastWorkerIsNotTakenOutBySilence(t *testing.T) {
	t.Parallel()
	var kept atomic.Bool
	s := newStack(t, setup{health: func(h *health.Options) {
		often(h)
		h.Kept = func(w *pd.Worker, _ string) { kept.Store(kept.Load() || w.ID == "decode-0") }
	}})
	s.ready()
	s.d.SetPathFault("/health", &simengine.Fault{Hang: true})
	s.eventually(kept.Load, "three probes have failed")
	assert.Equal(t, pools.Ready, s.set.Find("decode-0").State())
	assert.Equal(t, 200, s.readiness())
	s.ok(generateCall(2))

	s.d.SetPathFault("/health", &simengine.Fault{Status: 503})
	s.becomes("decode-0", pools.Dead)
	assert.Equal(t, 503, s.readiness())
	r := s.post(generateCall(2))
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "no_decode_available", r.header.Get("X-Tandem-Error"))
	s.d.SetPathFault("/health", nil)
	s.becomes("decode-0", pools.Ready)
	s.ok(generateCall(2))
}

// An engine that was told to end says 503 on /health and finishes what it has.
// It gets no new work, and nobody who talks to it notices.
func TestAnEngineThatIsToldToEndIsLeftInPeace(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 2, decodes: 2,
		decode: func(c *simengine.Config) { c.Speed.TokenInterval = 10 * time.Millisecond },
		health: func(h *health.Options) {
			often(h)
			h.Timeout = patience // who is asked answers
		},
	})
	s.ready()
	l := s.listen(generateCall(200).streamed())
	l.next()
	for _, e := range []*simengine.Engine{s.p, s.d} {
		e.SetPathFault("/health", &simengine.Fault{Status: 503})
	}
	s.becomes("prefill-0", pools.Dead)
	assert.Equal(t, "health check: status 503", s.set.Status().Workers[0].Reason)
	r := l.rest()
	require.NoError(t, r.err)
	assert.Len(t, r.events(), 200, "199 events and [DONE]")
	s.becomes("decode-0", pools.Dead)
	for range 4 {
		s.ok(generateCall(2))
	}
	assert.Len(t, generations(s.p), 1)
	assert.Len(t, generations(s.d), 1)
	assert.Equal(t, 200, s.readiness())
}

// F46: the report wants an opt-out header; there is none.
func TestF46AnotherWorkerIsTriedWithoutAWait(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, orchestrator: func(o *pd.Orchestrator) {
				o.Retry = pd.Retry{MaxAttempts: 5, InitialBackoff: lasting} // for nothing: nobody was there
			}})
			s.kill(s.p)
			began := time.Now()
			s.ok(c)
			assert.Less(t, time.Since(began), soon)
			assert.Equal(t, 2, s.report(0).Attempts)
		})
	}
}

func TestF46WhenAllFailTheLastAnswerIsGiven(t *testing.T) {
	t.Parallel()
	f := func(name string, limit int, retry pd.Retry, deadline time.Duration, attempts int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 3, orchestrator: func(o *pd.Orchestrator) {
				retry.MaxAttempts = limit
				o.Retry = retry
				o.Upstream.Deadlines.Request = deadline
			}})
			statuses := []int{500, 502, 504}
			for i, p := range s.prefills {
				p.SetFault(always(simengine.Fault{Status: statuses[i], Body: []byte(`{"message":"` + p.ID() + `"}`)}))
			}
			r := s.post(generateCall(4))
			assert.Equal(t, attempts, s.report(0).Attempts)
			type sent struct {
				by  int
				rec simengine.Record
			}
			var all []sent
			for i, p := range s.prefills {
				for _, rec := range generations(p) {
					all = append(all, sent{i, rec})
				}
			}
			require.Len(t, all, attempts)
			last := slices.MaxFunc(all, func(a, b sent) int { return a.rec.Arrived.Compare(b.rec.Arrived) }).by
			assert.Equal(t, statuses[last], r.status)
			assert.Equal(t, `{"message":"`+s.prefills[last].ID()+`"}`, r.body)
			assert.LessOrEqual(t, len(generations(s.d)), attempts)
		})
	}
	quick := pd.Retry{InitialBackoff: time.Millisecond}
	f("one attempt", 1, quick, lasting, 1)
	f("as many as workers", 3, quick, lasting, 3)
	f("more than workers", 5, quick, lasting, 5)
	f("the deadline comes before another", 5, pd.Retry{InitialBackoff: lasting}, 2*time.Second, 1)
}
