package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// When one leg fails, the engine of the other has let go of it within a second,
// by its own records.
func TestAFailedLegFreesTheOtherSoon(t *testing.T) {
	t.Parallel()
	faults := map[string]simengine.Fault{
		"refuses": {Status: 400, Body: []byte(tooLong)}, "fails": {Status: 500, Body: []byte(tooLong)}, "is reset": {Reset: true},
	}
	for name, fault := range faults {
		for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
			for _, c := range calls(4) {
				t.Run(role.String()+" "+name+", "+c.name, func(t *testing.T) {
					t.Parallel()
					s := newStack(t, setup{})
					bad, good := s.p, s.d
					if role == pd.Decode {
						bad, good = s.d, s.p
					}
					bad.SetFault(onceAt(t.Context(), good, fault))
					s.post(c)
					s.idle()
					over(t, good, 0, generations(bad)[0].Ended)
				})
			}
		}
	}
}

// With an engine that runs on for a client that is gone, only an abort frees it,
// and only before the socket closes.
func TestTheAbortComesBeforeTheClosing(t *testing.T) {
	t.Parallel()
	never := func(c *simengine.Config) { c.Disconnect = simengine.DisconnectNever }
	for _, c := range calls(200) {
		for _, when := range []string{"waits", "runs"} {
			t.Run(c.name+" "+when, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{
					decode: func(c *simengine.Config) { never(c); slowly(c) },
					prefill: func(c *simengine.Config) {
						never(c)
						if when == "waits" {
							c.Speed.PrefillDelay = 10 * time.Second
						}
					},
				})
				call := s.start(c)
				if when == "waits" {
					s.eventually(func() bool { return s.d.Loads().Transfer == 1 && s.p.Loads().Waiting == 1 }, "both wait")
				} else {
					s.eventually(func() bool { return s.d.Loads().Running == 1 }, "decode runs")
				}
				left := time.Now()
				call.leave()
				s.toldFirst(s.d, left)
				if when == "waits" {
					s.toldFirst(s.p, left)
				}
			})
		}
	}
}

// toldFirst requires that an engine was aborted before the socket of its first
// request closed. A socket waits 50 ms for the abort, so where the process stood
// still for as long, it is enough that it did not close any sooner.
func (s *stack) toldFirst(e *simengine.Engine, left time.Time) {
	s.t.Helper()
	s.told(e, generations(e)[0].Rids[0])
	var r simengine.Record
	s.eventually(func() bool {
		r = generations(e)[0]
		return !r.AbortedAt.IsZero() || !r.ClosedByClient.IsZero()
	}, "%s notices", e.ID())
	if r.AbortedAt.IsZero() {
		s.t.Logf("the abort of %s was late", e.ID())
		assert.GreaterOrEqual(s.t, r.ClosedByClient.Sub(left), 50*time.Millisecond, "%s", e.ID())
		return
	}
	assert.Less(s.t, r.AbortedAt.Sub(left), soon, "%s", e.ID())
}

// A client that leaves frees both engines within a second, wherever the request
// is.
func TestAClientThatLeavesFreesBothEnginesAtEveryStage(t *testing.T) {
	t.Parallel()
	long := func(d *time.Duration) { *d = time.Minute }
	stages := map[string]struct {
		prefill, decode func(*simengine.Config)
		reached         func(s *stack) bool
	}{
		"decode waits for KV space": {
			decode: func(c *simengine.Config) { c.MaxTotalTokens = 1000; slowly(c) },
			reached: func(s *stack) bool {
				return s.d.Loads().Prealloc == 1 && s.p.Loads().Bootstrap == 1
			},
		},
		"prefill computes": {
			prefill: func(c *simengine.Config) { long(&c.Speed.PrefillDelay) },
			reached: func(s *stack) bool { return s.d.Loads().Transfer == 1 && s.p.Loads().Waiting == 1 },
		},
		"the KV moves": {
			prefill: func(c *simengine.Config) { long(&c.Speed.TransferDelay) },
			reached: func(s *stack) bool { return s.p.Loads().Inflight == 1 },
		},
		"decode runs": {
			decode:  slowly,
			reached: func(s *stack) bool { return s.d.Loads().Running == 1 },
		},
	}
	for name, stage := range stages {
		for _, c := range calls(500) {
			t.Run(name+", "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{prefill: stage.prefill, decode: stage.decode})
				var holder *pending
				mine := 0
				if stage.prefill == nil && name != "decode runs" {
					holder = s.start(generateCall(950).streamed())
					s.eventually(func() bool { return s.d.Loads().Running == 1 }, "the KV space is taken")
					mine = 1
				}
				call := s.start(c)
				s.eventually(func() bool { return stage.reached(s) }, "the stage is reached")
				left := time.Now()
				call.leave()
				freed(t, s.d, mine, left)
				over(t, s.p, mine, left)
				if holder != nil {
					holder.leave()
				}
				r := s.report(0)
				require.NotNil(t, r.Err)
				assert.Equal(t, pd.Cancelled, r.Err.Kind)
			})
		}
	}
}

// A worker that is set to close only is never told.
func TestAWorkerThatIsClosedOnlyIsNotTold(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decode: slowly,
		workers: func(all []*pd.Worker) {
			for _, w := range all {
				w.CloseOnly = true
			}
		},
	})
	l := s.listen(generateCall(500).streamed())
	l.next()
	left := time.Now()
	l.leave()
	over(t, s.d, 0, left)
	s.idle()
	assert.Empty(t, aborts(s.d))
	assert.Empty(t, aborts(s.p))
}

// A stream that makes progress is cut by no deadline.
func TestAStreamOutlivesEveryDeadlineWhileItMakesProgress(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decode: slowly,
		orchestrator: func(o *pd.Orchestrator) {
			o.Upstream.Deadlines = pd.Deadlines{Request: 2 * time.Second, FirstEvent: 2 * time.Second, Idle: 2 * time.Second}
		},
	})
	r := s.ok(generateCall(150).streamed()) // of 3 s
	assert.Len(t, data(t, r), 150)
	plain := s.post(generateCall(150))
	assert.Equal(t, http.StatusGatewayTimeout, plain.status, "a plain call shows no progress")
}
