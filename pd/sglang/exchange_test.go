package sglang_test

import (
	"context"
	"fmt"
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

const (
	prefillOK = `{"text":"a","output_ids":[1],"meta_info":{"id":"x","finish_reason":{"type":"length","length":0},"completion_tokens":1}}`
	decodeOK  = `{"text":"abc","output_ids":[1,2,3],"meta_info":{"id":"x","finish_reason":{"type":"length","length":3},"prompt_tokens":5,"completion_tokens":3,"cached_tokens":2}}`
	event1    = `data: {"text":"a","output_ids":[1],"meta_info":{"id":"x","finish_reason":null}}` + "\n\n"
	event2    = `data: {"text":"ab","output_ids":[1,2],"meta_info":{"id":"x","finish_reason":{"type":"length","length":2},"prompt_tokens":5,"completion_tokens":2,"cached_tokens":0}}` + "\n\n"
	done      = "data: [DONE]\n\n"
	hi        = `{"text":"hi"}`
	hiStream  = `{"text":"hi","stream":true}`
	tooLong   = `{"error":{"message":"The input (1100 tokens) is longer than the model's context length (1024 tokens)."}}`
	lostText  = `{"object":"error","message":"Decode transfer failed for request rank=0 decode_req.req.rid='x' decode_req.req.bootstrap_room=1 with exception KVTransferError(bootstrap_room=1): Lost connection with prefill instance (bootstrap_addr: 10.0.0.5:8998)","type":"500","param":null,"code":500}`
)

func TestPlainAnswerIsDecodes(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	status, body, err := r.serve(t.Context(), pd.Generate, hi)
	require.NoError(t, err)
	assert.Equal(t, 200, status)
	assert.Equal(t, decodeOK, body)
	p, d := r.ended()
	assert.Equal(t, pd.Success, p)
	assert.Equal(t, pd.Success, d)

	pb, db := r.prefill.body(0), r.decode.body(0)
	assert.Equal(t, pb, db, "both legs get the same body")
	assert.Equal(t, "10.0.0.5", pb["bootstrap_host"])
	assert.EqualValues(t, 8998, pb["bootstrap_port"])
	assert.NotZero(t, pb["bootstrap_room"])
	assert.Len(t, pb["rid"], 32)
	assert.Empty(t, r.prefill.aborted())
	assert.Empty(t, r.decode.aborted())

	rep := <-r.reports
	assert.Equal(t, 3, rep.CompletionTokens)
	assert.Equal(t, 5, rep.PromptTokens)
	assert.Equal(t, 2, rep.CachedTokens)
	assert.Len(t, rep.Legs, 2)
}

func TestStreamBytesComeThroughAsTheyWere(t *testing.T) {
	t.Parallel()
	odd := ": comment\r\n\r\ndata: {\"text\":\"[DONE] data: [DONE]\\u00e9\",\"n\":1e2}\r\n\r\n"
	r := newRig(t, sends(nil, event1, done), sends(nil, event1[:7], event1[7:], odd, event2+done))
	status, body, err := r.serve(t.Context(), pd.Generate, hiStream)
	require.NoError(t, err)
	assert.Equal(t, 200, status)
	assert.Equal(t, event1+odd+event2+done, body)
	p, d := r.ended()
	assert.Equal(t, [2]pd.Outcome{pd.Success, pd.Success}, [2]pd.Outcome{p, d})
	rep := <-r.reports
	assert.Equal(t, 2, rep.CompletionTokens)
	assert.Equal(t, 3, rep.Events)
	assert.NotZero(t, rep.TTFT)
}

// One leg fails before the commit: the other is told and closed at once, and
// the failing leg's words are the answer.
func TestFailureBeforeTheCommit(t *testing.T) {
	t.Parallel()
	errFrame := `data: {"error":{"message":"too long","type":"invalid_request_error","code":400,"retryable":false}}` + "\n\n" + done
	abortFrame := `data: {"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"no KV","status_code":500,"err_type":null}}}` + "\n\n" + done
	tests := []struct {
		name            string
		body            string
		prefill, decode http.HandlerFunc
		status          int
		answer          string
		kind            pd.Kind
		p, d            pd.Outcome
		closed          string // the leg that must be closed
	}{
		{"prefill 400, decode silent", hi, after(20*time.Millisecond, jsonAnswer(400, tooLong)), silent, 400, tooLong, pd.Refused, pd.ClientFlaw, pd.Echo, "decode"},
		{"prefill 400, stream, decode sent headers only", hiStream, after(50*time.Millisecond, jsonAnswer(400, tooLong)), sends(silent), 400, tooLong, pd.Refused, pd.ClientFlaw, pd.Echo, "decode"},
		{"prefill 500 whose body never ends", hi, halfRefusal, silent, 500, "", pd.Failed, pd.Fault, pd.Echo, "decode"},
		{"prefill 429", hi, jsonAnswer(429, `{"error":"busy"}`), silent, 429, `{"error":"busy"}`, pd.Overload, pd.Overloaded, pd.Echo, "decode"},
		{"prefill 500", hi, jsonAnswer(500, `{"object":"error","message":"boom"}`), silent, 500, `{"object":"error","message":"boom"}`, pd.Failed, pd.Fault, pd.Echo, "decode"},
		{"prefill's error frame", hiStream, sends(nil, errFrame), silent, 400, `{"error":{"message":"too long","type":"invalid_request_error","code":400,"retryable":false}}`, pd.Refused, pd.ClientFlaw, pd.Echo, "decode"},
		{"prefill's error frame without a blank line", hiStream, sends(nil, strings.TrimSuffix(errFrame, "\n\n"+done)), silent, 400, `{"error":{"message":"too long","type":"invalid_request_error","code":400,"retryable":false}}`, pd.Refused, pd.ClientFlaw, pd.Echo, "decode"},
		{"prefill reset", hi, reset, silent, 502, "", pd.Lost, pd.Fault, pd.Echo, "decode"},
		{"prefill's body aborted", hi, jsonAnswer(200, `{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"Aborted"}}}`), silent, 503, "", pd.Aborted, pd.Left, pd.Left, "decode"},
		{"an item of prefill's large body aborted", `{"text":["a","b"]}`, jsonAnswer(200, `[{"text":"`+strings.Repeat("a", 2<<20)+`","meta_info":{"id":"x","finish_reason":{"type":"length","length":1}}},{"text":"","meta_info":{"id":"y","finish_reason":{"type":"abort","message":"Aborted"}}}]`), silent, 503, "", pd.Aborted, pd.Left, pd.Left, "decode"},
		{"decode 503", hi, silent, jsonAnswer(503, `{"error":"full"}`), 503, `{"error":"full"}`, pd.Overload, pd.Echo, pd.Overloaded, "prefill"},
		{"decode 503, stream", hiStream, silent, jsonAnswer(503, `{"error":"full"}`), 503, `{"error":"full"}`, pd.Overload, pd.Echo, pd.Overloaded, "prefill"},
		{"decode's first event is an error", hiStream, sends(silent), sends(nil, abortFrame), 500, "", pd.Failed, pd.Echo, pd.Fault, "prefill"},
		{"decode closes without a byte", hi, silent, reset, 502, "", pd.Lost, pd.Echo, pd.Fault, "prefill"},
		{"decode ends a stream without an event", hiStream, silent, sends(nil), 502, "", pd.Lost, pd.Echo, pd.Fault, "prefill"},
		{"prefill redirects, its body does not end", hi, unending(307), silent, 502, "", pd.Broken, pd.Fault, pd.Echo, "decode"},
		{"decode redirects, its body does not end", hiStream, silent, unending(307), 502, "", pd.Broken, pd.Echo, pd.Fault, "prefill"},
		{"prefill upgrades", hi, upgrade, silent, 502, "", pd.Broken, pd.Fault, pd.Echo, "decode"},
		{"decode names a lost prefill", hi, silent, jsonAnswer(500, lostText), 500, strings.ReplaceAll(lostText, "10.0.0.5:8998", "prefill-0"), pd.Lost, pd.PairFault, pd.Echo, "prefill"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, nil)
			r.prefill.handle, r.decode.handle = together(tt.prefill, tt.decode)
			start := time.Now()
			_, _, err := r.serve(t.Context(), pd.Generate, tt.body)
			e := asError(t, err)
			assert.Less(t, time.Since(start), 3*time.Second)
			assert.Equal(t, tt.status, e.Status)
			assert.Equal(t, tt.kind, e.Kind, e.Error())
			if tt.answer != "" {
				assert.Equal(t, tt.answer, string(e.Body))
			}
			p, d := r.ended()
			assert.Equal(t, [2]string{tt.p.String(), tt.d.String()}, [2]string{p.String(), d.String()})
			other := map[string]*engine{"prefill": r.prefill, "decode": r.decode}[tt.closed]
			other.wasClosed(t)
			rids, batch := other.body(0)["rid"].([]any)
			if !batch {
				rids = []any{other.body(0)["rid"]}
			}
			other.wasTold(t, rids...)
		})
	}
}

