package policy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestWithoutAKeyTheIdlerOfTwoIsPicked(t *testing.T) {
	f := func(name string, p pools.Policy, req *pd.Request) {
		t.Run(name, func(t *testing.T) {
			set := fleet(t, 8, p)
			var plans []*pd.Plan
			for range 800 {
				plans = append(plans, send(t, set, req))
			}
			most, mean := spread(set)
			assert.InDelta(t, mean, most, 6)
			finish(plans)
		})
	}
	f("no request", new(Consistent), nil)
	f("no header", new(Consistent), &pd.Request{})
	f("a key that all share", new(Consistent), &pd.Request{Header: http.Header{"Authorization": {"Bearer shared"}}})
	f("no request to hash", NewPrefixHash(PrefixHashOptions{}), nil)
	f("an empty prompt", NewPrefixHash(PrefixHashOptions{}), prompt(t, ""))
}

func TestAMemberHasNoMoreThanItsPart(t *testing.T) {
	const members, callers, each = 8, 8, 300
	set := fleet(t, members, new(Consistent))
	hot := keyed("hot")
	plans := make([][]*pd.Plan, callers)
	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(g)))
			for i := range each {
				req := hot
				if r.IntN(10) >= 4 { // 40 % are for the hot key
					req = keyed(fmt.Sprintf("session-%d-%d", g, i))
				}
				got, err := set.Plan(t.Context(), req, 1, nil)
				if !assert.NoError(t, err) {
					return
				}
				plans[g] = append(plans[g], got...)
			}
		})
	}
	wg.Wait()
	// Each of the others may have seen the last free place at the same time.
	most, mean := spread(set)
	assert.LessOrEqual(t, most, loadFactor*mean+slack+callers-1)
	assert.InDelta(t, callers*each/members, mean, 0.01)
	assert.Less(t, most, 2*mean)
	for _, m := range decoders(set) {
		assert.Greater(t, float64(m.InFlight()), mean/3, "%s is not starved", m.Worker.ID)
	}

	more := make([]*pd.Plan, 0, callers*members)
	for range cap(more) { // one after the other, the bound is exact
		more = append(more, send(t, set, hot))
	}
	most, mean = spread(set)
	assert.LessOrEqual(t, most, loadFactor*mean+slack+1)
	finish(more)
	for _, of := range plans {
		finish(of)
	}
	most, _ = spread(set)
	assert.Zero(t, most)
}

// With requests that come and go, and 8 or more in flight for each member.
func TestAHotKeyIsSharedOut(t *testing.T) {
	hot := map[string]*pd.Request{"key": keyed("hot"), "prompt": prompt(t, "hot")}
	hashers(t, 4000, func(t *testing.T, build func() pools.Policy, reqs []*pd.Request) {
		for _, n := range []int{8, 16} {
			set := fleet(t, n, build())
			r := rand.New(rand.NewPCG(5, uint64(n)))
			var flying []*pd.Plan
			served := map[pd.WorkerID]int{}
			for i := range 4000 {
				req := reqs[i]
				if i%5 < 2 {
					req = hot["key"]
					if reqs[i].Header.Get(headerRoutingKey) == "" {
						req = hot["prompt"]
					}
				}
				plan := send(t, set, req)
				served[plan.Decode.Worker.ID]++
				flying = append(flying, plan)
				if len(flying) > 8*n {
					at := r.IntN(len(flying))
					flying[at].End(pd.Success, pd.Success)
					flying[at] = flying[len(flying)-1]
					flying = flying[:len(flying)-1]
				}
				if len(flying) == 8*n {
					most, mean := spread(set)
					require.Less(t, most, 2*mean)
				}
			}
			for id, got := range served {
				assert.Greater(t, got, 4000/n/3, "%s of %d is not starved", id, n)
				assert.Less(t, got, 2*4000/n, "%s of %d", id, n)
			}
			assert.Len(t, served, n)
			finish(flying)
		}
	})
}

func TestAKeyHasItsSecondHome(t *testing.T) {
	set := fleet(t, 8, new(Consistent))
	req := keyed("session")
	first := send(t, set, req)
	again, err := set.Plan(t.Context(), req, 1, []pd.WorkerID{first.Decode.Worker.ID})
	require.NoError(t, err)
	second := again[0].Decode.Worker.ID
	assert.NotEqual(t, first.Decode.Worker.ID, second)
	finish(again)
	for range 20 {
		again, err := set.Plan(t.Context(), req, 1, []pd.WorkerID{first.Decode.Worker.ID})
		require.NoError(t, err)
		assert.Equal(t, second, again[0].Decode.Worker.ID)
		finish(again)
	}
	finish([]*pd.Plan{first})
}
