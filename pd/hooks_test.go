package pd

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHooksAreCalledInTheOrderOfEvents(t *testing.T) {
	f := func(name string, exchange func(attempt int, req *Request, plan *Plan) (*Response, error), want ...string) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(exchange)
				_, _ = o.serve(t, `{"text":"a"}`)
				assert.Equal(t, want, o.hooks)
				o.over(t)
			})
		})
	}
	leg := func(req *Request, o Outcome) { req.Leg(workerA, nil, "r").End(o, nil) }
	f("of the third attempt's success", func(attempt int, req *Request, _ *Plan) (*Response, error) {
		switch attempt {
		case 1:
			leg(req, Unused)
			return nil, failing(Stale, "a")
		case 2:
			leg(req, Fault)
			return nil, failing(Failed, "a")
		}
		leg(req, Success)
		return answer("yes"), nil
	}, "planned 1", "leg 1 unused", "retry 1 stale", "planned 2", "leg 2 fault", "retry 2 failed", "planned 3", "leg 3 success", "committed", "done")
	f("of a refusal", func(_ int, req *Request, _ *Plan) (*Response, error) {
		leg(req, ClientFlaw)
		return nil, failing(Refused, "a")
	}, "planned 1", "leg 1 client_error", "done")
}

// Whatever was taken by then is given back; the server above recovers the panic.
func TestAPanicOnTheSecondAttemptEndsTheRequest(t *testing.T) {
	for name, set := range map[string]func(*orchTest){
		"of the dialect": func(o *orchTest) {
			fails := o.exchange
			o.exchange = func(attempt int, req *Request, plan *Plan) (*Response, error) {
				if attempt == 2 {
					panic("boom")
				}
				return fails(attempt, req, plan)
			}
		},
		"of the planner":                       func(o *orchTest) { o.Planner = panics{o} },
		"of the hook that hears of the commit": func(o *orchTest) { o.Hooks.Committed = func(*Request) { panic("boom") } },
		"of the hook that hears of the plan": func(o *orchTest) {
			o.Hooks.Planned = func(_ *Request, attempt int, _ *Plan) {
				if attempt == 2 {
					panic("boom")
				}
			}
		},
		"of the pool": func(o *orchTest) { o.Others = func(*Request, Role, []WorkerID) bool { panic("boom") } },
	} {
		for _, samples := range []int{1, 3} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := newOrchTest(failsOnce(failing(Failed, "a")))
					o.samples = samples
					var panicked any
					o.Hooks.Panic = func(v any, _ []byte) { o.locked(func() { panicked = v }) }
					set(o)
					req, err := NewRequest(Generate, []byte(`{"text":"x","sampling_params":{"n":3}}`))
					require.NoError(t, err)
					func() {
						defer func() {
							if v := recover(); v != nil {
								panicked = v
							}
						}()
						_, _ = o.Serve(t.Context(), req)
					}()
					assert.Equal(t, "boom", panicked)
					o.over(t)
					assert.NotNil(t, o.reports[0].Err)
				})
			})
		}
	}
}

// panics is a planner that panics when somebody is to be avoided.
type panics struct{ Planner }

func (p panics) Plan(ctx context.Context, req *Request, n int, avoid []WorkerID) ([]*Plan, error) {
	if len(avoid) > 0 {
		panic("boom")
	}
	return p.Planner.Plan(ctx, req, n, avoid)
}

// What a failed attempt's samples counted is not the answer's.
func TestReportIsOfTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrchTest(func(attempt int, req *Request, _ *Plan) (*Response, error) {
			leg := req.Leg(workerB, nil, "r")
			leg.First()
			req.Count(5, 3, 1, 2)
			if attempt == 1 {
				return nil, failing(Failed, "b")
			}
			return answer("yes"), nil
		})
		o.Retry.Jitter = -1
		_, err := o.serve(t, `{"text":"a"}`)
		require.Nil(t, err)
		r := o.reports[0]
		assert.Equal(t, [5]int{2, 5, 3, 1, 2}, [5]int{r.Attempts, r.PromptTokens, r.CompletionTokens, r.CachedTokens, r.Events})
		assert.Equal(t, r.Legs[1].First, r.TTFT)
		assert.NotZero(t, r.TTFT)
	})
}
