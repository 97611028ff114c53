package registry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// first picks the first member offered.
type first struct{}

func (first) Pick(_ *pd.Request, members []*pools.Member) *pools.Member { return members[0] }

// newSet is a set of pairs whose health is looked at by the test alone.
func newSet(t *testing.T) *pools.Set {
	t.Helper()
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{}), Suspect: func() {}})
	require.NoError(t, err)
	return set
}

func newRegistry(t *testing.T, set *pools.Set, opt Options) *Registry {
	t.Helper()
	r, err := New(set, opt)
	require.NoError(t, err)
	return r
}

// pair is a prefill and a decode.
func pair() []Spec {
	return []Spec{
		{URL: "http://p:1", Role: pd.Prefill, Bootstrap: "8998", Priority: DefaultPriority, Cost: DefaultCost},
		{URL: "http://d:1", Role: pd.Decode, Priority: DefaultPriority, Cost: DefaultCost},
	}
}

// urls lists the URLs of the set's workers and their states.
func urls(set *pools.Set) map[string]pools.State {
	out := map[string]pools.State{}
	for _, w := range set.Status().Workers {
		out[w.Worker.URL] = w.State
	}
	return out
}
