package pools_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// BenchmarkPlan is a call of one sample from its plan to the end of both legs.
func BenchmarkPlan(b *testing.B) {
	for _, name := range policy.Names() {
		for _, size := range []int{4, 64, 1024} {
			for _, broken := range []int{0, 1} {
				b.Run(fmt.Sprintf("%s/members=%d/broken=%d", name, size, broken), func(b *testing.B) {
					benchmarkPlan(b, name, size, broken)
				})
			}
		}
	}
}

// benchmarkPlan plans over size members of each role, of whose prefills so many
// are broken.
func benchmarkPlan(b *testing.B, name string, size, broken int) {
	prefill, err := policy.ByName(name)
	require.NoError(b, err)
	decode, err := policy.ByName(name)
	require.NoError(b, err)
	set := newSet(b, size, size, pools.Options{Policies: pools.Share(prefill, decode), Breakers: pools.Breakers{Failures: 1}})
	for _, m := range set.Members()[size/2:][:broken] {
		m.Blame()
	}
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			plans, err := set.Plan(ctx, nil, 1, nil)
			if err != nil {
				b.Error(err)
				return
			}
			plans[0].End(pd.Success, pd.Success)
		}
	})
}
