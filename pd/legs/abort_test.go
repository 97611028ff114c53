package legs

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

const ms = time.Millisecond

// A dropped leg: what the engine sees, and when.
func TestDrop(t *testing.T) {
	slow := func(_ string, req *http.Request) error {
		time.Sleep(200 * ms)
		return nil
	}
	fails := func(string, *http.Request) error { return errors.New("refused") }
	tests := []struct {
		name   string
		worker pd.Worker
		engine *engine
		after  time.Duration // from the body's last byte to the drop
		rids   []string
		log    []seen
		ends   time.Duration // when nothing is under way any more
	}{
		{
			"the abort goes first, then the socket closes",
			pd.Worker{},
			&engine{}, time.Second, nil,
			[]seen{{"abort r", 1000 * ms}, {"closed", 1000 * ms}},
			1000 * ms,
		}, {
			"an engine that does not answer is closed after 50 ms, and the abort lives for 2 s",
			pd.Worker{},
			&engine{onAbort: deaf}, time.Second, nil,
			[]seen{{"abort r", 1000 * ms}, {"closed", 1050 * ms}},
			3000 * ms,
		}, {
			"an engine that refuses the abort is closed at once",
			pd.Worker{},
			&engine{onAbort: fails}, time.Second, nil,
			[]seen{{"abort r", 1000 * ms}, {"closed", 1000 * ms}},
			1000 * ms,
		}, {
			"a worker that was never reached is not told",
			pd.Worker{},
			&engine{unreached: true}, 0, nil,
			[]seen{{"closed", 0}},
			0,
		}, {
			"a worker that had the call just before the closing is told behind it",
			pd.Worker{},
			&engine{unreached: true, late: true}, 0, nil,
			[]seen{{"closed", 0}, {"abort r", 0}, {"abort r", 500 * ms}},
			500 * ms,
		}, {
			"a worker that is set to close only is not told",
			pd.Worker{CloseOnly: true},
			&engine{}, 0, nil,
			[]seen{{"closed", 0}},
			0,
		}, {
			"nor is one that knows no rid",
			pd.Worker{},
			&engine{}, 0,
			[]string{},
			[]seen{{"closed", 0}},
			0,
		}, {
			"an abort that may have overtaken its request is repeated once, 500 ms later",
			pd.Worker{},
			&engine{}, 100 * ms, nil,
			[]seen{{"abort r", 100 * ms}, {"closed", 100 * ms}, {"abort r", 600 * ms}},
			600 * ms,
		}, {
			"so is one that overtook the body",
			pd.Worker{},
			&engine{half: true}, time.Second, nil,
			[]seen{{"abort r", 1000 * ms}, {"closed", 1000 * ms}, {"abort r", 1500 * ms}},
			1500 * ms,
		}, {
			"so is one that was answered late",
			pd.Worker{},
			&engine{onAbort: slow}, 400 * ms, nil,
			[]seen{{"abort r", 400 * ms}, {"closed", 450 * ms}, {"abort r", 1100 * ms}},
			1300 * ms,
		}, {
			"but not one that was not answered in its 2 s",
			pd.Worker{},
			&engine{onAbort: deaf}, 0, nil,
			[]seen{{"abort r", 0}, {"closed", 50 * ms}},
			2000 * ms,
		}, {
			"every rid of a batch is named",
			pd.Worker{},
			&engine{}, time.Second,
			[]string{"r", "r"},
			[]seen{{"abort r", 1000 * ms}, {"abort r", 1000 * ms}, {"closed", 1000 * ms}},
			1000 * ms,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := tt.engine
				e.start = time.Now()
				rids := tt.rids
				if rids == nil {
					rids = []string{"r"}
				}
				var end ends
				l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(&tt.worker), rids, end.end)
				go run(l, e)
				time.Sleep(tt.after)
				synctest.Wait()
				a := &Aborter{Transport: e}
				a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
				a.Drop(l, pd.Fault, pd.ErrCancelled(pd.StageClient))
				synctest.Wait() // the leg has ended, where it has been closed
				a.Group.Wait()
				synctest.Wait()
				assert.Equal(t, tt.log, e.log)
				assert.Equal(t, tt.ends, time.Since(e.start))
				assert.Equal(t, []pd.Outcome{pd.Echo}, end.outcomes(), "it ends once, with the outcome of its drop")
				assert.Zero(t, a.Pending())
			})
		})
	}
}

