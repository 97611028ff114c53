package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// orchTest is an orchestrator over a planner and a dialect that do as the test
// says, and count what is given back.
type orchTest struct {
	*Orchestrator
	samples   int
	sampleErr error
	exchange  func(attempt int, req *Request, plan *Plan) (*Response, error)
	planErr   error
	noPlan    bool

	mu       sync.Mutex
	avoided  [][]WorkerID
	fresh    []bool
	taken    int
	released int
	planned  int
	retries  []Kind
	commits  int
	reports  []Report
}

func newOrchTest(exchange func(attempt int, req *Request, plan *Plan) (*Response, error)) *orchTest {
	o := &orchTest{samples: 1, exchange: exchange}
	o.Orchestrator = &Orchestrator{
		Planner: o, Dialect: o, Retry: Retry{MaxAttempts: 5},
		Hooks: Hooks{
			Planned: func(*Request, int, *Plan) { o.locked(func() { o.planned++ }) },
			Retry: func(_ *Request, _ int, err *Error, _ time.Duration) {
				o.locked(func() { o.retries = append(o.retries, err.Kind) })
			},
			Committed: func(*Request) { o.locked(func() { o.commits++ }) },
			Done:      func(_ *Request, r Report) { o.locked(func() { o.reports = append(o.reports, r) }) },
		},
	}
	return o
}

func (o *orchTest) locked(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *orchTest) Name() string                  { return "fake" }
func (o *orchTest) Samples(*Request) (int, error) { return o.samples, o.sampleErr }

func (o *orchTest) Plan(_ context.Context, _ *Request, n int, avoid []WorkerID) ([]*Plan, error) {
	o.locked(func() { o.avoided = append(o.avoided, append([]WorkerID(nil), avoid...)) })
	if o.planErr != nil || o.noPlan {
		return nil, o.planErr
	}
	plans := make([]*Plan, n)
	for i := range plans {
		release := func(Outcome) { o.locked(func() { o.released++ }) }
		plans[i] = NewPlan(NewLease(workerA, release, nil), NewLease(workerB, release, nil), nil)
		o.taken += 2
	}
	return plans, nil
}

func (o *orchTest) Exchange(_ context.Context, up *Upstream, req *Request, plan *Plan) (*Response, error) {
	o.locked(func() { o.fresh = append(o.fresh, up.fresh) })
	resp, err := o.exchange(req.Attempt, req, plan)
	if err != nil {
		plan.End(Echo, Fault)
		return nil, err
	}
	resp.Body = &endBody{ReadCloser: resp.Body, end: func(error) { plan.End(Success, Success) }}
	return resp, nil
}

func answer(text string) *Response {
	return &Response{Status: 200, Length: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}
}

