package pd

import (
	"errors"
	"fmt"
	"math"

	"github.com/tandem-pd/tandem/pd/patch"
)

// Sample is the request of sample j of n: one sample, the client's seed moved
// on by j, and a rid of the exchange's own.
func (r *Request) Sample(j int) (*Request, error) {
	s := *r
	s.N, s.Rid, s.Rids, s.SampleIndex = 1, "", nil, j
	s.Edit = r.Edit.Clone()
	one := []byte("1")
	if r.Endpoint.OpenAI() {
		s.Edit.Replace("n", one)
		if v, ok := r.Doc.Get("seed"); ok {
			raw, ok := addSeed(v, j)
			if !ok {
				return nil, invalid("seed", "seed must be an integer")
			}
			s.Edit.Replace("seed", raw)
		}
		return &s, nil
	}
	var bad error
	err := errors.Join(
		s.Edit.ReplaceNested("sampling_params", "n", func(int, patch.Value) []byte { return one }),
		s.Edit.ReplaceNested("sampling_params", "sampling_seed", func(_ int, old patch.Value) []byte {
			if old.Kind() == 'n' {
				return nil
			}
			raw, ok := addSeed(old, j)
			if !ok {
				bad = invalid("sampling_params.sampling_seed", "sampling_seed must be an integer")
			}
			return raw
		}),
	)
	if bad != nil {
		return nil, bad
	}
	if err != nil {
		return nil, syntaxError(err)
	}
	return &s, nil
}

// addSeed is v + j, false when v is no integer or the sum does not fit.
func addSeed(v patch.Value, j int) ([]byte, bool) {
	seed, ok := v.Int()
	if !ok || seed > math.MaxInt64-int64(j) {
		return nil, false
	}
	return fmt.Appendf(nil, "%d", seed+int64(j)), true
}
