package pd

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fanTest is a fan-out over exchanges that do what the test tells them.
type fanTest struct {
	t       *testing.T
	o       *Orchestrator
	req     *Request
	plans   []*Plan
	samples []*fakeSample
	cancel  context.CancelFunc // the client leaves

	resp *Response
	err  error
	done bool // fanOut has returned

	mu       sync.Mutex
	released []int // leases given back, by sample
	ends     [][]Outcome
	bounds   []string
	panics   []any
}

// fakeSample is one exchange. The test commits or refuses it, then plays the
// engine's side of its body.
type fakeSample struct {
	verdict chan any // *Response, an error, or a value to panic with
	body    *io.PipeWriter

	// Set by the exchange.
	req    *Request
	opened *fakeBody
	left   bool // its context was cancelled before the verdict
}

const (
	generateBody = `{"text":"hi","sampling_params":{"n":3}}`
	generateSSE  = `{"text":"hi","sampling_params":{"n":3},"stream":true}`
	chatSSE      = `{"messages":[],"n":3,"stream":true}`
)

// fanOut starts a fan-out and returns when nothing in it moves any more.
func fanOut(t *testing.T, ep Endpoint, body string, n int, set ...func(*fanTest)) *fanTest {
	t.Helper()
	req, err := NewRequest(ep, []byte(body))
	require.NoError(t, err)
	f := &fanTest{t: t, req: req, released: make([]int, n), ends: make([][]Outcome, n)}
	req.Rid = "call-1"
	f.o = &Orchestrator{Hooks: Hooks{
		Bound: func(name string) { f.locked(func() { f.bounds = append(f.bounds, name) }) },
		Panic: func(v any, stack []byte) { f.locked(func() { f.panics = append(f.panics, v) }) },
	}}
	for j := range n {
		release := func(Outcome) { f.locked(func() { f.released[j]++ }) }
		f.plans = append(f.plans, NewPlan(NewLease(&Worker{ID: "p"}, release, nil), NewLease(&Worker{ID: "d"}, release, nil),
			func(p, d Outcome) { f.locked(func() { f.ends[j] = append(f.ends[j], p, d) }) }))
		f.samples = append(f.samples, &fakeSample{verdict: make(chan any, 1)})
	}
	for _, s := range set {
		s(f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.cancel = cancel
	go func() {
		resp, err := f.o.fanOut(ctx, f.req, f.plans, f.exchange)
		f.locked(func() { f.resp, f.err, f.done = resp, err, true })
	}()
	synctest.Wait()
	return f
}

func (f *fanTest) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fanTest) exchange(ctx context.Context, req *Request, plan *Plan) (*Response, error) {
	s := f.samples[req.SampleIndex]
	s.req = req
	var verdict any
	select {
	case verdict = <-s.verdict:
	case <-ctx.Done():
		s.left = true
		verdict = ErrCancelled(StageClient)
	}
	switch v := verdict.(type) {
	case *Response:
		s.opened = newFakeBody(ctx, v.Body, plan)
		resp := *v
		resp.Body = s.opened
		return &resp, nil
	case error:
		plan.End(Echo, Echo)
		return nil, v
	default:
		panic(v)
	}
}

// fakeBody ends with its context, and its plan with it.
type fakeBody struct {
	io.ReadCloser
	plan   *Plan
	stop   func() bool
	closed bool
}

func newFakeBody(ctx context.Context, body io.ReadCloser, plan *Plan) *fakeBody {
	stop := context.AfterFunc(ctx, func() {
		if r, ok := body.(*io.PipeReader); ok {
			_ = r.CloseWithError(ErrCancelled(StageClient))
		}
	})
	return &fakeBody{ReadCloser: body, plan: plan, stop: stop}
}

func (b *fakeBody) Close() error {
	b.closed = true
	b.stop()
	b.plan.End(Success, Success)
	return b.ReadCloser.Close()
}

// say is a verdict for sample j.
func (f *fanTest) say(j int, verdict any) {
	f.samples[j].verdict <- verdict
	synctest.Wait()
}

func (f *fanTest) commit(j int) {
	r, w := io.Pipe()
	f.samples[j].body = w
	contentType := "application/json"
	if f.req.Stream {
		contentType = "text/event-stream; charset=utf-8"
	}
	f.say(j, &Response{
		Status: http.StatusOK, Stream: f.req.Stream, Length: -1, Body: r,
		Header: http.Header{"Content-Type": {contentType}, "X-Sample": {string(rune('0' + j))}},
	})
}

// answer commits sample j with a whole plain body.
func (f *fanTest) answer(j int, body string) {
	f.commit(j)
	f.write(j, body)
	f.end(j, nil)
}

// write plays sample j's engine. It does not wait for the bytes to be read.
func (f *fanTest) write(j int, text string) (written func() bool) {
	f.t.Helper()
	var mu sync.Mutex
	all := false
	go func() {
		_, err := f.samples[j].body.Write([]byte(text))
		mu.Lock()
		defer mu.Unlock()
		all = err == nil
	}()
	synctest.Wait()
	return func() bool { mu.Lock(); defer mu.Unlock(); return all }
}

// end ends sample j's body, whole when err is nil.
func (f *fanTest) end(j int, err error) {
	_ = f.samples[j].body.CloseWithError(err)
	synctest.Wait()
}

// read is what the next Read of the answer gives.
func (f *fanTest) read() string {
	f.t.Helper()
	buf := make([]byte, 4096)
	n, err := f.resp.Body.Read(buf)
	require.NoError(f.t, err)
	return string(buf[:n])
}

// failed requires that the attempt has failed with err and everything was given back.
func (f *fanTest) failed(err error) {
	f.t.Helper()
	require.True(f.t, f.done)
	require.Nil(f.t, f.resp)
	require.ErrorIs(f.t, f.err, err)
	f.settled()
}

// settled requires that every plan has ended, both leases are back and every body is closed.
func (f *fanTest) settled() {
	f.t.Helper()
	synctest.Wait()
	f.givenBack()
}

// givenBack requires the same of this very moment.
func (f *fanTest) givenBack() {
	f.t.Helper()
	for j, s := range f.samples {
		assert.Equal(f.t, 2, f.released[j], "leases of sample %d", j)
		assert.Len(f.t, f.ends[j], 2, "outcomes of sample %d", j)
		if s.opened != nil {
			assert.True(f.t, s.opened.closed, "body of sample %d", j)
		}
	}
}

func refusal(code string) *Error {
	return &Error{Stage: StageDecode, Worker: "d", Kind: Failed, Status: 500, Code: code, Message: "it failed"}
}