// The other leg's own words come within the 50 ms that they are waited for.
func TestAnEchoGivesWayToTheOtherLegsOwnWords(t *testing.T) { // alone: the time is short
	const no, echo = `{"error":{"message":"no"}}`, `{"object":"error","message":"Prefill transfer failed with exception KVTransferError: Failed due to an unknown reason from another rank"}`
	for _, tt := range []struct {
		name            string
		prefill, decode http.HandlerFunc
		status          int
		answer          string
		p, d            pd.Outcome
	}{
		{"decode names a lost prefill", jsonAnswer(422, no), jsonAnswer(500, lostText), 422, no, pd.ClientFlaw, pd.Echo},
		{"prefill names decode", jsonAnswer(500, echo), jsonAnswer(400, tooLong), 400, tooLong, pd.Echo, pd.ClientFlaw},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil, nil)
			r.prefill.handle, r.decode.handle = together(tt.prefill, tt.decode)
			_, _, err := r.serve(t.Context(), pd.Generate, hi)
			e := asError(t, err)
			assert.Equal(t, pd.Refused, e.Kind)
			assert.Equal(t, tt.status, e.Status)
			assert.Equal(t, tt.answer, string(e.Body))
			p, d := r.ended()
			assert.Equal(t, [2]pd.Outcome{tt.p, tt.d}, [2]pd.Outcome{p, d})
		})
	}
}

