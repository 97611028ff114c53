// Package cases is the behaviour a client must see through a running Tandem, as
// a table that any backend can run: the real SGLang engines of
// integration/realengine, or simulated ones.
//
// The cases speak plain net/http and know of Tandem only what its clients know.
// They never start or stop anything, never look at text that a model made up,
// and leave both engines without a request.
//
// A backend's engines take token ids below 512, hold at least 900 tokens of one
// request and make a token in a few milliseconds when left alone.
package cases

import (
	"slices"
	"testing"
)

// Backend is a running Tandem with one prefill and one decode engine behind it.
type Backend struct {
	// Router, Prefill and Decode are base URLs without a trailing slash.
	Router, Prefill, Decode string
	// Real says that the engines compute, so that equal greedy prompts give
	// equal answers and a longer prompt takes longer.
	Real bool
}

// Case is one behaviour. Its name completes the sentence "Tandem …".
type Case struct {
	Name string
	Run  func(t *testing.T, b Backend)
}

// All returns every case that suits simulated and real engines alike.
func All() []Case {
	return slices.Concat(
		generate(), chat(), completions(), samples(), logprobs(), echoes(),
		identity(), refusals(), operations(), aborts(),
	)
}

// Run runs a table, one subtest a case, one after the other.
func Run(t *testing.T, b Backend, table []Case) {
	t.Helper()
	for _, c := range table {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, b) })
	}
}
