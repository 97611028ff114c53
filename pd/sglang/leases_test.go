package sglang_test

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

const (
	abortedBody = `{"text":"","meta_info":{"id":"x","finish_reason":{"type":"abort","message":"Aborted"}}}`
	errorEvent  = `data: {"error":{"message":"boom","code":500}}` + "\n\n"
)

// A lease hears of what is good alone: a worker that answers every call with an
// error is not known to be well.
func TestProgressOfPrefill(t *testing.T) {
	t.Parallel()
	stream := sends(nil, event1, event2, done)
	for _, tt := range []struct {
		name, body string
		prefill    http.HandlerFunc
		want       int
	}{
		{"a plain answer", hi, jsonAnswer(200, prefillOK), 1},
		{"a plain answer that is spliced", logprobs, jsonAnswer(200, item("a", inputs, "")), 1},
		{"each event", hiStream, sends(nil, event1, event2, ": ping\n\n", done), 2},
		{"a last event without its blank line", hiStream, sends(nil, event1[:len(event1)-2]), 1},
		{"each event that is spliced", logprobsStream, sends(nil, event(item("a", inputs, "")), event(item("a", inputs, "")), done), 2},
		{"no refusal", hi, jsonAnswer(400, tooLong), 0},
		{"no failure", hi, jsonAnswer(500, tooLong), 0},
		{"no lost connection", hi, reset, 0},
		{"no aborted answer", hi, jsonAnswer(200, abortedBody), 0},
		{"no error event", hiStream, sends(nil, errorEvent), 0},
		{"the events before an error", hiStream, sends(nil, event1, errorEvent), 1},
		{"no answer that is not JSON, where it must be", logprobs, jsonAnswer(200, "?"), 0},
		{"no event that is not JSON, where it must be", logprobsStream, sends(nil, "data: {?\n\n"), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			decode := jsonAnswer(200, item("abc", "[]", ""))
			if tt.body == hiStream || tt.body == logprobsStream {
				decode = stream
			}
			if tt.want == 0 {
				decode = silent
			}
			r := newRig(t, tt.prefill, decode)
			_, _, _ = r.serve(t.Context(), pd.Generate, tt.body)
			r.ended()
			assert.Equal(t, tt.want, r.progressed(pd.Prefill))
		})
	}
}

func TestProgressOfDecode(t *testing.T) {
	t.Parallel()
	spliced := sends(nil, event(item("a", inputs, "")), done)
	for _, tt := range []struct {
		name, body      string
		prefill, decode http.HandlerFunc
		good            bool
	}{
		{"a plain answer", hi, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK), true},
		{"a plain answer that is spliced", logprobs, jsonAnswer(200, item("a", inputs, "")), jsonAnswer(200, item("abc", "[]", "")), true},
		{"a stream", hiStream, sends(nil, event1, done), sends(nil, event1, done), true},
		{"a stream that is spliced", logprobsStream, spliced, sends(nil, event(item("a", "[]", "")), done), true},
		{"no refusal", hi, silent, jsonAnswer(400, tooLong), false},
		{"no failure", hi, silent, jsonAnswer(500, tooLong), false},
		{"no lost connection", hiStream, silent, sends(reset), false},
		{"no stream without an event", hiStream, silent, sends(nil, ": ping\n\n"), false},
		{"no first event that is an error", hiStream, silent, sends(nil, errorEvent), false},
		{"nor one that is to be spliced", logprobsStream, silent, sends(nil, errorEvent), false},
		{"no first event of a request that was aborted", hiStream, sends(nil, event1, done), sends(nil, event(abortedBody), done), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.prefill, tt.decode)
			_, _, _ = r.serve(t.Context(), pd.Generate, tt.body)
			r.ended()
			assert.Equal(t, tt.good, r.progressed(pd.Decode) > 0)
		})
	}
}

func TestProgressOfAStreamInItsCourse(t *testing.T) {
	t.Parallel()
	f := func(name, body string, prefill http.HandlerFunc, event string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second, failure := newGate(t), newGate(t)
			r := newRig(t, prefill, sends(second.then(sends(failure.then(sends(nil, errorEvent, done)), event)), event))
			resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, body))
			require.NoError(t, err)
			defer resp.Body.Close()
			read := func() {
				n, err := resp.Body.Read(make([]byte, 4096))
				require.NoError(t, err)
				require.NotZero(t, n)
			}
			read()
			first := r.progressed(pd.Decode)
			assert.Positive(t, first)
			second.open()
			read()
			assert.Greater(t, r.progressed(pd.Decode), first, "of the second event")
			last := r.progressed(pd.Decode)
			failure.open()
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err, "decode's own error passes as it came")
			assert.Equal(t, last, r.progressed(pd.Decode), "none of the error, nor behind it")
			_, d := r.ended()
			assert.Equal(t, pd.Fault, d)
		})
	}
	f("as it came", hiStream, sends(nil, event1, done), event1)
	f("spliced", logprobsStream, sends(nil, event(item("a", inputs, "")), done), event(item("a", "[]", "")))
}

// Whoever hears the plan's end finds both leases ended, each with what its leg
// came to at last.
func TestLeasesEndOnceBeforeTheirPlan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body      string
		prefill, decode http.HandlerFunc
		p, d            pd.Outcome
	}{
		{"both answer", hi, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK), pd.Success, pd.Success},
		{"both stream", hiStream, sends(nil, event1, done), sends(nil, event1, done), pd.Success, pd.Success},
		{"prefill refuses", hi, jsonAnswer(400, tooLong), silent, pd.ClientFlaw, pd.Echo},
		{"decode fails", hi, silent, jsonAnswer(500, "{}"), pd.Echo, pd.Fault},
		{"decode names a lost prefill", hi, silent, jsonAnswer(500, lostText), pd.PairFault, pd.Echo},
		{"decode breaks its stream", hiStream, sends(silent, event1), sends(reset, event1), pd.Echo, pd.Fault},
		{"decode's stream ends with an error of its own", hiStream, sends(nil, event1, done), sends(nil, event1, errorEvent), pd.Success, pd.Fault},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, nil)
			r.prefill.handle, r.decode.handle = together(tt.prefill, tt.decode)
			_, _, _ = r.serve(t.Context(), pd.Generate, tt.body)
			p, d := r.ended()
			assert.Equal(t, [2]string{tt.p.String(), tt.d.String()}, [2]string{p.String(), d.String()})
			r.dialect.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			require.Len(t, r.heard, 3)
			assert.Equal(t, "plan "+tt.p.String()+" "+tt.d.String(), r.heard[2])
			slices.Sort(r.heard[:2])
			assert.Equal(t, []string{"decode " + tt.d.String(), "prefill " + tt.p.String()}, r.heard[:2])
		})
	}
}

func TestPrefillsLeaseEndsWithItsAnswer(t *testing.T) {
	t.Parallel()
	gate := newGate(t)
	r := newRig(t, sends(nil, event1, done), sends(gate.then(sends(nil, done)), event1))
	resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, hiStream))
	require.NoError(t, err)
	defer resp.Body.Close()
	prefillHeard(r)
	gate.open()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
}

// prefillHeard waits until prefill's lease alone has ended, with success.
func prefillHeard(r *rig) {
	r.t.Helper()
	assert.Eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Equal(r.heard, []string{"prefill success"})
	}, 3*time.Second, time.Millisecond, "prefill's answer is in while decode streams")
}
