package pools_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// first picks the first member offered.
type first struct{}

func (first) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	return members[0]
}

// only picks the member it names, or nobody.
type only struct{ id pd.WorkerID }

func (p *only) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	for _, m := range members {
		if m.Worker.ID == p.id {
			return m
		}
	}
	return nil
}

func workers(prefill, decode int) []*pd.Worker {
	var ws []*pd.Worker
	for i := range prefill {
		ws = append(ws, &pd.Worker{ID: pd.WorkerID(fmt.Sprintf("prefill-%d", i)), Role: pd.Prefill})
	}
	for i := range decode {
		ws = append(ws, &pd.Worker{ID: pd.WorkerID(fmt.Sprintf("decode-%d", i)), Role: pd.Decode})
	}
	return ws
}

// newSet is a set of so many workers; where opt names no policy, the first member
// offered is picked.
func newSet(t testing.TB, prefill, decode int, opt pools.Options) *pools.Set {
	t.Helper()
	if opt.Policies == nil {
		opt.Policies = pools.Share(first{}, first{})
	}
	set, err := pools.New(workers(prefill, decode), opt)
	require.NoError(t, err)
	return set
}

// watched makes opt that of a set whose health is looked at.
func watched(opt pools.Options) pools.Options {
	opt.Suspect = func() {}
	return opt
}

// allUp has every member serve.
func allUp(set *pools.Set) *pools.Set {
	for _, m := range set.Members() {
		m.Up()
	}
	return set
}

// one plans a single sample.
func one(t testing.TB, set *pools.Set, avoid ...pd.WorkerID) *pd.Plan {
	t.Helper()
	plans, err := set.Plan(t.Context(), nil, 1, avoid)
	require.NoError(t, err)
	require.Len(t, plans, 1)
	return plans[0]
}

// run plans and ends a call of one sample for each of decode's outcomes; prefill
// does well.
func run(t testing.TB, set *pools.Set, outcomes ...pd.Outcome) {
	t.Helper()
	for _, o := range outcomes {
		one(t, set).End(pd.Success, o)
	}
}

// refused is the error of a call that finds no pair; nothing is taken for it.
func refused(t testing.TB, set *pools.Set, samples int) *pd.Error {
	t.Helper()
	before := inFlight(set)
	plans, err := set.Plan(t.Context(), nil, samples, nil)
	require.Nil(t, plans)
	var e *pd.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, pd.StagePlan, e.Stage)
	assert.Equal(t, "1", e.RetryAfter)
	assert.Equal(t, before, inFlight(set), "nothing is taken")
	return e
}

// tries makes n calls and returns the plans of those that got through to worker
// id. The others are ended.
func tries(t testing.TB, set *pools.Set, n int, id pd.WorkerID) []*pd.Plan {
	t.Helper()
	var through []*pd.Plan
	for range n {
		plans, err := set.Plan(t.Context(), nil, 1, nil)
		switch {
		case err != nil:
		case plans[0].Prefill.Worker.ID == id || plans[0].Decode.Worker.ID == id:
			through = append(through, plans[0])
		default:
			plans[0].End(pd.Success, pd.Success)
		}
	}
	return through
}

func inFlight(s *pools.Set) map[pd.WorkerID]int64 {
	counts := map[pd.WorkerID]int64{}
	for _, w := range s.Status().Workers {
		counts[w.ID] = w.InFlight
	}
	return counts
}

func breakerOf(s *pools.Set, id pd.WorkerID) string {
	workers := s.Status().Workers
	return workers[slices.IndexFunc(workers, func(w pools.WorkerStatus) bool { return w.ID == id })].Breaker
}

// changes records what Changed is told.
type changes struct {
	mu   sync.Mutex
	list []string
}

func (c *changes) changed(w *pd.Worker, to pools.State, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := fmt.Sprintf("%s %s", w.ID, to)
	if why != "" {
		said += ": " + why
	}
	c.list = append(c.list, said)
}

// take returns what was told since the last take.
func (c *changes) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}
