package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATableIsAMap(t *testing.T) {
	f := func(name string, keys int, hash func(r *rand.Rand) uint64) {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(keys)))
			known := make([]uint64, keys)
			for i := range known {
				known[i] = hash(r)
			}
			var tab table
			model := map[uint64]block{}
			for i := range 20_000 {
				key := known[r.IntN(keys)]
				if _, ok := model[key]; ok && r.IntN(2) == 0 {
					delete(model, key)
					tab.delete(key)
				} else {
					model[key] = block{first: holder{1, uint32(i)}}
					tab.set(key, model[key])
				}
				probe := known[r.IntN(keys)]
				require.Equal(t, model[probe], tab.get(probe))
			}
			for _, key := range known {
				require.Equal(t, model[key], tab.get(key))
			}
			require.Equal(t, len(model), tab.used)
			require.LessOrEqual(t, len(tab.entries), max(16, 2*keys))
		})
	}
	f("of all hashes", 300, func(r *rand.Rand) uint64 { return r.Uint64() })
	f("of many hashes", 5000, func(r *rand.Rand) uint64 { return r.Uint64() })
	f("of hashes that belong side by side", 200, func(r *rand.Rand) uint64 { return 1<<57 + r.Uint64N(1<<52) })
	f("of hashes that belong at the end", 200, func(r *rand.Rand) uint64 { return ^r.Uint64N(1 << 40) })
	f("of two hashes, one of them 0", 2, func(r *rand.Rand) uint64 { return r.Uint64N(2) })
}
