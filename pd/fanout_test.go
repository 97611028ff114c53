package pd

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		assert.Equal(t, Internal, e.Kind)
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

func TestBoundOfAnswersIsReportedOnce(t *testing.T) {
	var budget atomic.Int64
	budget.Store(3)
	hits := 0
	for range 3 {
		r := &budgetReader{strings.NewReader("ab"), &budget, func(string) { hits++ }}
		_, _ = io.ReadAll(r)
	}
	assert.Equal(t, 1, hits)
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
