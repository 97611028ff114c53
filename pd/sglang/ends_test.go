package sglang_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// A stream is whole when it has said so, and not when its connection ends.
func TestWhereAStreamEnds(t *testing.T) {
	t.Parallel()
	const logprobs = `{"text":"hi","stream":true,"return_logprob":true,"logprob_start_len":0}`
	own := `data: {"error":{"message":"out of luck","code":500}}` + "\n\n"
	odd := `data: {"text":"\"finish_reason\": \"stop\"","finish_reason": null}` + "\n\n"
	whole := event1 + event2 + done
	f := func(name, body string, decode string, wantBody string, cut bool, blame pd.Outcome) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, sends(nil, event1, done), sends(nil, decode))
			status, got, err := r.serve(t.Context(), pd.Generate, body)
			assert.Equal(t, 200, status)
			assert.Equal(t, wantBody, got[:min(len(got), len(wantBody))])
			_, d := r.ended()
			assert.Equal(t, blame, d)
			if !cut {
				require.NoError(t, err)
				assert.Equal(t, wantBody, got)
				return
			}
			require.Error(t, err, "the end is broken")
			assert.Contains(t, got[len(wantBody):], `sent a stream without an end`)
			assert.NotContains(t, got, "[DONE]")
		})
	}
	f("with a last word", hiStream, whole, whole, false, pd.Success)
	f("with one that lacks its blank line", hiStream, strings.TrimSpace(whole), strings.TrimSpace(whole), false, pd.Success)
	f("with a reason alone", hiStream, event1+event2, event1+event2, false, pd.Success)
	f("without", hiStream, event1, event1, true, pd.Fault)
	f("without, in a splice", logprobs, event1, "", true, pd.Fault)
	f("with the reason in a text", hiStream, odd, odd, true, pd.Fault)
	f("behind an error of the engine's own", hiStream, event1+own, event1+own, false, pd.Fault)
}

// What breaks behind the last word takes nothing away.
func TestAStreamThatIsOverStaysOver(t *testing.T) {
	t.Parallel()
	whole := event1 + event2 + done
	for name, end := range map[string]func(*rig){
		"a reset": nil,
		"silence": func(r *rig) { r.orch.Upstream.Deadlines.Idle = 100 * time.Millisecond },
	} {
		for _, body := range []string{hiStream, `{"text":"hi","stream":true,"return_logprob":true,"logprob_start_len":0}`} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				last := silent
				if end == nil {
					last = reset
				}
				r := newRig(t, sends(nil, event1, done), sends(last, whole))
				if end != nil {
					end(r)
				}
				status, got, err := r.serve(t.Context(), pd.Generate, body)
				require.NoError(t, err)
				assert.Equal(t, 200, status)
				assert.True(t, strings.HasSuffix(got, done), got)
				assert.Equal(t, 1, strings.Count(got, "[DONE]"))
				_, d := r.ended()
				assert.Equal(t, pd.Success, d)
			})
		}
	}
}

// The head of a plain answer is no commitment: as long as none of its bytes has
// come, another worker can still give it.
func TestAPlainAnswerIsCommittedByItsFirstBytes(t *testing.T) {
	t.Parallel()
	headOnly := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	calls := 0
	r := newRig(t, jsonAnswer(200, prefillOK), func(w http.ResponseWriter, req *http.Request) {
		if calls++; calls == 1 {
			headOnly(w, req)
		}
		jsonAnswer(200, decodeOK)(w, req)
	})
	r.orch.Retry.MaxAttempts = 2
	status, body, err := r.serve(t.Context(), pd.Generate, hi)
	require.NoError(t, err)
	assert.Equal(t, 200, status)
	assert.Equal(t, decodeOK, body)

	r = newRig(t, jsonAnswer(200, prefillOK), headOnly)
	_, _, err = r.serve(t.Context(), pd.Generate, hi)
	assert.Equal(t, "decode_connection_lost", asError(t, err).Code, "an error of its own, and no closed connection")
}

func TestAPrefillThatFailsBehindDecodesLastWordHurtsNobody(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		<-over
		jsonAnswer(500, lostText)(w, req)
	}, sends(silent, event1+event2+done))
	resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hiStream))
	require.NoError(t, err)
	defer resp.Body.Close()
	whole := event1 + event2 + done
	got := make([]byte, len(whole))
	_, err = io.ReadFull(resp.Body, got)
	require.NoError(t, err)
	assert.Equal(t, whole, string(got))
	close(over)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Empty(t, string(rest))
}
