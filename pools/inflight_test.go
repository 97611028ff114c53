package pools_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

func TestTheBoundOnWhatIsInFlight(t *testing.T) {
	var hits []string
	set := newSet(t, 2, 1, pools.Options{MaxInFlight: 2, Bound: func(name string) { hits = append(hits, name) }})
	a := one(t, set)
	one(t, set)
	e := refused(t, set, 1)
	assert.Equal(t, "decode_at_capacity", e.Code)
	assert.Equal(t, http.StatusTooManyRequests, e.Status)
	assert.Equal(t, pd.Overload, e.Kind)
	assert.Equal(t, []string{"worker_inflight"}, hits)

	a.Prefill.End(pd.Success)
	assert.Equal(t, "decode_at_capacity", refused(t, set, 1).Code)
	a.Decode.End(pd.Success)
	one(t, set)

	set.Drain("prefill-1")
	assert.Equal(t, "prefill_at_capacity", refused(t, set, 1).Code)
}

func TestACallCountsAsTheBoundAtMost(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{MaxInFlight: 4})
	big, err := set.Plan(t.Context(), nil, 10, nil)
	require.NoError(t, err, "a call for more passes when nothing else is in flight")
	assert.Equal(t, int64(10), set.Find("decode-0").InFlight())
	assert.Equal(t, "prefill_at_capacity", refused(t, set, 1).Code)
	for _, p := range big[:7] {
		p.End(pd.Success, pd.Success)
	}
	one(t, set).End(pd.Success, pd.Success) // three and one
	refused(t, set, 2)
	refused(t, set, 10)
	for _, p := range big[7:] {
		p.End(pd.Success, pd.Success)
	}
	single := one(t, set)
	refused(t, set, 10)
	refused(t, set, 4)
	single.End(pd.Success, pd.Success)
	_, err = set.Plan(t.Context(), nil, 10, nil)
	require.NoError(t, err)
}

func TestTheBoundHoldsWhileManyPlan(t *testing.T) {
	const limit = 8
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			prefill, err := policy.ByName(name)
			require.NoError(t, err)
			decode, err := policy.ByName(name)
			require.NoError(t, err)
			var hits, refusals, most atomic.Int64
			set := newSet(t, 2, 3, pools.Options{
				Policies: pools.Share(prefill, decode), MaxInFlight: limit, Bound: func(string) { hits.Add(1) },
			})
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					var held []*pd.Plan
					for i := range 300 {
						plans, err := set.Plan(t.Context(), nil, 1+(g+i)%3, nil)
						if err != nil {
							assert.Equal(t, pd.Overload, pd.AsError(err).Kind, "%v", err)
							refusals.Add(1)
						}
						held = append(held, plans...)
						for _, m := range set.Members() {
							if n := m.InFlight(); n > most.Load() {
								most.Store(n)
							}
						}
						for err != nil && len(held) > 0 { // only room helps
							held[0].End(pd.Success, pd.Success)
							held = held[1:]
						}
					}
					for _, p := range held {
						p.End(pd.Success, pd.Success)
					}
				})
			}
			wg.Wait()
			assert.LessOrEqual(t, most.Load(), int64(limit))
			assert.Equal(t, refusals.Load(), hits.Load(), "the hook hears of each")
			assert.Positive(t, refusals.Load())
			for id, n := range inFlight(set) {
				assert.Zero(t, n, id)
			}
		})
	}
}
