package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	waits    []time.Duration
	hooks    []string // in the order in which they were called
	bounds   []string
	ctx      context.Context // of the present attempt
	commits  int
	reports  []Report
}

func newOrchTest(exchange func(attempt int, req *Request, plan *Plan) (*Response, error)) *orchTest {
	o := &orchTest{samples: 1, exchange: exchange}
	o.Orchestrator = &Orchestrator{
		Planner: o, Dialect: o, Retry: Retry{MaxAttempts: 5},
	}
	told := func(format string, args ...any) { o.hooks = append(o.hooks, fmt.Sprintf(format, args...)) }
	o.Hooks = Hooks{
		Planned: func(_ *Request, n int, _ *Plan) {
			o.locked(func() { o.planned++; told("planned %d", n) })
		},
		Leg: func(_ *Request, l LegReport) { o.locked(func() { told("leg %d %s", l.Attempt, l.Outcome) }) },
		Retry: func(_ *Request, n int, err *Error, wait time.Duration) {
			o.locked(func() {
				o.retries, o.waits = append(o.retries, err.Kind), append(o.waits, wait)
				told("retry %d %s", n, err.Kind)
			})
		},
		Committed: func(*Request) { o.locked(func() { o.commits++; told("committed") }) },
		Done:      func(_ *Request, r Report) { o.locked(func() { o.reports = append(o.reports, r); told("done") }) },
		Bound:     func(name string) { o.locked(func() { o.bounds = append(o.bounds, name) }) },
	}
	return o
}

func (o *orchTest) locked(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// attemptCtx is the context that the latest exchange was given.
func (o *orchTest) attemptCtx() (ctx context.Context) {
	o.locked(func() { ctx = o.ctx })
	return ctx
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

func (o *orchTest) Exchange(ctx context.Context, up *Upstream, req *Request, plan *Plan) (*Response, error) {
	o.locked(func() { o.ctx, o.fresh = ctx, append(o.fresh, up.fresh) })
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
	return o.run(t.Context(), t, req)
}

func (o *orchTest) run(ctx context.Context, t *testing.T, req *Request) (string, *Error) {
	t.Helper()
	resp, err := o.Serve(ctx, req)
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
