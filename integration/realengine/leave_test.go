//go:build realengine

package realengine

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// freeWithin is how soon both engines are rid of a call whose client has left.
const freeWithin = 5 * time.Second

// visit is a client that makes a call and leaves before its end.
type visit struct {
	t    *testing.T
	b    cases.Backend
	i    int // which visit of its stage it is
	base int // requests that decode has anyway
}

// stages are the moments at which a client leaves. Each makes a call, waits for
// its moment and leaves.
func stages() []struct {
	name   string
	visits int
	filled bool // decode has no room for another call
	leave  func(v visit)
} {
	return []struct {
		name   string
		visits int
		filled bool
		leave  func(v visit)
	}{
		{"while prefill runs", 8, false, leaveEarly},
		{"while decode waits", 8, true, leaveWaiting},
		{"in a running stream", 7, false, leaveStream},
		{"in a running plain call", 7, false, leavePlain},
	}
}

// departures requires every call whose client leaves to be gone from both
// engines in time, and prints how long that took.
func departures(t *testing.T, b cases.Backend) {
	var took []time.Duration
	wanted := 0
	for _, stage := range stages() {
		wanted += stage.visits
		t.Run(stage.name, func(t *testing.T) {
			cases.RequireIdle(t, b, freeWithin)
			v := visit{t: t, b: b}
			if stage.filled {
				calls, empty := fill(t)
				defer empty()
				v.base = calls
			}
			for i := range stage.visits {
				t.Run(fmt.Sprintf("client %d", i+1), func(t *testing.T) {
					v.t, v.i = t, i
					stage.leave(v)
					left := time.Now()
					cases.Await(t, decode, freeWithin, func(l cases.Load) bool { return l.Total() <= v.base })
					cases.Await(t, prefill, freeWithin, func(l cases.Load) bool { return l.Total() == 0 })
					took = append(took, time.Since(left))
				})
			}
		})
	}
	require.Len(t, took, wanted, "clients that left without a trace")
	slices.Sort(took)
	t.Logf("departures: %d of %d calls gone from both engines within %s; median %s, longest %s",
		len(took), wanted, freeWithin, took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

// request is a long call to one endpoint or another.
func (v visit) request(ctx context.Context, streamed bool, tokens, answer int) *http.Request {
	v.t.Helper()
	seed := 400 + v.i
	path, body := "/generate", cases.Body{"input_ids": cases.Tokens(seed, tokens), "sampling_params": cases.Greedy(answer)}
	if v.i%3 == 1 {
		path, body = "/v1/completions", cases.Complete(cases.Tokens(seed, tokens), answer)
	}
	if v.i%3 == 2 {
		path, body = "/v1/chat/completions", cases.Say("Tell me more", answer).With(cases.Body{"input_ids": cases.Tokens(seed, tokens)})
	}
	return cases.NewRequest(v.t, ctx, v.b.Router+path, body.With(cases.Body{"stream": streamed}))
}

// leaveEarly leaves at a moment between the last byte of its request and the end
// of a long prefill.
func leaveEarly(v visit) {
	ctx, cancel := context.WithCancel(v.t.Context())
	body := cases.Body{
		"input_ids": cases.Tokens(400+v.i, 900), "sampling_params": cases.Greedy(100), "stream": v.i%2 == 1,
		"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 20,
	}
	call := cases.Begin(cases.NewRequest(v.t, ctx, v.b.Router+"/generate", body))
	time.Sleep(time.Duration(1+v.i*v.i*4) * time.Millisecond)
	cancel()
	call.Wait()
}

// leaveWaiting leaves when both engines have the call and decode has no room.
func leaveWaiting(v visit) {
	ctx, cancel := context.WithCancel(v.t.Context())
	defer cancel()
	call := cases.Begin(v.request(ctx, v.i%2 == 1, 600, 100))
	cases.Await(v.t, decode, patience, func(l cases.Load) bool { return l.Waiting > v.base })
	cases.Await(v.t, prefill, patience, func(l cases.Load) bool { return l.Waiting > 0 })
	cancel()
	call.Wait()
}

// leaveStream leaves after the first bytes of a stream.
func leaveStream(v visit) {
	ctx, cancel := context.WithCancel(v.t.Context())
	defer cancel()
	response, err := http.DefaultClient.Do(v.request(ctx, true, 50, 800))
	require.NoError(v.t, err)
	defer response.Body.Close()
	require.Equal(v.t, http.StatusOK, response.StatusCode)
	_, err = response.Body.Read(make([]byte, 1))
	assert.NoError(v.t, err)
}

// leavePlain leaves when decode generates for a call that is not streamed.
func leavePlain(v visit) {
	ctx, cancel := context.WithCancel(v.t.Context())
	defer cancel()
	call := cases.Begin(v.request(ctx, false, 50, 800))
	cases.Await(v.t, decode, patience, func(l cases.Load) bool { return l.Running > 0 })
	cancel()
	call.Wait()
}