func (o *orchTest) serve(t *testing.T, body string) (string, *Error) {
	t.Helper()
	req, err := NewRequest(Generate, []byte(body))
	require.NoError(t, err)
	resp, err := o.Serve(t.Context(), req)
	if err != nil {
		return "", AsError(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b), nil
}

// over asserts what holds after every request: all is given back, nothing is
// live, and the end was told once.
func (o *orchTest) over(t *testing.T) {
	t.Helper()
	assert.Equal(t, o.taken, o.released, "leases")
	assert.Empty(t, o.live.calls)
	assert.Len(t, o.reports, 1, "Done is called once")
}

func failing(kind Kind, w WorkerID) *Error { return &Error{Kind: kind, Worker: w, Status: 500} }

func TestServeAttempts(t *testing.T) {
	tests := []struct {
		name    string
		limit   int
		fails   []*Error // what each attempt comes to; a further one answers
		made    int
		err     Kind // of the answer, when not all attempts were spent
		ok      bool
		fresh   []bool
		avoided [][]WorkerID
	}{
		{"the first answers", 5, nil, 1, 0, true, []bool{false}, [][]WorkerID{nil}},
		{"a limit of one by default", 0, []*Error{failing(Failed, "a")}, 1, Failed, false, []bool{false}, [][]WorkerID{nil}},
		{
			"failed workers are avoided from then on", 5,
			[]*Error{failing(Failed, "a"), failing(Unavailable, "b")},
			3, 0, true,
			[]bool{false, false, false},
			[][]WorkerID{nil, {"a"}, {"a", "b"}},
		},
		{
			"a stale connection is resent on a fresh one, beyond the limit, blaming nobody", 1,
			[]*Error{failing(Stale, "a")},
			2, 0, true,
			[]bool{false, true},
			[][]WorkerID{nil, nil},
		},
		{"but once", 1, []*Error{failing(Stale, "a"), failing(Stale, "a")}, 2, Stale, false, []bool{false, true}, [][]WorkerID{nil, nil}},
		{"a body that may have run runs once more", 5, []*Error{failing(Lost, "a"), failing(Lost, "b")}, 2, Lost, false, []bool{false, false}, [][]WorkerID{nil, {"a"}}},
		{"however it was lost", 5, []*Error{failing(Broken, "a"), failing(Broken, "b")}, 2, Broken, false, []bool{false, false}, [][]WorkerID{nil, {"a"}}},
		{"a refusal is final", 5, []*Error{failing(Refused, "a")}, 1, Refused, false, []bool{false}, [][]WorkerID{nil}},
		{"a deadline is final", 5, []*Error{failing(Deadline, "a")}, 1, Deadline, false, []bool{false}, [][]WorkerID{nil}},
		{
			"five and no more", 5,
			[]*Error{failing(Failed, "1"), failing(Failed, "2"), failing(Failed, "3"), failing(Failed, "4"), failing(Failed, "5")},
			5, Failed, false,
			[]bool{false, false, false, false, false},
			[][]WorkerID{nil, {"1"}, {"1", "2"}, {"1", "2", "3"}, {"1", "2", "3", "4"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
				if attempt <= len(tt.fails) {
					return nil, tt.fails[attempt-1]
				}
				return answer("yes"), nil
			})
			o.Retry.MaxAttempts = tt.limit
			text, err := o.serve(t, `{"text":"a"}`)
			if tt.ok {
				require.Nil(t, err)
				assert.Equal(t, "yes", text)
				assert.Equal(t, 1, o.commits)
			} else {
				require.NotNil(t, err)
				assert.Equal(t, tt.err, err.Kind)
				assert.Zero(t, o.commits)
			}
			o.over(t)
			assert.Equal(t, tt.made, o.reports[0].Attempts)
			assert.Equal(t, tt.made, o.planned)
			assert.Len(t, o.retries, tt.made-1)
			assert.Equal(t, tt.fresh, o.fresh)
			assert.Equal(t, tt.avoided, o.avoided)
			assert.Equal(t, err, o.reports[0].Err)
		})
	}
}

// pool is an Orchestrator's Others over workers that all take work.
func pool(workers ...*Worker) func(Role, []WorkerID) bool {
	return func(role Role, avoid []WorkerID) bool {
		return slices.ContainsFunc(workers, func(w *Worker) bool {
			return w.Role == role && !slices.Contains(avoid, w.ID)
		})
	}
}

func TestABusyOrAbsentWorkerIsLeftForAnother(t *testing.T) {
	three := pool(&Worker{ID: "prefill-1", Role: Prefill}, &Worker{ID: "prefill-2", Role: Prefill}, &Worker{ID: "decode-1", Role: Decode})
	for _, tt := range []struct {
		name   string
		busy   Stage
		others func(Role, []WorkerID) bool
		made   int
	}{
		{"while one of its role is left", StagePrefill, three, 2},
		{"but not for one of the other role", StageDecode, three, 1},
		{"while the limit allows, where it is not known who is left", StagePrefill, nil, 5},
	} {
		for _, kind := range []Kind{Overload, Unavailable} {
			t.Run(kind.String()+": "+tt.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
						busy := WorkerID(fmt.Sprintf("%s-%d", tt.busy, attempt))
						return nil, &Error{Kind: kind, Stage: tt.busy, Worker: busy, Status: 429, Body: []byte("{}"), RetryAfter: "7"}
					})
					o.Others = tt.others
					_, err := o.serve(t, `{"text":"a"}`)
					require.NotNil(t, err)
					assert.Equal(t, [3]any{429, "{}", "7"}, [3]any{err.Status, string(err.Body), err.RetryAfter}, "passed on as it was")
					o.over(t)
					assert.Equal(t, tt.made, o.reports[0].Attempts)
				})
			})
		}
	}
}

