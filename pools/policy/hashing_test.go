package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestEveryMemberGetsItsShareOfTheKeys(t *testing.T) {
	hashers(t, 10_000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		for _, n := range []int{8, 16, 64} {
			set := fleet(t, n, build())
			count := map[pd.WorkerID]int{}
			for _, id := range homes(t, set, reqs) {
				count[id]++
			}
			mean := float64(len(reqs)) / float64(n)
			require.Len(t, count, n)
			for id, got := range count {
				assert.InDelta(t, mean, got, mean/2, "%s of %d", id, n)
			}
		}
	})
}

func TestAMemberThatComesOrGoesMovesItsOwnKeys(t *testing.T) {
	hashers(t, 10_000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		for _, n := range []int{8, 32} {
			set := fleet(t, n, build())
			before := homes(t, set, reqs)
			moved := func(after []pd.WorkerID, ok func(from, to pd.WorkerID) bool) {
				t.Helper()
				moves := 0
				for i, from := range before {
					if to := after[i]; from != to {
						moves++
						require.True(t, ok(from, to), "%s to %s", from, to)
					}
				}
				assert.Positive(t, moves)
				assert.LessOrEqual(t, float64(moves)/float64(len(reqs)), 1/float64(n)+0.05)
			}

			fresh := decoder(1000)
			require.NoError(t, set.Add(fresh))
			moved(homes(t, set, reqs), func(_, to pd.WorkerID) bool { return to == fresh.ID })
			require.NoError(t, set.Remove(fresh.ID))
			assert.Equal(t, before, homes(t, set, reqs), "all go back")

			require.NoError(t, set.Remove("decode-3"))
			moved(homes(t, set, reqs), func(from, _ pd.WorkerID) bool { return from == "decode-3" })
			require.NoError(t, set.Add(decoder(3))) // last in the pool's order now
			assert.Equal(t, before, homes(t, set, reqs), "it has its keys again")
		}
	})
}

func TestAMemberThatIsOutComesBackToItsKeys(t *testing.T) {
	hashers(t, 2000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		set := fleet(t, 9, build())
		before := homes(t, set, reqs)
		for _, out := range [][]pd.WorkerID{{"decode-0"}, {"decode-8"}, {"decode-2", "decode-3", "decode-7"}} {
			for _, id := range out {
				require.True(t, set.Drain(id))
			}
			heirs := map[pd.WorkerID]bool{}
			for i, id := range homes(t, set, reqs) {
				if slices.Contains(out, before[i]) {
					require.NotContains(t, out, id)
					heirs[id] = true
				} else {
					require.Equal(t, before[i], id, "the others' keys stay")
				}
			}
			assert.Len(t, heirs, 9-len(out), "all others take some of the keys")
			for _, id := range out {
				require.True(t, set.Resume(id))
			}
			assert.Equal(t, before, homes(t, set, reqs))
		}
	})
}

func TestAnUpdateOfAWorkerMovesNothing(t *testing.T) {
	hashers(t, 1000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		set := fleet(t, 8, build())
		before := homes(t, set, reqs)
		w := *decoder(5)
		w.APIKey = "other"
		require.NoError(t, set.Update(&w))
		assert.Equal(t, before, homes(t, set, reqs))
	})
}

// Two routers agree, though they number and order the workers differently.
func TestRoutersAgree(t *testing.T) {
	hashers(t, 2000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		one := fleet(t, 12, build())
		other := fleet(t, 0, build())
		for i, at := range rand.Perm(12) {
			w := *decoder(at)
			w.ID = pd.WorkerID(fmt.Sprintf("other-%d", i))
			require.NoError(t, other.Add(&w))
		}
		for _, req := range reqs {
			assert.Equal(t, one.Find(home(t, one, req)).Worker.URL, other.Find(home(t, other, req)).Worker.URL)
		}
	})
}

func TestAKeyHasNoMoreThanTheBound(t *testing.T) {
	for _, factor := range []float64{1, 1.25, 2} {
		set := fleet(t, 8, NewPrefixHash(PrefixHashOptions{LoadFactor: factor}))
		req := prompt(t, "everybody asks this")
		var plans []*pd.Plan
		for range 400 {
			plans = append(plans, send(t, set, req))
			most, mean := spread(set)
			require.LessOrEqual(t, most, factor*mean+slack)
		}
		most, mean := spread(set)
		assert.Greater(t, most, factor*mean, "the member is used as far as it goes")
		finish(plans)
	}
}

// A set tells its policies of the pool before they are asked; whoever does not
// gets an answer all the same.
func TestWithoutAPoolToFollowTheIdlestIsPicked(t *testing.T) {
	members := loaded(t, 3, 1, 2)
	assert.Same(t, members[1], new(Consistent).Pick(keyed("session"), members))
	assert.Same(t, members[1], NewPrefixHash(PrefixHashOptions{}).Pick(prompt(t, "a prompt"), members))
}
