package pd

import (
	"context"
	"io"
	"net/http"
	"strings"
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
		release := func() { f.locked(func() { f.released[j]++ }) }
		f.plans = append(f.plans, NewPlan(NewLease(&Worker{ID: "p"}, release), NewLease(&Worker{ID: "d"}, release),
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

func TestFanOutRunsEverySampleAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, `{"text":"hi","sampling_params":{"n":3,"sampling_seed":40}}`, 3)
		for j, s := range f.samples {
			require.NotNil(t, s.req)
			assert.Equal(t, j, s.req.SampleIndex)
			assert.JSONEq(t, `{"text":"hi","sampling_params":{"n":1,"sampling_seed":4`+string(rune('0'+j))+`}}`, string(s.req.Edit.Payload().Bytes()))
		}
		f.answer(2, `{"s":2}`)
		f.answer(0, `{"s":0}`)
		assert.False(t, f.done, "a plain answer waits for all samples")
		f.answer(1, `{"s":1}`)
		require.NoError(t, f.err)
		body, err := io.ReadAll(f.resp.Body)
		require.NoError(t, err)
		require.NoError(t, f.resp.Body.Close())
		assert.Equal(t, `[{"s":0},{"s":1},{"s":2}]`, string(body))
		assert.Equal(t, http.StatusOK, f.resp.Status)
		assert.EqualValues(t, len(body), f.resp.Length)
		assert.False(t, f.resp.Stream)
		assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "X-Sample": {"0"}}, f.resp.Header)
		f.settled()
	})
}

func TestFanOutOfABadSeedNeverRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Chat, `{"messages":[],"n":2,"seed":9223372036854775807}`, 2)
		require.True(t, f.done)
		assert.Equal(t, Invalid, AsError(f.err).Kind)
		for j, s := range f.samples {
			assert.Nil(t, s.req)
			assert.Equal(t, []Outcome{Unused, Unused}, f.ends[j])
		}
		f.settled()
	})
}

// Before the commit the first failing sample fails the attempt.
func TestFanOutFailsWithItsFirstSample(t *testing.T) {
	failed := refusal("first")
	for name, body := range map[string]string{"plain": generateBody, "stream": generateSSE} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fanOut(t, Generate, body, 3)
				f.say(1, failed)
				assert.True(t, f.samples[0].left, "the others are cancelled")
				assert.True(t, f.samples[2].left, "the others are cancelled")
				f.failed(failed)
			})
		})
		t.Run(name+", with an error of no kind", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fanOut(t, Generate, body, 3)
				f.say(0, io.ErrUnexpectedEOF)
				assert.Equal(t, Internal, AsError(f.err).Kind)
				f.failed(io.ErrUnexpectedEOF)
			})
		})
		t.Run(name+", when the client leaves", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fanOut(t, Generate, body, 3)
				f.cancel()
				synctest.Wait()
				assert.Equal(t, Cancelled, AsError(f.err).Kind)
				f.failed(f.err)
			})
		})
	}
}

func TestFanOutPrefersARealFailureToACancelledSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := refusal("real")
		late := make(chan struct{})
		req, err := NewRequest(Generate, []byte(generateBody))
		require.NoError(t, err)
		resp, got := new(Orchestrator).fanOut(t.Context(), req, []*Plan{NewPlan(nil, nil, nil), NewPlan(nil, nil, nil)},
			func(ctx context.Context, req *Request, plan *Plan) (*Response, error) {
				defer plan.End(Echo, Echo)
				if req.SampleIndex == 0 {
					close(late)
					return nil, ErrCancelled(StageClient)
				}
				<-late
				<-ctx.Done()
				return nil, failed
			})
		assert.Nil(t, resp)
		assert.Same(t, failed, got)
	})
}

func TestPlainFanOutClosesAnswersThatNobodyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := refusal("late")
		f := fanOut(t, Generate, generateBody, 3)
		f.commit(0)
		f.write(0, `{"text":`)
		f.answer(1, `{}`)
		f.say(2, failed)
		f.failed(failed)
	})
}

func TestPlainFanOutFailsWithABodyThatIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := refusal("lost")
		f := fanOut(t, Generate, generateBody, 2)
		f.answer(0, `{}`)
		f.commit(1)
		f.write(1, `{"text":`)
		f.end(1, lost)
		f.failed(lost)
	})
}

func TestPlainFanOutRefusesAnswersThatDoNotMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateBody, 2)
		f.answer(0, `{}`)
		f.answer(1, `oops`)
		assert.Equal(t, "bad_answer", AsError(f.err).Code)
		assert.Equal(t, Broken, AsError(f.err).Kind)
		f.failed(f.err)
	})
}

func TestPlainFanOutBoundsAllAnswersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateBody, 3, func(f *fanTest) { f.o.MaxAnswer = 20 })
		f.answer(0, `{"text":"ten"}`)
		f.commit(1)
		f.write(1, `{"tex`)
		assert.False(t, f.done)
		f.write(1, `t":"`)
		e := AsError(f.err)
		assert.Equal(t, "answer_too_large", e.Code)
		assert.Equal(t, Broken, e.Kind)
		assert.Equal(t, http.StatusBadGateway, e.Status)
		assert.Equal(t, []string{"answer"}, f.bounds)
		f.failed(f.err)
	})
}

func TestPlainFanOutFillsItsBoundToTheLastByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateBody, 2, func(f *fanTest) { f.o.MaxAnswer = 14 })
		f.answer(0, `{"a":1}`)
		f.answer(1, `{"a":2}`)
		require.NoError(t, f.err)
		assert.Empty(t, f.bounds)
		f.settled()
	})
}

func TestFanOutRefusesAnAnswerOfAnotherForm(t *testing.T) {
	for name, f := range map[string]struct {
		body string
		resp Response
	}{
		"JSON for a stream":      {generateSSE, Response{Status: 200}},
		"a stream for JSON":      {generateBody, Response{Status: 200, Stream: true}},
		"a status of its own":    {generateBody, Response{Status: 202}},
		"a stream with a status": {generateSSE, Response{Status: 206, Stream: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ft := fanOut(t, Generate, f.body, 2)
				resp := f.resp
				resp.Body = io.NopCloser(strings.NewReader(`{}`))
				ft.say(0, &resp)
				assert.Equal(t, Broken, AsError(ft.err).Kind)
				ft.failed(ft.err)
			})
		})
	}
}

func TestFanOutSurvivesAPanicInASample(t *testing.T) {
	for name, body := range map[string]string{"plain": generateBody, "stream": generateSSE} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := fanOut(t, Generate, body, 2)
				f.say(1, "boom")
				assert.Equal(t, Internal, AsError(f.err).Kind)
				assert.NotContains(t, f.err.Error(), "boom")
				assert.Equal(t, []any{"boom"}, f.panics)
				assert.Equal(t, []Outcome{Unused, Unused}, f.ends[1])
				f.failed(f.err)
			})
		})
	}
}

// panicBody panics when it is read.
type panicBody struct{}

func (panicBody) Read([]byte) (int, error) { panic("boom") }
func (panicBody) Close() error             { return nil }

func TestFanOutSurvivesAPanicInABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fanOut(t, Generate, generateSSE, 2)
		f.commit(0)
		f.say(1, &Response{Status: 200, Stream: true, Body: panicBody{}})
		assert.Contains(t, f.read(), `"error"`)
		_, err := f.resp.Body.Read(make([]byte, 1))
		assert.Equal(t, Internal, AsError(err).Kind)
		assert.Equal(t, []any{"boom"}, f.panics)
		f.settled()
	})
}
