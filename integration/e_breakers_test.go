package integration

import (
	"net/http"
	"strings"
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

// lasting is a time whose end no test waits for.
const lasting = time.Minute

// breaking is a stack's circuit breakers.
func breaking(b pools.Breakers) func(*pools.Options) {
	return func(o *pools.Options) { o.Breakers = b }
}

// outOfLuck is how an engine fails that is to be blamed for it.
func outOfLuck() simengine.Fault {
	return simengine.Fault{Status: 500, Body: []byte(`{"message":"out of luck"}`)}
}

// shownWorker is a worker as operators see it.
type shownWorker struct {
	ID       pd.WorkerID
	State    pools.State
	Breaker  string
	Healthy  bool `json:"is_healthy"`
	InFlight int  `json:"in_flight"`
	Drained  bool
}

// shown is a worker in GET /workers, which must be as in GET /workers/{id}.
func (s *stack) shown(id pd.WorkerID) shownWorker {
	s.t.Helper()
	r := s.do(http.MethodGet, "/workers", "")
	require.Equal(s.t, http.StatusOK, r.status)
	for _, w := range decoded[struct{ Workers []shownWorker }](s.t, r.body).Workers {
		if w.ID == id {
			return w
		}
	}
	require.FailNow(s.t, "no such worker", "%s: %s", id, r.body)
	panic("unreachable")
}

// opened has a worker's breaker open, by that many calls that its engine fails.
func (s *stack) opened(id pd.WorkerID, e *simengine.Engine, failures int) {
	s.t.Helper()
	e.SetFault(always(outOfLuck()))
	for range failures {
		require.Equal(s.t, http.StatusInternalServerError, s.post(generateCall(2)).status)
	}
	s.idle()
	require.Equal(s.t, "open", s.shown(id).Breaker)
}

// F37: the report wants nothing sent to decode while prefill's breaker is open.
// When all breakers of a role are open, one whole pair per second is tried, so
// that somebody finds out; but never is one leg sent alone, and the first trial
// that does well closes the breaker.
func TestF37NoLegIsSentWithoutTheOther(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{pools: breaking(pools.Breakers{Failures: 3, Open: lasting})})
	begun := time.Now()
	s.opened("prefill-0", s.p, 3)
	before := len(generations(s.d))
	refused := 0
	for range 40 {
		if r := s.post(generateCall(2)); r.status == 503 {
			refused++
			assert.Equal(t, "no_prefill_available", r.header.Get("X-Tandem-Error"))
			assert.NotEmpty(t, r.header.Get("Retry-After"))
			assert.Contains(t, r.body, "1 broken")
		}
	}
	s.idle()
	tries := 1 + int(time.Since(begun)/time.Second)
	assert.GreaterOrEqual(t, refused, 40-tries)
	assert.LessOrEqual(t, len(generations(s.d))-before, tries)
	rooms := make(map[simengine.Room]bool)
	for _, rec := range generations(s.p) {
		rooms[rec.Rooms[0]] = true
	}
	for _, rec := range generations(s.d) {
		assert.True(t, rooms[rec.Rooms[0]], "prefill has what decode has")
	}

	s.p.SetFault(nil)
	s.eventually(func() bool { return s.post(generateCall(2)).status == 200 }, "a pair is tried")
	assert.Equal(t, "closed", s.shown("prefill-0").Breaker)
	s.ok(generateCall(2))
}

// F37, the variant: a trial whose client leaves says nothing of the worker, and
// the next call is the trial.
func TestF37ATrialThatIsCancelledGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	const open = 300 * time.Millisecond
	s := newStack(t, setup{pools: breaking(pools.Breakers{Failures: 3, Trials: 1, Open: open, Trial: lasting})})
	s.opened("prefill-0", s.p, 3)
	time.Sleep(open)
	s.p.SetFault(always(simengine.Fault{Hang: true}))
	trial := s.start(generateCall(2))
	arrived(t, s.p, 4)
	require.Equal(t, "half_open", s.shown("prefill-0").Breaker)
	r := s.post(generateCall(2))
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "no_prefill_available", r.header.Get("X-Tandem-Error"))
	assert.Len(t, generations(s.p), 4, "there is one place")

	trial.leave()
	s.idle()
	s.p.SetFault(nil)
	s.ok(generateCall(2))
	assert.Equal(t, "closed", s.shown("prefill-0").Breaker)
	assert.Equal(t, []pd.Outcome{pd.Fault, pd.Fault, pd.Fault, pd.Left, pd.Success}, s.outcomes(10)["prefill-0"],
		"one outcome for each leg")
}

// F40: an engine that says that it is full is alive.
func TestF40AFullWorkerIsNoBrokenOne(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 5} {
		for _, c := range []call{generateCall(2), chatCall(2).streamed()} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{
					health: func(h *health.Options) { h.Interval = lasting },
					pools:  breaking(pools.Breakers{Failures: 3}), orchestrator: retrying(attempts, nil),
				})
				s.ready()
				var left atomic.Int64
				left.Store(20)
				const full = `{"message":"the queue is full"}`
				s.d.SetFault(func(simengine.Record) *simengine.Fault {
					if left.Add(-1) < 0 {
						return nil
					}
					return &simengine.Fault{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: []byte(full)}
				})
				for left.Load() > 0 {
					r := s.post(c)
					require.Equal(t, 503, r.status)
					assert.Equal(t, full, r.body)
					assert.Equal(t, "1", r.header.Get("Retry-After"))
					d := s.shown("decode-0")
					assert.Contains(t, []pools.State{pools.Busy, pools.Ready}, d.State)
					assert.Equal(t, "closed", d.Breaker)
					ready := s.do(http.MethodGet, "/readiness", "")
					assert.Equal(t, 200, ready.status)
					assert.Contains(t, ready.body, `"healthy_workers":2`)
				}
				s.ok(c) // at once
				assert.Len(t, generations(s.d), 21, "who is full is not asked again for the same request")
			})
		}
	}
}