func TestServeFailsBeforeAnyAttempt(t *testing.T) {
	never := func(int, *Request, *Plan) (*Response, error) { panic("BUG: an exchange") }
	f := func(name string, set func(*orchTest), kind Kind, status int, plans int) {
		t.Run(name, func(t *testing.T) {
			o := newOrchTest(never)
			set(o)
			_, err := o.serve(t, `{"text":"a"}`)
			require.NotNil(t, err)
			assert.Equal(t, kind, err.Kind)
			assert.Equal(t, status, err.Status)
			assert.Len(t, o.avoided, plans)
			o.over(t)
			assert.Zero(t, o.reports[0].Attempts)
		})
	}
	f("the dialect refuses the body", func(o *orchTest) { o.sampleErr = InvalidField("session_id", "no") }, Invalid, 400, 0)
	f("more samples than allowed by default", func(o *orchTest) { o.samples = 129 }, Invalid, 400, 0)
	f("more samples than allowed", func(o *orchTest) { o.samples, o.MaxSamples = 5, 4 }, Invalid, 400, 0)
	f("more samples of all prompts than allowed", func(o *orchTest) { o.samples, o.MaxSamples = maxItems+1, maxItems+1 }, Invalid, 400, 0)
	f("no worker", func(o *orchTest) { o.planErr = &Error{Kind: NoWorker, Status: 503} }, NoWorker, 503, 1)
	f("a foreign error of the planner", func(o *orchTest) { o.planErr = errors.New("boom") }, Internal, 500, 1)
	f("a planner without a plan", func(o *orchTest) { o.noPlan = true }, Internal, 500, 1)
}

func TestServeOfAClientWhoHasLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := newOrchTest(func(int, *Request, *Plan) (*Response, error) {
		cancel()
		return nil, failing(Failed, "a")
	})
	req, err := NewRequest(Generate, []byte(`{"text":"a"}`))
	require.NoError(t, err)
	_, err = o.Serve(ctx, req)
	assert.Equal(t, Cancelled, AsError(err).Kind, "nothing is tried again")
	assert.Equal(t, 1, o.planned)
	o.over(t)
}

func TestBodyIsLiveUntilItIsClosed(t *testing.T) {
	o := newOrchTest(func(int, *Request, *Plan) (*Response, error) { return answer("yes"), nil })
	req, err := NewRequest(Generate, []byte(`{"text":"a","rid":"mine"}`))
	require.NoError(t, err)
	resp, err := o.Serve(t.Context(), req)
	require.NoError(t, err)
	assert.Len(t, o.live.calls, 1)
	assert.Empty(t, o.reports)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, resp.Body.Close())
	o.over(t)
	assert.Equal(t, Cancelled, o.reports[0].Err.Kind, "closed before its end")
	assert.NotZero(t, o.reports[0].Commit)
}

// A client's own rid travels with every attempt, so that the next one waits for
// the engines to forget the one before.
func TestRetryWithAClientsRidWaitsForTheAttemptBefore(t *testing.T) {
	f := func(name, body string, held, want time.Duration) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(func(attempt int, req *Request, _ *Plan) (*Response, error) {
					if attempt > 1 {
						return answer("yes"), nil
					}
					h := req.Hold(workerA, []string{"mine"})
					time.AfterFunc(held, h.Release)
					return nil, failing(Unavailable, "b")
				})
				start := time.Now()
				_, err := o.serve(t, body)
				require.Nil(t, err)
				assert.Equal(t, want, time.Since(start))
				time.Sleep(held)
				synctest.Wait()
				o.over(t)
			})
		})
	}
	f("as long as it takes", `{"text":"a","rid":"mine"}`, 300*time.Millisecond, 300*time.Millisecond)
	f("two seconds at most", `{"text":"a","rid":"mine"}`, time.Minute, ridSettle)
	f("a list of rids too", `{"text":["a"],"rid":["mine"]}`, 300*time.Millisecond, 300*time.Millisecond)
	f("not for a rid of ours", `{"text":"a"}`, 300*time.Millisecond, 0)
}

func TestDuplicateRidAfterAResendIsNotFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := []*Error{failing(Stale, "a"), {Kind: Refused, Code: CodeDuplicateRid, Worker: "a", Status: 400}}
		o := newOrchTest(func(attempt int, _ *Request, _ *Plan) (*Response, error) {
			if attempt <= len(fails) {
				return nil, fails[attempt-1]
			}
			return answer("yes"), nil
		})
		o.Retry.MaxAttempts = 1
		text, err := o.serve(t, `{"text":"a","rid":"mine"}`)
		require.Nil(t, err)
		assert.Equal(t, "yes", text)
		assert.Equal(t, 3, o.planned)
		o.over(t)
	})
}

func TestAbortedRequestIsNotTriedAgain(t *testing.T) {
	f := func(name string, abort func(o *orchTest, req *Request)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrchTest(nil)
				o.exchange = func(_ int, req *Request, _ *Plan) (*Response, error) {
					abort(o, req)
					return nil, failing(Unavailable, "a")
				}
				_, err := o.serve(t, `{"text":"a","rid":"mine"}`)
				require.NotNil(t, err)
				assert.Equal(t, 1, o.planned)
				time.Sleep(time.Minute)
				synctest.Wait()
				o.over(t)
			})
		})
	}
	f("aborted while it runs", func(o *orchTest, _ *Request) { o.live.mark("mine", false) })
	f("aborted while the next attempt waits", func(o *orchTest, req *Request) {
		h := req.Hold(workerA, []string{"mine"})
		time.AfterFunc(100*time.Millisecond, func() { o.live.mark("mine", false) })
		time.AfterFunc(200*time.Millisecond, h.Release)
	})
}

func TestReportOfLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []LegReport
		o := newOrchTest(func(_ int, req *Request, _ *Plan) (*Response, error) {
			leg := req.Leg(workerA, []uint64{7}, "rid")
			time.Sleep(time.Second)
			leg.Headers(200)
			leg.First()
			time.Sleep(time.Second)
			leg.First()
			leg.End(Success, nil)
			leg.End(Fault, nil)
			req.Leg(workerB, []uint64{7}, "rid").First()
			req.Count(5, 3, 2, 4)
			req.Count(5, 2, 0, 1)
			return answer("yes"), nil
		})
		o.Hooks.Leg = func(_ *Request, l LegReport) { told = append(told, l) }
		_, err := o.serve(t, `{"text":"a"}`)
		require.Nil(t, err)
		o.over(t)
		ended := LegReport{
			Worker: "a", Role: Prefill, Attempt: 1, Rooms: []uint64{7}, Rid: "rid", Status: 200,
			Headers: time.Second, First: time.Second, End: 2 * time.Second, Outcome: Success,
		}
		assert.Equal(t, []LegReport{ended}, told)
		r := o.reports[0]
		assert.Equal(t, []LegReport{ended, {Worker: "b", Role: Decode, Attempt: 1, Rooms: []uint64{7}, Rid: "rid", Sent: 2 * time.Second, First: 2 * time.Second}}, r.Legs)
		assert.Equal(t, [3]int{5, 5, 2}, [3]int{r.PromptTokens, r.CompletionTokens, r.CachedTokens}, "the prompt counts once")
		assert.Equal(t, 5, r.Events)
		assert.Equal(t, 2*time.Second, r.TTFT)
		assert.Equal(t, 2*time.Second, r.Commit)
	})
}

func TestPanicOfADialectEndsTheRequest(t *testing.T) {
	o := newOrchTest(func(int, *Request, *Plan) (*Response, error) { panic("boom") })
	req, err := NewRequest(Generate, []byte(`{"text":"x"}`))
	require.NoError(t, err)
	assert.Panics(t, func() { _, _ = o.Serve(t.Context(), req) }, "the server above recovers it")
	o.over(t)
	assert.Equal(t, Internal, o.reports[0].Err.Kind)
}
