package pd

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onWorkers is an exchange whose legs run on the workers until their request
// ends, and take as long as closing to let go.
func onWorkers(o *orchTest, closing time.Duration, workers ...*Worker) func(int, *Request, *Plan) (*Response, error) {
	return func(_ int, req *Request, _ *Plan) (*Response, error) {
		for _, w := range workers {
			h := req.Hold(w, []string{"r"})
			defer func() { time.AfterFunc(closing, h.Release) }()
		}
		ctx := o.attemptCtx()
		<-ctx.Done()
		return nil, cancelCause(ctx)
	}
}

func TestCutEndsWhatTheWorkerIsAtWorkOn(t *testing.T) {
	other := &Worker{ID: "c", Role: Decode}
	for name, tt := range map[string]struct {
		worker WorkerID
		cut    int
	}{
		"as prefill":         {"a", 1},
		"as decode":          {"b", 1},
		"but nobody else's":  {"c", 0},
		"nor of one unknown": {"x", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, beside := newOrchTest(nil), newOrchTest(nil)
				o.exchange = onWorkers(o, 0, workerA, workerB)
				var err *Error
				go func() { _, err = o.serve(t, `{"text":"a"}`) }()
				h := liveRequest(&beside.live, "beside").Hold(other, []string{"beside"})
				synctest.Wait()
				assert.Equal(t, tt.cut, o.Cut(tt.worker))
				synctest.Wait()
				if tt.cut == 0 {
					assert.Nil(t, err)
					assert.Equal(t, 1, o.Cut("a"))
					synctest.Wait()
				}
				require.NotNil(t, err)
				assert.Equal(t, [4]any{503, "worker_removed", "1", Unavailable}, [4]any{err.Status, err.Code, err.RetryAfter, err.Kind})
				assert.Equal(t, 1, o.planned, "it is not tried elsewhere")
				assert.Empty(t, o.retries)
				h.Release()
				o.over(t)
				assert.Zero(t, o.Cut("a"), "nothing is left")
			})
		})
	}
}

func TestCutLeavesARequestAloneThatHasMovedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &Worker{ID: "next", Role: Decode}
		o := newOrchTest(nil)
		o.exchange = func(attempt int, req *Request, plan *Plan) (*Response, error) {
			if attempt == 1 {
				h := req.Hold(workerB, []string{"r"})
				time.AfterFunc(time.Minute, h.Release) // it hangs, and takes that long to close
				return nil, failing(Failed, "b")
			}
			return onWorkers(o, 0, next)(attempt, req, plan)
		}
		o.Retry = Retry{MaxAttempts: 2, InitialBackoff: time.Second, Jitter: -1}
		var err *Error
		go func() { _, err = o.serve(t, `{"text":"a"}`) }()
		synctest.Wait()
		assert.Zero(t, o.Cut("b"), "while it waits for its next attempt")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, o.planned)
		assert.Zero(t, o.Cut("b"), "while its next attempt runs")
		assert.Nil(t, err)
		assert.Equal(t, 1, o.Cut("next"))
		synctest.Wait()
		require.NotNil(t, err)
		assert.EqualValues(t, "next", err.Worker)
		time.Sleep(time.Minute)
		synctest.Wait()
		o.over(t)
	})
}

func TestCutIsHeardOnceByARequestOfManyLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrchTest(nil)
		o.samples = 8
		o.exchange = func(_ int, req *Request, _ *Plan) (*Response, error) {
			defer req.Hold(workerA, []string{NewRid()}).Release()
			ctx := o.attemptCtx() // any sample's: they end together
			<-ctx.Done()
			return nil, cancelCause(ctx)
		}
		var err *Error
		go func() { _, err = o.serve(t, `{"text":"a","sampling_params":{"n":8}}`) }()
		synctest.Wait()
		assert.Equal(t, 1, o.Cut("a"), "requests are counted, not samples")
		synctest.Wait()
		require.NotNil(t, err)
		assert.Equal(t, "worker_removed", err.Code)
		o.over(t)
	})
}

// A context that stays behind would grow the server's with every request.
func TestServesContextEndsWithTheRequest(t *testing.T) {
	var seen context.Context
	f := func(name string, outcome any, use func(*Response)) {
		t.Run(name, func(t *testing.T) {
			o := newOrchTest(nil)
			o.exchange = func(int, *Request, *Plan) (*Response, error) {
				seen = o.attemptCtx()
				switch v := outcome.(type) {
				case *Error:
					return nil, v
				case string:
					return answer(v), nil
				default:
					panic(v)
				}
			}
			req, err := NewRequest(Generate, []byte(`{"text":"a"}`))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			func() {
				defer func() { _ = recover() }()
				resp, err := o.Serve(ctx, req)
				if err == nil {
					assert.NoError(t, seen.Err(), "the answer is still to be read")
					use(resp)
				}
			}()
			assert.ErrorIs(t, seen.Err(), context.Canceled)
			o.over(t)
		})
	}
	f("that fails", failing(Refused, "a"), nil)
	f("that panics", 1, nil)
	f("that is read", "yes", func(r *Response) { _, _ = r.Body.Read(make([]byte, 10)); _, _ = r.Body.Read(make([]byte, 10)) })
	f("that is closed", "yes", func(r *Response) { _ = r.Body.Close() })
}