func TestWorkerThatIsNotThere(t *testing.T) {
	t.Parallel()
	t.Run("decode", func(t *testing.T) {
		r := newRig(t, silent, nil)
		r.decode.Server.Close()
		_, _, err := r.serve(t.Context(), pd.Generate, hi)
		e := asError(t, err)
		assert.Equal(t, 503, e.Status)
		assert.Equal(t, "decode_unavailable", e.Code)
		assert.Equal(t, "1", e.RetryAfter)
		assert.NotContains(t, e.Message, "127.0.0.1")
		pf, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Echo, pd.Unreachable}, [2]pd.Outcome{pf, d})
	})
	t.Run("prefill", func(t *testing.T) {
		r := newRig(t, nil, silent)
		r.prefill.Server.Close()
		_, _, err := r.serve(t.Context(), pd.Generate, hiStream)
		assert.Equal(t, "prefill_unavailable", asError(t, err).Code)
		pf, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Unreachable, pd.Echo}, [2]pd.Outcome{pf, d})
	})
}

// After the commit only a refusal of prefill ends the stream, with an error
// event and a broken end; nothing is invented and nothing tried again.
func TestFailureAfterTheCommit(t *testing.T) {
	t.Parallel()
	t.Run("prefill refuses", func(t *testing.T) {
		r := newRig(t, after(100*time.Millisecond, jsonAnswer(400, tooLong)), sends(silent, event1))
		status, body, err := r.serve(t.Context(), pd.Generate, hiStream)
		assert.Equal(t, 200, status)
		assert.Equal(t, 400, asError(t, err).Status)
		assert.Equal(t, event1+"data: "+tooLong+"\n\n", body)
		r.decode.wasClosed(t)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.ClientFlaw, pd.Echo}, [2]pd.Outcome{p, d})
	})
	t.Run("prefill's connection is lost once decode streams", func(t *testing.T) {
		r := newRig(t, after(50*time.Millisecond, reset), sends(after(150*time.Millisecond, sends(nil, event2, done)), event1))
		_, body, err := r.serve(t.Context(), pd.Generate, hiStream)
		require.NoError(t, err)
		assert.Equal(t, event1+event2+done, body)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Fault, pd.Success}, [2]pd.Outcome{p, d}, "blamed, not propagated")
	})
	t.Run("prefill's connection is lost while an item of the batch has shown nothing", func(t *testing.T) {
		first := `data: {"text":"a","output_ids":[1],"meta_info":{"id":"x","finish_reason":null},"index":1}` + "\n\n"
		r := newRig(t, after(50*time.Millisecond, reset), sends(silent, first))
		_, body, err := r.serve(t.Context(), pd.Generate, `{"text":["a","b"],"stream":true}`)
		assert.Equal(t, pd.Lost, asError(t, err).Kind)
		assert.True(t, strings.HasPrefix(body, first+"data: {\"error\":{"), body)
		r.decode.wasClosed(t)
	})
	t.Run("decode resets after three events, in the middle of one", func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.prefill.handle, r.decode.handle = together(sends(nil, event1, done), sends(reset, event1, event1, event1, "data: {\"te"))
		_, body, err := r.serve(t.Context(), pd.Generate, hiStream)
		assert.Equal(t, pd.Lost, asError(t, err).Kind)
		rest, ok := strings.CutPrefix(body, event1+event1+event1+"data: {\"te")
		require.True(t, ok, body)
		assert.True(t, strings.HasPrefix(rest, "\n\ndata: {\"error\":{"), rest)
		assert.NotContains(t, body, "[DONE]")
		assert.Equal(t, 3, (<-r.reports).Events, "a cut stream's events are counted too")
		assert.Equal(t, 1, r.prefill.calls())
		assert.Equal(t, 1, r.decode.calls())
		_, d := r.ended()
		assert.Equal(t, pd.Fault, d)
	})
	t.Run("an error event of decode's own passes with what follows it", func(t *testing.T) {
		frame := `data: {"error":{"message":"boom","code":500}}` + "\n\n"
		r := newRig(t, sends(nil, event1, done), sends(nil, event1, frame, done))
		_, body, err := r.serve(t.Context(), pd.Generate, hiStream)
		require.NoError(t, err)
		assert.Equal(t, event1+frame+done, body)
		_, d := r.ended()
		assert.Equal(t, pd.Fault, d, "a stream is judged at its end")
	})
}

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name            string
		body            string
		prefill, decode http.HandlerFunc
		read            bool // the client has an answer's start
	}{
		{"before anything came", hi, silent, silent, false},
		{"before the first event", hiStream, silent, sends(silent), false},
		{"in a stalled stream", hiStream, sends(nil, event1, done), sends(silent, event1), true},
		{"in a stalled stream, prefill still at it", hiStream, silent, sends(silent, event1), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.prefill, tt.decode)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			go func() {
				r.called()
				if !tt.read {
					leave()
				}
			}()
			resp, err := r.orch.Serve(ctx, r.request(pd.Generate, tt.body))
			if tt.read {
				require.NoError(t, err)
				time.AfterFunc(50*time.Millisecond, leave)
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			e := asError(t, err)
			assert.Equal(t, pd.Cancelled, e.Kind)
			r.decode.wasClosed(t)
			r.decode.wasTold(t, r.decode.body(0)["rid"])
			_, d := r.ended()
			assert.Equal(t, pd.Left, d, "nobody's failure")
			assert.Equal(t, 1, r.decode.calls(), "nothing is tried again")
		})
	}
	t.Run("by closing the body", func(t *testing.T) {
		r := newRig(t, sends(nil, event1, done), sends(silent, event1))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hiStream))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		r.decode.wasClosed(t)
	})
}

