//go:build realengine

package realengine

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-pd/tandem/integration/cases"
)

// newRoom is a room of the tests' own, for calls beside Tandem.
func newRoom() int64 { return 1 + rand.Int64N(1<<62) }

// addressed adds what pairs the two legs of a call.
func addressed(body cases.Body) cases.Body {
	return body.With(cases.Body{
		"bootstrap_host": bootstrapHost, "bootstrap_port": bootstrapPort, "bootstrap_room": newRoom(),
	})
}

// direct makes a call of one prompt to both engines without Tandem, and returns
// what each answers.
func direct(t *testing.T, path string, body cases.Body) (fromPrefill, fromDecode cases.Answer) {
	t.Helper()
	both := addressed(body)
	p := cases.Begin(cases.NewRequest(t, t.Context(), prefill+path, both))
	d := cases.Begin(cases.NewRequest(t, t.Context(), decode+path, both))
	return p.Answer(t), d.Answer(t)
}

// fill gives decode calls whose prefill never comes, until its KV is full: a
// call made now waits there, and its prefill waits for it. The returned function
// empties it again.
func fill(t *testing.T) (calls int, empty func()) {
	t.Helper()
	const count, tokens = 4, 900
	var pending []*cases.Pending
	var rids []string
	for i := range count {
		rid := cases.NewRid()
		body := cases.Body{"input_ids": cases.Tokens(200+i, tokens), "sampling_params": cases.Greedy(100), "rid": rid}
		pending = append(pending, cases.Begin(cases.NewRequest(t, t.Context(), decode+"/generate", addressed(body))))
		rids = append(rids, rid)
	}
	cases.Await(t, decode, patience, func(l cases.Load) bool { return l.Waiting >= count })
	return count, func() {
		for i, call := range pending {
			cases.Post(t, decode+"/abort_request", cases.Body{"rid": rids[i]})
			call.Wait()
		}
	}
}
