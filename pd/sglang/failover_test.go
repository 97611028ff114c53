package sglang_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

// firstThen holds both first scripts back until both engines have their call;
// every later call gets the other one.
func firstThen(r *rig, prefill, decode, laterPrefill, laterDecode http.HandlerFunc) {
	prefill, decode = together(prefill, decode)
	inTurn := func(first, later http.HandlerFunc) http.HandlerFunc {
		var called atomic.Bool
		return func(w http.ResponseWriter, req *http.Request) {
			if called.Swap(true) {
				later(w, req)
				return
			}
			first(w, req)
		}
	}
	r.prefill.handle, r.decode.handle = inTurn(prefill, laterPrefill), inTurn(decode, laterDecode)
}

// A failure before the commit is made good by another attempt, which shares
// nothing with the failed one: not its room, not its rid, not a byte of answer.
func TestAnotherAttemptMakesAFailureGood(t *testing.T) {
	t.Parallel()
	soon := pd.Deadlines{FirstEvent: 300 * time.Millisecond}
	both := []pd.WorkerID{"prefill-0", "decode-0"}
	for _, tt := range []struct {
		name, body      string
		prefill, decode http.HandlerFunc // of the failed attempt
		avoided         []pd.WorkerID
		p, d            pd.Outcome
	}{
		{"prefill fails", hi, jsonAnswer(500, "{}"), silent, both[:1], pd.Fault, pd.Echo},
		{"decode fails", hi, silent, jsonAnswer(500, "{}"), both[1:], pd.Echo, pd.Fault},
		{"decode is busy", hiStream, silent, jsonAnswer(503, "{}"), both[1:], pd.Echo, pd.Overloaded},
		{"decode's first event is an error", hiStream, silent, sends(nil, errorEvent), both[1:], pd.Echo, pd.Fault},
		{"decode's first event does not come", hiStream, sends(nil, event1, done), sends(silent), both[1:], pd.Success, pd.Fault},
		{"decode names a lost prefill", hi, silent, jsonAnswer(500, lostText), both, pd.PairFault, pd.Echo},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, nil)
			want, laterPrefill, laterDecode := decodeOK, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK)
			if tt.body == hiStream {
				want, laterPrefill, laterDecode = event2+done, sends(nil, event1, done), sends(nil, event2, done)
			}
			firstThen(r, tt.prefill, tt.decode, laterPrefill, laterDecode)
			r.orch.Upstream.Deadlines = soon
			r.orch.Retry = pd.Retry{MaxAttempts: 2, Budget: new(pd.Budget)}
			status, body, err := r.serve(t.Context(), pd.Generate, tt.body)
			require.NoError(t, err)
			assert.Equal(t, 200, status)
			assert.Equal(t, want, body)
			assert.Equal(t, [][]pd.WorkerID{nil, tt.avoided}, r.avoided)
			assert.Equal(t, [2]pd.Outcome{tt.p, tt.d}, outcomes(r))
			assert.Equal(t, [2]pd.Outcome{pd.Success, pd.Success}, outcomes(r))
			require.Equal(t, 2, r.decode.calls())
			for _, field := range []string{"rid", "bootstrap_room"} {
				assert.NotEqual(t, r.decode.body(0)[field], r.decode.body(1)[field], field)
			}
			report := <-r.reports
			assert.Equal(t, 2, report.Attempts)
			assert.Len(t, report.Legs, 4)
		})
	}
}

func outcomes(r *rig) [2]pd.Outcome {
	r.t.Helper()
	p, d := r.ended()
	return [2]pd.Outcome{p, d}
}

// A body that decode may have died of, or was too slow for, runs twice at most.
func TestAFirstEventThatIsLateTwiceIsTheAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, sends(nil, event1, done), sends(silent))
	r.orch.Upstream.Deadlines.FirstEvent = 200 * time.Millisecond
	r.orch.Retry.MaxAttempts = 5
	_, _, err := r.serve(t.Context(), pd.Generate, hiStream)
	e := asError(t, err)
	assert.Equal(t, pd.Late, e.Kind)
	assert.Equal(t, 504, e.Status)
	assert.Equal(t, 2, r.decode.calls())
}

// The engines refuse a rid that they still hold.
func TestAnotherAttemptWithAClientsRidComesAfterTheFirstIsClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	firstThen(r, silent, jsonAnswer(500, "{}"), jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	r.orch.Retry = pd.Retry{MaxAttempts: 2, InitialBackoff: -1}
	_, body, err := r.serve(t.Context(), pd.Generate, `{"text":"hi","rid":"mine"}`)
	require.NoError(t, err)
	assert.Equal(t, decodeOK, body)
	assert.Equal(t, "mine", r.decode.body(1)["rid"])
	rep := <-r.reports
	require.Len(t, rep.Legs, 4)
	for _, first := range rep.Legs[:2] {
		for _, second := range rep.Legs[2:] {
			assert.GreaterOrEqual(t, second.Sent, first.End)
		}
	}
}
