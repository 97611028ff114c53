package sglang_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

// onAbort answers once the engine was told to abort.
func onAbort(e **engine, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-(*e).told:
			h(w, r)
		case <-r.Context().Done():
		}
	}
}

func TestClientsAbort(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, r *rig, body, rid string) (string, error) {
		t.Helper()
		type result struct {
			body string
			err  error
		}
		ended := make(chan result, 1)
		go func() {
			_, body, err := r.serve(t.Context(), pd.Generate, body)
			ended <- result{body, err}
		}()
		r.called()
		time.Sleep(50 * time.Millisecond) // until what the engines have sent is read
		res, err := r.orch.Abort(t.Context(), pd.AbortRequest{Rid: rid})
		require.NoError(t, err)
		assert.Equal(t, 200, res.Status)
		got := <-ended
		return got.body, got.err
	}
	t.Run("of a request that waits: the engine's words pass, nobody is blamed, nothing is tried again", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, silent, nil)
		r.decode.handle = onAbort(&r.decode, jsonAnswer(500, lostText))
		r.orch.Retry.MaxAttempts = 5
		_, err := run(t, r, `{"text":"hi","rid":"mine"}`, "mine")
		e := asError(t, err)
		assert.Equal(t, 500, e.Status)
		assert.Equal(t, pd.Aborted, e.Kind)
		assert.Equal(t, strings.ReplaceAll(lostText, "10.0.0.5:8998", "prefill-0"), string(e.Body))
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Left, pd.Left}, [2]pd.Outcome{p, d})
		assert.Equal(t, 1, r.decode.calls())
		assert.Equal(t, 1, (<-r.reports).Attempts)
	})
	t.Run("of a request whose prefill answers first", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, nil, silent)
		r.prefill.handle = onAbort(&r.prefill, jsonAnswer(500, `{"object":"error","message":"Aborted by AbortReq.","code":500}`))
		_, err := run(t, r, `{"text":"hi","rid":"mine"}`, "mine")
		assert.Equal(t, pd.Aborted, asError(t, err).Kind)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Left, pd.Left}, [2]pd.Outcome{p, d})
	})
	t.Run("of a request whose engine answers it by closing the connection", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, silent, nil)
		r.decode.handle = onAbort(&r.decode, reset)
		r.orch.Retry.MaxAttempts = 5
		_, err := run(t, r, `{"text":"hi","rid":"mine"}`, "mine")
		assert.Equal(t, pd.Lost, asError(t, err).Kind)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Left, pd.Left}, [2]pd.Outcome{p, d})
		assert.Equal(t, 1, r.decode.calls())
	})
	partial := `{"text":"par","meta_info":{"id":"mine","finish_reason":{"type":"abort","message":"Aborted","status_code":null}}}`
	t.Run("of a running one: what there is of the answer passes", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, jsonAnswer(200, prefillOK), nil)
		r.decode.handle = onAbort(&r.decode, jsonAnswer(200, partial))
		got, err := run(t, r, `{"text":"hi","rid":"mine"}`, "mine")
		require.NoError(t, err)
		assert.Equal(t, partial, got)
		p, _ := r.ended()
		assert.Equal(t, pd.Success, p)
	})
	t.Run("of a running stream", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(nil, event1, done), nil)
		r.decode.handle = sends(onAbort(&r.decode, sends(nil, "data: "+partial+"\n\n", done)), event1)
		got, err := run(t, r, `{"text":"hi","stream":true,"rid":"mine"}`, "mine")
		require.NoError(t, err)
		assert.Equal(t, event1+"data: "+partial+"\n\n"+done, got)
		_, d := r.ended()
		assert.Equal(t, pd.Left, d)
	})
	t.Run("of a batch by its name: every item, on both engines", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, silent, nil)
		r.decode.handle = onAbort(&r.decode, jsonAnswer(500, lostText))
		_, err := run(t, r, `{"text":["a","b"],"rid":"mine"}`, "mine")
		require.Error(t, err)
		r.ended()
		for _, e := range []*engine{r.prefill, r.decode} {
			assert.Subset(t, e.aborted(), []string{"mine_0", "mine_1"})
		}
	})
}

// An engine aborts by prefix: "a" would take "ab" along.
func TestRidThatStartsAnothersIsNotAborted(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	r := newRig(t, silent, silent)
	first := make(chan struct{}, 1)
	r.prefill.handle = func(w http.ResponseWriter, req *http.Request) {
		if r.prefill.body(0)["rid"] == "ab" && r.prefill.calls() == 1 {
			g.then(jsonAnswer(200, prefillOK))(w, req)
			return
		}
		<-req.Context().Done()
	}
	r.decode.handle = func(w http.ResponseWriter, req *http.Request) {
		if r.decode.calls() == 1 {
			first <- struct{}{}
			g.then(jsonAnswer(200, decodeOK))(w, req)
			return
		}
		<-req.Context().Done()
	}
	survives := make(chan error, 1)
	go func() {
		_, _, err := r.serve(t.Context(), pd.Generate, `{"text":"hi","rid":"ab"}`)
		survives <- err
	}()
	<-first
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	assert.Eventually(t, func() bool { return r.prefill.calls() == 1 }, 3*time.Second, time.Millisecond)
	go func() {
		assert.Eventually(t, func() bool { return r.prefill.calls()+r.decode.calls() == 4 }, 3*time.Second, time.Millisecond)
		leave()
	}()
	_, _, err := r.serve(ctx, pd.Generate, `{"text":"hi","rid":"a"}`)
	assert.Equal(t, pd.Cancelled, asError(t, err).Kind)
	r.prefill.wasClosed(t)
	r.decode.wasClosed(t)
	r.ended()
	g.open()
	require.NoError(t, <-survives)
	r.ended()
	assert.Empty(t, r.prefill.aborted(), "sockets only")
	assert.Empty(t, r.decode.aborted())
}

func TestDuplicateRidAfterAResendIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	const duplicate = `{"error":{"message":"Duplicate request ID detected: mine"}}`
	var calls atomic.Int32
	r := newRig(t, jsonAnswer(200, prefillOK), func(w http.ResponseWriter, req *http.Request) {
		switch calls.Add(1) {
		case 2:
			reset(w, req)
		case 3, 5:
			jsonAnswer(400, duplicate)(w, req)
		default:
			jsonAnswer(200, decodeOK)(w, req)
		}
	})
	r.orch.Retry.MaxAttempts = 2 // should the loss be noticed too late to be one of a stale connection
	body := `{"text":"hi","rid":"mine"}`
	for range 2 { // the second finds a connection that the engine has closed
		_, _, err := r.serve(t.Context(), pd.Generate, body)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 4, calls.Load())
	rooms := map[any]bool{}
	for i := range 4 {
		assert.Equal(t, "mine", r.decode.body(i)["rid"])
		rooms[r.decode.body(i)["bootstrap_room"]] = true
	}
	assert.Len(t, rooms, 4, "a new room each time")

	_, _, err := r.serve(t.Context(), pd.Generate, body)
	e := asError(t, err)
	assert.Equal(t, 400, e.Status, "without a resend it is the client's own doing")
	assert.JSONEq(t, duplicate, string(e.Body))
	assert.EqualValues(t, 5, calls.Load())
}

// A client that does not read makes decode's writes block: nothing is piled up
// here but what the sockets hold.
func TestSlowClientHoldsDecodeBack(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"passed through": hiStream, "spliced": logprobsStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var written atomic.Int64
			chunk := event(item(strings.Repeat("x", 32<<10), "[]", ""))
			r := newRig(t, sends(nil, event(item("a", inputs, "")), done), sends(func(w http.ResponseWriter, _ *http.Request) {
				for {
					n, err := io.WriteString(w, chunk)
					written.Add(int64(n))
					if err != nil {
						return
					}
				}
			}, chunk))
			resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, body))
			require.NoError(t, err)
			last := int64(-1)
			assert.Eventually(t, func() bool { // it stands still for a while
				now := written.Load()
				still := now == last && now > 0
				last = now
				return still
			}, 10*time.Second, 300*time.Millisecond)
			assert.Less(t, last, int64(64<<20))
			require.NoError(t, resp.Body.Close())
			p, d := r.ended()
			assert.Equal(t, [2]pd.Outcome{pd.Success, pd.Left}, [2]pd.Outcome{p, d})
			r.decode.wasTold(t, r.decode.body(0)["rid"])
		})
	}
}

// panics is a transport that panics on calls to one worker.
type panics struct {
	http.RoundTripper
	host  string
	after time.Duration
}

func (p panics) RoundTrip(req *http.Request) (*http.Response, error) {
	if "http://"+req.URL.Host == p.host && req.URL.Path != "/abort_request" {
		time.Sleep(p.after)
		panic("boom")
	}
	return p.RoundTripper.RoundTrip(req)
}

func TestPanicInALegIsA500AndLeaksNothing(t *testing.T) {
	t.Parallel()
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for name, body := range map[string]string{"plain": hi, "stream": hiStream, "spliced": logprobs, "spliced stream": logprobsStream} {
			t.Run(role.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				ok := jsonAnswer(200, item("a", "[]", ""))
				if strings.Contains(body, "stream") {
					ok = sends(nil, event(item("a", "[]", "")))
				}
				r := newRig(t, silent, silent)
				broken := r.prefill
				if role == pd.Prefill {
					// Decode has answered by then, but is not yet committed if it waits.
					if strings.Contains(body, "logprob") {
						r.decode.handle = ok
					}
				} else {
					broken = r.decode
				}
				var caught atomic.Int32
				r.dialect.Group.Panic = func(any, []byte) { caught.Add(1) }
				r.orch.Upstream.Transport = panics{r.orch.Upstream.Transport, broken.URL, 100 * time.Millisecond}
				_, _, err := r.serve(t.Context(), pd.Generate, body)
				e := asError(t, err)
				assert.Equal(t, 500, e.Status)
				assert.Equal(t, pd.Internal, e.Kind)
				assert.NotContains(t, string(e.JSON(pd.Generate)), "boom")
				assert.EqualValues(t, 1, caught.Load())
				p, d := r.ended()
				assert.Equal(t, [2]pd.Outcome{pd.Unused, pd.Unused}, [2]pd.Outcome{p, d}, "nobody is blamed")
			})
		}
	}
}