func TestAbortIsNotRepeatedWhenTheEngineEndedTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now()}
		var end ends
		l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), []string{"r"}, end.end)
		e.onAbort = func(string, *http.Request) error {
			l.End(pd.Fault, nil) // its 500 came while the abort was being answered
			return nil
		}
		go run(l, e)
		synctest.Wait()
		a := &Aborter{Transport: e}
		a.Drop(l, pd.Left, pd.ErrCancelled(pd.StageClient))
		a.Group.Wait()
		synctest.Wait()
		assert.ElementsMatch(t, []seen{{"abort r", 0}, {"closed", 0}}, e.log)
		assert.Equal(t, []pd.Outcome{pd.Left}, end.outcomes())
	})
}

// A batch is answered when its first item ends, though the abort of another may
// have come before the engine had it.
func TestAbortsOfABatchAreRepeatedAlthoughItWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now()}
		var end ends
		l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), []string{"r", "s"}, end.end)
		e.onAbort = func(string, *http.Request) error {
			l.End(pd.Fault, nil)
			return nil
		}
		go run(l, e)
		synctest.Wait()
		a := &Aborter{Transport: e}
		a.Drop(l, pd.Left, pd.ErrCancelled(pd.StageClient))
		a.Group.Wait()
		told := map[string]int{}
		for _, s := range e.log {
			told[s.what]++
		}
		assert.Equal(t, 2, told["abort r"])
		assert.Equal(t, 2, told["abort s"])
	})
}

func TestLegThatHasEndedIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now()}
		var end ends
		l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), []string{"r"}, end.end)
		l.End(pd.Success, nil)
		a := &Aborter{Transport: e}
		a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
		a.Group.Wait()
		assert.Empty(t, e.log)
		assert.Equal(t, []pd.Outcome{pd.Success}, end.outcomes())
	})
}

func TestAbortsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now(), onAbort: deaf}
		var bounds []string
		a := &Aborter{Transport: e, Max: 2, Bound: func(name string) { bounds = append(bounds, name) }}
		drop := func() *Leg {
			l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), []string{"r"}, new(ends).end)
			go run(l, e)
			synctest.Wait()
			a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
			return l
		}
		drop()
		drop()
		assert.Empty(t, bounds)
		assert.Equal(t, 2, a.Pending())
		l := drop()
		assert.Equal(t, []string{"aborts"}, bounds)
		assert.Equal(t, 2, a.Pending())
		assert.Error(t, l.Context().Err(), "closed at once, without an abort")
		a.Group.Wait()
		assert.Zero(t, a.Pending())
		drop()
		assert.Len(t, bounds, 1, "there is room again")
		a.Group.Wait()
	})
}

func TestAbortCarriesTheWorkersKeyOrElseTheClients(t *testing.T) {
	for key, want := range map[string]string{"": "Bearer client", "own": "Bearer own"} {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{start: time.Now()}
			l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(&pd.Worker{APIKey: key}), []string{"r"}, new(ends).end)
			go run(l, e)
			time.Sleep(time.Second)
			a := &Aborter{Transport: e}
			a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
			a.Group.Wait()
			synctest.Wait()
			assert.Equal(t, []string{want}, e.auth)
		})
	}
}

func TestAbortsOfABatchGoOutAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now(), onAbort: func(string, *http.Request) error {
			time.Sleep(10 * ms)
			return nil
		}}
		rids := make([]string, 20)
		for i := range rids {
			rids[i] = "r"
		}
		l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), rids, new(ends).end)
		go run(l, e)
		time.Sleep(time.Second)
		a := &Aborter{Transport: e}
		a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
		a.Group.Wait()
		synctest.Wait()
		assert.Equal(t, ridsAtOnce, e.most)
		assert.Len(t, e.auth, 20)
	})
}

func TestAbortOutlivesAClientWhoHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now()}
		ctx, leave := context.WithCancel(t.Context())
		l := newLeg(ctx, newRequest(t, `{}`), leaseOn(new(pd.Worker)), []string{"r"}, new(ends).end)
		go run(l, e)
		time.Sleep(time.Second)
		leave()
		synctest.Wait()
		assert.Empty(t, e.log, "the socket does not close before the engine was told")
		a := &Aborter{Transport: e}
		a.Drop(l, pd.Left, pd.ErrCancelled(pd.StageClient))
		a.Group.Wait()
		synctest.Wait()
		assert.Equal(t, []seen{{"abort r", time.Second}, {"closed", time.Second}}, e.log)
	})
}

func TestPanicInAnAbortClosesTheLeg(t *testing.T) {
	for name, rids := range map[string][]string{"one rid": {"r"}, "a batch": {"r", "s", "t"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{start: time.Now(), onAbort: func(string, *http.Request) error { panic("boom") }}
				var end ends
				l := newLeg(t.Context(), newRequest(t, `{}`), leaseOn(new(pd.Worker)), rids, end.end)
				go run(l, e)
				time.Sleep(time.Second)
				var panics atomic.Int32
				a := &Aborter{Transport: e}
				a.Group.Panic = func(v any, stack []byte) {
					panics.Add(1)
					assert.Equal(t, "boom", v)
					assert.NotEmpty(t, stack)
				}
				a.Drop(l, pd.Echo, pd.ErrCancelled(pd.StageClient))
				a.Group.Wait()
				synctest.Wait()
				assert.EqualValues(t, len(rids), panics.Load())
				assert.Equal(t, []pd.Outcome{pd.Echo}, end.outcomes())
				assert.Zero(t, a.Pending())
			})
		})
	}
}

// An engine aborts every request whose rid starts with the one it is told.
func TestRidThatStartsAnothersIsNotAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{start: time.Now()}
		a := &Aborter{Transport: e}
		orch := &pd.Orchestrator{Planner: onWorker{}, Dialect: hangs{a, e}}
		serve := func(rid string) (leave func(), done chan error) {
			ctx, leave := context.WithCancel(t.Context())
			done = make(chan error, 1)
			go func() {
				_, err := orch.Serve(ctx, newRequest(t, `{"rid":"`+rid+`"}`))
				done <- err
			}()
			time.Sleep(time.Second)
			return leave, done
		}
		leaveAB, doneAB := serve("ab")
		leaveA, doneA := serve("a")
		leaveA()
		require.Error(t, <-doneA)
		assert.Equal(t, []seen{{"closed", 2 * time.Second}}, e.log, "sockets only")
		leaveAB()
		require.Error(t, <-doneAB)
		assert.Equal(t, []seen{{"abort ab", 2 * time.Second}, {"closed", 2 * time.Second}}, e.log[1:])
		a.Group.Wait()
	})
}

// onWorker plans everything on one worker.
type onWorker struct{}

func (onWorker) Plan(context.Context, *pd.Request, int, []pd.WorkerID) ([]*pd.Plan, error) {
	return []*pd.Plan{pd.NewPlan(nil, leaseOn(&pd.Worker{ID: "w", Role: pd.Decode}), nil)}, nil
}

// hangs is a dialect whose one leg never answers.
type hangs struct {
	a *Aborter
	e *engine
}

func (hangs) Name() string                     { return "hangs" }
func (hangs) Samples(*pd.Request) (int, error) { return 1, nil }

func (d hangs) Exchange(ctx context.Context, _ *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	gone := pd.ErrCancelled(pd.StageClient)
	l := newLeg(ctx, req, plan.Decode, []string{req.Rid}, func(o pd.Outcome) { plan.End(pd.Unused, o) })
	stop := context.AfterFunc(ctx, func() { d.a.Drop(l, pd.Left, gone) })
	defer stop()
	run(l, d.e)
	return nil, gone
}
