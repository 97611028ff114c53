package pd

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failsOnce is an exchange that fails with err and answers from then on.
func failsOnce(err *Error) func(int, *Request, *Plan) (*Response, error) {
	return func(attempt int, _ *Request, _ *Plan) (*Response, error) {
		if attempt == 1 {
			return nil, err
		}
		return answer("{}"), nil
	}
}

func TestARepeatWaitsAndAFailoverDoesNot(t *testing.T) {
	f := func(name string, want time.Duration, fails ...*Error) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
					if attempt <= len(fails) {
						return nil, fails[attempt-1]
					}
					return answer("yes"), nil
				})
				o.Retry = Retry{MaxAttempts: 5, InitialBackoff: time.Second, Multiplier: 2, Jitter: -1}
				start := time.Now()
				_, err := o.serve(t, `{"text":"a"}`)
				require.Nil(t, err)
				assert.Equal(t, want, time.Since(start))
				told := time.Duration(0)
				for _, w := range o.waits {
					told += w
				}
				assert.Equal(t, want, told, "what the hook is told")
				o.over(t)
			})
		})
	}
	f("a failure", time.Second, failing(Failed, "a"))
	f("each longer than the one before", 7*time.Second, failing(Failed, "a"), failing(Failed, "b"), failing(Failed, "c"))
	f("a busy worker", time.Second, failing(Overload, "a"))
	f("a body that may have run", time.Second, failing(Lost, "a"))
	f("a worker that is not there", 0, failing(Unavailable, "a"), failing(Unavailable, "b"))
	f("a stale connection", 0, failing(Stale, "a"))
	f("a resend is no step of the growth", time.Second, failing(Stale, "a"), failing(Failed, "a"))
}

func TestABudgetThatIsSpentLeavesTheFailureAsItWas(t *testing.T) {
	busy := &Error{Kind: Overload, Stage: StageDecode, Worker: "d", Status: 429, Body: []byte(`{"busy":1}`), RetryAfter: "9"}
	for name, tt := range map[string]struct {
		err    *Error
		made   int
		bounds []string
	}{
		"a failure":                             {failing(Failed, "a"), 1, []string{"retry_budget"}},
		"a busy worker, with its own words":     {busy, 1, []string{"retry_budget"}},
		"a worker that is not there needs none": {failing(Unavailable, "a"), 2, nil},
		"a stale connection needs none":         {failing(Stale, "a"), 2, nil},
		"a refusal asks for none":               {failing(Refused, "a"), 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(failsOnce(tt.err))
				o.Retry.Budget = &Budget{Floor: -1}
				_, err := o.serve(t, `{"text":"a"}`)
				assert.Equal(t, tt.made, o.planned)
				assert.Equal(t, tt.bounds, o.bounds)
				assert.Len(t, o.retries, tt.made-1, "a repeat that is refused is none")
				if tt.made == 1 {
					assert.Same(t, tt.err, err)
				}
				o.over(t)
			})
		})
	}
}

func TestEveryRequestFillsTheBudgetOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrchTest(failsOnce(failing(Failed, "a")))
		o.Retry.Budget = &Budget{Percent: 50, Floor: -1}
		want := []int{1, 2, 1, 2, 1, 2}
		for i, attempts := range want {
			_, _ = o.serve(t, `{"text":"a"}`)
			assert.Equal(t, attempts, o.reports[i].Attempts, "request %d", i)
		}
	})
}

func TestARepeatThatWouldComeTooLateIsNotMade(t *testing.T) {
	f := func(name string, took time.Duration, kind Kind, made int) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
					if attempt == 1 {
						time.Sleep(took)
						return nil, failing(kind, "a")
					}
					return answer("yes"), nil
				})
				o.Retry = Retry{MaxAttempts: 5, InitialBackoff: 3 * time.Second, Jitter: -1, Budget: new(Budget)}
				o.Upstream.Deadlines.Request = 10 * time.Second
				start := time.Now()
				_, err := o.serve(t, `{"text":"a"}`)
				assert.Equal(t, made, o.planned)
				if made == 1 {
					require.NotNil(t, err)
					assert.Equal(t, kind, err.Kind)
					assert.Equal(t, took, time.Since(start), "nor waited for")
					assert.Empty(t, o.retries)
					assert.Equal(t, 30, taken(o.Retry.Budget, 100), "nor taken from the budget")
				}
				o.over(t)
			})
		})
	}
	f("in time", 6*time.Second, Failed, 2)
	f("too late with the wait", 7*time.Second, Failed, 1)
	f("in time without a wait", 9*time.Second, Unavailable, 2)
	f("too late already", 10*time.Second, Unavailable, 1)
}

