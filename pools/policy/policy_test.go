package policy

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// byIndex picks member i, and shows the members it was offered.
type byIndex struct {
	i       int
	members []*pools.Member
}

func (p *byIndex) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	p.members = members
	return members[p.i%len(members)]
}

// loaded makes one decode member for each count, with so much in flight.
func loaded(t testing.TB, counts ...int) []*pools.Member {
	t.Helper()
	workers := []*pd.Worker{{ID: "prefill-0", Role: pd.Prefill}}
	for i := range counts {
		workers = append(workers, &pd.Worker{ID: pd.WorkerID("decode-" + strconv.Itoa(i)), Role: pd.Decode})
	}
	pick := &byIndex{}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(Random{}, pick)})
	require.NoError(t, err)
	for i, n := range counts {
		pick.i = i
		_, err := set.Plan(t.Context(), nil, n, nil)
		require.NoError(t, err)
	}
	return pick.members
}

func idle(t testing.TB, n int) []*pools.Member { return loaded(t, make([]int, n)...) }

func TestByName(t *testing.T) {
	assert.Equal(t, []string{
		"bucket", "cache_aware", "consistent_hashing", "power_of_two", "prefix_hash", "random", "round_robin",
	}, Names())
	assert.Contains(t, Names(), Default)
	for _, name := range Names() {
		p, err := ByName(name)
		require.NoError(t, err)
		assert.NotNil(t, p)
	}
	for _, name := range []string{"", "Random", "least_load"} {
		_, err := ByName(name)
		assert.EqualError(t, err, fmt.Sprintf("policy %q is unknown: want %s", name, strings.Join(Names(), ", ")))
	}
}

func TestByNameSharesNoState(t *testing.T) {
	members := idle(t, 3)
	a, err := ByName("round_robin")
	require.NoError(t, err)
	b, err := ByName("round_robin")
	require.NoError(t, err)
	a.Pick(nil, members)
	assert.Same(t, members[0], b.Pick(nil, members))
}

func TestRoundRobinTakesTurns(t *testing.T) {
	members := idle(t, 3)
	p := new(RoundRobin)
	for i := range 9 {
		assert.Same(t, members[i%3], p.Pick(nil, members))
	}
}

func TestRoundRobinIsFairAcrossGoroutines(t *testing.T) {
	members := idle(t, 4)
	p := new(RoundRobin)
	picks := make([]map[*pools.Member]int, 8)
	var wg sync.WaitGroup
	for g := range picks {
		picks[g] = map[*pools.Member]int{}
		wg.Go(func() {
			for range 500 {
				picks[g][p.Pick(nil, members)]++
			}
		})
	}
	wg.Wait()
	for _, m := range members {
		total := 0
		for _, seen := range picks {
			total += seen[m]
		}
		assert.Equal(t, 1000, total)
	}
}

func TestPowerOfTwoTakesTheIdlerOfTwo(t *testing.T) {
	f := func(counts []int, never ...int) {
		t.Helper()
		members := loaded(t, counts...)
		for range 300 {
			m := PowerOfTwo{}.Pick(nil, members)
			for _, i := range never {
				require.NotSame(t, members[i], m, "counts %v", counts)
			}
		}
	}
	f([]int{0, 1}, 1)
	f([]int{5, 4}, 0)
	f([]int{9, 0, 3, 3}, 0)    // the busiest always loses
	f([]int{2, 2, 2, 2, 7}, 4) // also among equals
}

func TestPowerOfTwoKeepsTheSpreadSmall(t *testing.T) {
	const members, requests = 16, 1600
	var workers []*pd.Worker
	for i := range members {
		workers = append(workers,
			&pd.Worker{ID: pd.WorkerID("prefill-" + strconv.Itoa(i)), Role: pd.Prefill},
			&pd.Worker{ID: pd.WorkerID("decode-" + strconv.Itoa(i)), Role: pd.Decode})
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(PowerOfTwo{}, PowerOfTwo{})})
	require.NoError(t, err)
	for range requests {
		_, err := set.Plan(t.Context(), nil, 1, nil)
		require.NoError(t, err)
	}
	for _, w := range set.Status().Workers {
		assert.InDelta(t, requests/members, w.InFlight, 10, w.ID) // uniform choice strays by some 30
	}
}
