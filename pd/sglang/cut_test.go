package sglang_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

const removed = `{"error":{"message":"worker decode-0 was taken out of service","type":"overloaded_error","code":503}}`

func TestCutBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		decode     http.HandlerFunc
	}{
		{"a plain call", hi, silent},
		{"a stream", hiStream, sends(silent)},
		{"a batch", `{"text":["a","b"]}`, silent},
	} {
		for _, worker := range []pd.WorkerID{"prefill-0", "decode-0"} {
			t.Run(tt.name+" on "+string(worker), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, silent, tt.decode)
				r.orch.Retry.MaxAttempts = 5
				failed := make(chan error, 1)
				go func() {
					_, _, err := r.serve(t.Context(), pd.Generate, tt.body)
					failed <- err
				}()
				r.called()
				assert.Zero(t, r.orch.Cut("decode-1"))
				assert.Equal(t, 1, r.orch.Cut(worker))
				e := asError(t, <-failed)
				assert.Equal(t, 503, e.Status)
				assert.Equal(t, "worker_removed", e.Code)
				assert.Equal(t, worker, e.Worker)
				p, d := r.ended()
				assert.Equal(t, [2]pd.Outcome{pd.Left, pd.Left}, [2]pd.Outcome{p, d}, "nobody is blamed")
				assert.Equal(t, 1, r.decode.calls(), "nor is it tried again")
				r.prefill.wasClosed(t)
				r.decode.wasClosed(t)
				assert.Zero(t, r.orch.Cut(worker))
			})
		}
	}
}

func TestCutAfterTheCommit(t *testing.T) {
	t.Parallel()
	t.Run("a stream ends with an error event and a broken end", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(nil, event1, done), sends(silent, event1))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hiStream))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 1, r.orch.Cut("decode-0"))
		body, err := io.ReadAll(resp.Body)
		assert.Equal(t, "worker_removed", asError(t, err).Code)
		event := "data: " + removed + "\n\n"
		assert.True(t, string(body) == event1+event || string(body) == event, "%s", body)
		_, d := r.ended()
		assert.Equal(t, pd.Left, d)
		r.decode.wasTold(t, r.decode.body(0)["rid"])
		r.decode.wasClosed(t)
		assert.Equal(t, "worker_removed", (<-r.reports).Err.Code)
		assert.Zero(t, r.orch.Cut("decode-0"))
	})
	t.Run("a plain answer is cut short", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, jsonAnswer(200, prefillOK), unending(200))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hi))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 1, r.orch.Cut("decode-0"))
		body, err := io.ReadAll(resp.Body)
		assert.Equal(t, "worker_removed", asError(t, err).Code)
		assert.NotContains(t, string(body), "error")
		_, d := r.ended()
		assert.Equal(t, pd.Left, d)
	})
	t.Run("every sample of a merged stream, with one error event", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(nil, event1, done), sends(silent, event1))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, `{"text":"hi","stream":true,"sampling_params":{"n":3}}`))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, 1, r.orch.Cut("decode-0"))
		body, err := io.ReadAll(resp.Body)
		assert.Equal(t, "worker_removed", asError(t, err).Code)
		assert.Equal(t, 1, strings.Count(string(body), removed), "%s", body)
		for range 3 {
			_, d := r.ended()
			assert.Equal(t, pd.Left, d)
		}
	})
	t.Run("a prefill that is done with is not missed", func(t *testing.T) {
		t.Parallel()
		gate := newGate(t)
		r := newRig(t, sends(nil, event1, done), sends(gate.then(sends(nil, event2, done)), event1))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hiStream))
		require.NoError(t, err)
		defer resp.Body.Close()
		prefillHeard(r)
		assert.Zero(t, r.orch.Cut("prefill-0"))
		gate.open()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, event1+event2+done, string(body))
	})
}