// F44: clients see nothing of it from the first failure on, and the worker soon
// gets nothing. The report bounds the share of a role that may be out at a time;
// here all may be, and one pair per second is tried then.
func TestF44AWorkerThatFailsMoreOftenThanNotIsLeftAlone(t *testing.T) {
	t.Parallel()
	degraded := func(t *testing.T, open time.Duration) *stack {
		s := newStack(t, setup{
			decodes: 4, pools: breaking(pools.Breakers{Failures: 5, Open: open}), orchestrator: retrying(5, nil),
		})
		var n atomic.Int64
		s.d.SetFault(func(simengine.Record) *simengine.Fault {
			fault := outOfLuck()
			if n.Add(1)%5 < 3 {
				return &fault
			}
			return nil
		})
		s.eventually(func() bool {
			s.ok(generateCall(2))
			return s.set.Find("decode-0").State() == pools.Broken
		}, "its breaker opens")
		return s
	}
	t.Run("its share falls", func(t *testing.T) {
		t.Parallel()
		s := degraded(t, lasting)
		before := len(generations(s.d))
		assert.LessOrEqual(t, before, 8, "five failures and what did well between them")
		together(60, 4, func(int) { s.ok(generateCall(2)) })
		assert.Len(t, generations(s.d), before)
	})
	t.Run("it comes back", func(t *testing.T) {
		t.Parallel()
		s := degraded(t, 200*time.Millisecond)
		s.d.SetFault(nil)
		s.eventually(func() bool {
			s.ok(generateCall(2))
			return s.set.Find("decode-0").State() == pools.Ready
		}, "its trials do well")
		before := len(generations(s.d))
		for range 40 {
			s.ok(generateCall(2))
		}
		assert.Equal(t, 10, len(generations(s.d))-before, "its share, of 40")
	})
}

// F47: a worker that hangs is sent no more than its trials, each of which has
// its place for a limited time.
func TestF47NoMoreThanTheTrialsReachAWorkerThatHangs(t *testing.T) {
	t.Parallel()
	const k, open, deadline = 2, 200 * time.Millisecond, 3 * time.Second
	f := func(name string, decodes, elsewhere int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{
				decodes: decodes,
				pools: func(o *pools.Options) {
					o.Breakers = pools.Breakers{Failures: 1, Trials: k, Open: open, Trial: deadline}
					o.Policies = pools.Share(new(policy.RoundRobin), sticky("decode-0"))
				},
			})
			s.opened("decode-0", s.d, 1)
			time.Sleep(open)
			s.d.SetFault(always(simengine.Fault{Hang: true}))
			failed := len(generations(s.d))
			hanging := func() int { return len(generations(s.d)) - failed }

			answers := make(chan reply, 1000)
			send := func(n int) {
				for range n {
					p := s.start(generateCall(2))
					go func() { answers <- <-p.answer }()
				}
			}
			begun := time.Now()
			send(30)
			for range 30 - k {
				r := within(t, answers, "those that do not hang")
				assert.Equal(t, elsewhere, r.status, r.body)
				if elsewhere == 503 {
					assert.Equal(t, "no_decode_available", r.header.Get("X-Tandem-Error"))
				}
			}
			s.eventually(func() bool { return hanging() >= k }, "the trials are there")
			require.Less(t, time.Since(begun), deadline, "nobody has waited for the trials")
			assert.Equal(t, k, hanging())

			time.Sleep(time.Until(begun.Add(deadline)))
			s.eventually(func() bool { send(1); return hanging() > k }, "the trials' time is over")
			begun = time.Now()
			s.eventually(func() bool { send(1); return hanging() >= 2*k }, "others have their places")
			before := len(answers)
			send(30)
			s.eventually(func() bool { return len(answers) >= before+30 }, "and the rest goes on")
			s.eventually(func() bool { return hanging() >= 2*k }, "the trials are there")
			require.Less(t, time.Since(begun), deadline)
			assert.Equal(t, 2*k, hanging())
		})
	}
	f("others serve", 2, 200)
	f("it is alone", 1, 503)
}

// sticky is a policy that keeps to one worker as long as that can be used.
type sticky pd.WorkerID

func (p sticky) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	for _, m := range members {
		if m.Worker.ID == pd.WorkerID(p) {
			return m
		}
	}
	return members[0]
}

// F41: what a policy would rather have is no reason to try a worker twice.
func TestF41ASecondAttemptLeavesTheFavourite(t *testing.T) {
	t.Parallel()
	f := func(name string, breaks func(s *stack)) {
		for _, c := range calls(4) {
			t.Run(name+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{
					decodes: 3, orchestrator: retrying(5, nil),
					pools: func(o *pools.Options) { o.Policies = pools.Share(new(policy.RoundRobin), sticky("decode-0")) },
				})
				breaks(s)
				s.ok(c)
				assert.Equal(t, 2, s.report(0).Attempts)
				assert.LessOrEqual(t, len(generations(s.d)), 1)
				assert.Len(t, append(generations(s.decodes[1]), generations(s.decodes[2])...), 1)
			})
		}
	}
	f("is dead", func(s *stack) { s.kill(s.d) })
	f("fails", func(s *stack) { s.d.SetFault(always(outOfLuck())) })
	f("breaks off", func(s *stack) { s.d.SetFault(always(simengine.Fault{Reset: true})) })
	f("is full", func(s *stack) {
		s.d.SetFault(always(simengine.Fault{Status: 429, Body: []byte(strings.ReplaceAll(tooLong, "long", "much"))}))
	})
}