// The router may have it wait for its turn for as long as a request may take.
func TestTimeSpentInAQueueTakesNoAttemptAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrchTest(failsOnce(failing(Stale, "a")))
		o.Upstream.Deadlines.Request = time.Minute
		req, err := NewRequest(Generate, []byte(`{"text":"a"}`))
		require.NoError(t, err)
		req.Start = time.Now()
		time.Sleep(time.Hour)
		_, failed := o.run(t.Context(), t, req)
		assert.Nil(t, failed)
		assert.Equal(t, 2, o.planned)
		o.over(t)
	})
}

// The legs of the failed attempt are still being closed when the wait begins.
func TestTheWaitEndsWithTheRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(o *orchTest, leave context.CancelFunc)
		kind Kind
		code string
	}{
		"the client leaves":  {func(_ *orchTest, leave context.CancelFunc) { leave() }, Cancelled, "client_closed_request"},
		"an abort names it":  {func(o *orchTest, _ context.CancelFunc) { o.live.mark("mine", false) }, Aborted, "request_aborted"},
		"an abort names all": {func(o *orchTest, _ context.CancelFunc) { o.live.mark("", true) }, Aborted, "request_aborted"},
	} {
		for _, kind := range []Kind{Failed, Unavailable} { // one waits for the next attempt, both for the rid
			t.Run(name+" behind "+kind.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var closed atomic.Bool
					o := newOrchTest(nil)
					o.exchange = func(_ int, req *Request, _ *Plan) (*Response, error) {
						h := req.Hold(workerA, []string{"mine"})
						time.AfterFunc(1500*time.Millisecond, func() { h.Release(); closed.Store(true) })
						return nil, failing(kind, "a")
					}
					o.Retry.InitialBackoff = time.Minute
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					time.AfterFunc(time.Second, func() { tt.end(o, leave) })
					req, err := NewRequest(Generate, []byte(`{"text":"a","rid":"mine"}`))
					require.NoError(t, err)
					start := time.Now()
					_, failed := o.run(ctx, t, req)
					require.NotNil(t, failed)
					assert.Equal(t, time.Second, time.Since(start))
					assert.Equal(t, tt.kind, failed.Kind)
					assert.Equal(t, tt.code, failed.Code)
					assert.Equal(t, 1, o.planned, "nothing is dispatched then")
					time.Sleep(time.Second)
					assert.True(t, closed.Load())
					o.over(t)
				})
			})
		}
	}
}

func TestAnAbortOfOneOfABatchEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrchTest(failsOnce(failing(Failed, "a")))
		o.Retry.InitialBackoff = time.Minute
		time.AfterFunc(time.Second, func() { assert.Empty(t, o.live.mark("two", false), "no engine has it") })
		_, err := o.serve(t, `{"text":["a","b"],"rid":["one","two"]}`)
		require.NotNil(t, err)
		assert.Equal(t, Aborted, err.Kind)
		o.over(t)
	})
}

func TestWhoTakesOverNobodyPlansForShowsTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &Error{Kind: Overload, Stage: StageDecode, Worker: "d", Status: 503, Body: []byte(`{"full":1}`), RetryAfter: "3"}
		o := newOrchTest(nil)
		o.exchange = func(int, *Request, *Plan) (*Response, error) {
			o.planErr = &Error{Kind: NoWorker, Status: 503}
			return nil, first
		}
		_, err := o.serve(t, `{"text":"a"}`)
		assert.Same(t, first, err)
		assert.Equal(t, [][]WorkerID{nil, {"d"}}, o.avoided)
		o.over(t)
		assert.Equal(t, 1, o.reports[0].Attempts)
	})
}