func TestPrefillIsDrainedAfterDecodesEndWithoutAnAbort(t *testing.T) {
	t.Parallel()
	r := newRig(t, after(300*time.Millisecond, jsonAnswer(200, prefillOK)), jsonAnswer(200, decodeOK))
	ctx, answered := context.WithCancel(t.Context())
	resp, err := r.orch.Serve(ctx, r.request(pd.Generate, hi))
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	answered() // as net/http does when its handler returns
	p, _ := r.ended()
	assert.Equal(t, pd.Success, p)
	assert.Empty(t, r.prefill.aborted())
}

func TestStaleConnectionIsResentOnceWithANewRoom(t *testing.T) { // alone: it must be lost at once
	var called atomic.Bool
	r := newRig(t, jsonAnswer(200, prefillOK), func(w http.ResponseWriter, req *http.Request) {
		if !called.Swap(true) {
			jsonAnswer(200, decodeOK)(w, req)
			return
		}
		reset(w, req)
	})
	_, _, err := r.serve(t.Context(), pd.Generate, hi)
	require.NoError(t, err)
	_, _, err = r.serve(t.Context(), pd.Generate, hi)
	assert.Equal(t, pd.Lost, asError(t, err).Kind, "the fresh connection broke as well: not stale any more")
	require.Equal(t, 3, r.decode.calls())
	assert.NotEqual(t, r.decode.body(1)["bootstrap_room"], r.decode.body(2)["bootstrap_room"])
	assert.NotEqual(t, r.decode.body(1)["rid"], r.decode.body(2)["rid"])
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	run := func(name, body string, d pd.Deadlines, prefill, decode http.HandlerFunc, kind pd.Kind, code string, commits bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, prefill, decode)
			r.orch.Upstream.Deadlines = d
			_, got, err := r.serve(t.Context(), pd.Generate, body)
			e := asError(t, err)
			assert.Equal(t, kind, e.Kind)
			assert.Equal(t, code, e.Code)
			assert.Equal(t, 504, e.Status)
			assert.Contains(t, e.Message, string(e.Worker))
			assert.Equal(t, commits, got != "")
			r.decode.wasClosed(t)
		})
	}
	soon := 500 * time.Millisecond
	run("prefill's answer", hi, pd.Deadlines{Request: soon}, silent, silent, pd.Deadline, "prefill_timeout", false)
	run("the whole plain call", hi, pd.Deadlines{Request: soon}, jsonAnswer(200, prefillOK), silent, pd.Deadline, "decode_timeout", false)
	run("decode's first event", hiStream, pd.Deadlines{FirstEvent: soon}, sends(nil, event1, done), sends(silent), pd.Late, "decode_first_event_timeout", false)
	run("a plain answer to a call for a stream", hiStream, pd.Deadlines{Idle: soon}, sends(nil, event1, done), unending(200), pd.Deadline, "decode_idle_timeout", true)
	run("an idle stream", hiStream, pd.Deadlines{Idle: soon}, sends(nil, event1, done), sends(silent, event1), pd.Deadline, "decode_idle_timeout", true)

	for name, prefill := range map[string]http.HandlerFunc{
		"":                                   sends(nil, event1, done),
		", not even when prefill never ends": sends(silent, event1),
	} {
		t.Run("a stream that makes progress is never cut"+name, func(t *testing.T) {
			r := newRig(t, prefill, sends(after(300*time.Millisecond, sends(after(300*time.Millisecond, sends(nil, event2, done)), event1)), event1))
			r.orch.Upstream.Deadlines = pd.Deadlines{Request: soon, Idle: soon}
			_, body, err := r.serve(t.Context(), pd.Generate, hiStream)
			require.NoError(t, err)
			assert.Equal(t, event1+event1+event2+done, body)
		})
	}
}

func TestAbortOfABatchNamesEveryItem(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	r.prefill.handle, r.decode.handle = together(jsonAnswer(400, tooLong), silent)
	_, _, err := r.serve(t.Context(), pd.Generate, `{"text":["a","b","c"],"rid":"mine"}`)
	require.Error(t, err)
	r.decode.wasClosed(t)
	r.decode.wasTold(t, "mine_0", "mine_1", "mine_2")
	body := r.decode.body(0)
	assert.Len(t, body["bootstrap_room"], 3)
	assert.Equal(t, []any{"10.0.0.5", "10.0.0.5", "10.0.0.5"}, body["bootstrap_host"])
	rooms := map[string]bool{}
	for _, room := range body["bootstrap_room"].([]any) {
		rooms[fmt.Sprint(room)] = true
	}
	assert.Len(t, rooms, 3)
}
