package pools_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// listener is a policy that notes what it is told.
type listener struct {
	first
	mu     sync.Mutex
	pools  []string
	chosen []string
}

func (l *listener) Follow(members []*pools.Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for _, m := range members {
		ids = append(ids, string(m.Worker.ID))
	}
	l.pools = append(l.pools, fmt.Sprint(ids))
}

func (l *listener) Chosen(_ *pd.Request, m *pools.Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chosen = append(l.chosen, string(m.Worker.ID))
}

func TestWorkersComeAndGo(t *testing.T) {
	prefill, decode := new(listener), new(listener)
	set := newSet(t, 1, 1, pools.Options{Policies: pools.Share(prefill, decode)})
	require.NoError(t, set.Add(&pd.Worker{ID: "decode-1", Role: pd.Decode}))
	assert.ErrorIs(t, set.Add(&pd.Worker{ID: "decode-1", Role: pd.Decode}), pools.ErrExists)
	assert.ErrorIs(t, set.Remove("nobody"), pools.ErrUnknown)
	assert.ErrorIs(t, set.Update(&pd.Worker{ID: "nobody"}), pools.ErrUnknown)
	assert.Error(t, set.Add(&pd.Worker{}))
	one(t, set).End(pd.Success, pd.Success)
	require.NoError(t, set.Remove("decode-0"))
	one(t, set).End(pd.Success, pd.Success)
	require.NoError(t, set.Remove("decode-1"))
	_, err := set.Plan(t.Context(), nil, 1, nil)
	assert.Equal(t, "no_decode_available", pd.AsError(err).Code)

	assert.EqualValues(t, 3, set.Generation(), "one for each change")
	assert.Equal(t, []string{"[decode-0]", "[decode-0 decode-1]", "[decode-1]", "[]"}, decode.pools)
	assert.Equal(t, []string{"decode-0", "decode-1"}, decode.chosen)
	assert.Equal(t, []string{"prefill-0", "prefill-0"}, prefill.chosen)
}

func TestARemovedWorkerEndsWhatItHas(t *testing.T) {
	var told changes
	set := newSet(t, 1, 2, pools.Options{Changed: told.changed})
	p := one(t, set)
	gone := set.Find("decode-0")
	require.NoError(t, set.Remove("decode-0"))
	assert.Equal(t, pools.Removed, gone.State())
	assert.EqualValues(t, 1, gone.InFlight())
	p.End(pd.Success, pd.Success)
	assert.Zero(t, gone.InFlight())
	require.NoError(t, set.Add(&pd.Worker{ID: "decode-0", Role: pd.Decode}))
	assert.NotSame(t, gone, set.Find("decode-0"), "one that comes back begins anew")
	assert.Contains(t, strings.Join(told.take(), "\n"), "decode-0 removed")
}

func TestAnUpdateKeepsWhatIsKnown(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
	p := one(t, set)
	set.Find("decode-0").Blame()
	require.NoError(t, set.Update(&pd.Worker{ID: "decode-0", Role: pd.Decode, APIKey: "k"}))
	m := set.Find("decode-0")
	assert.Equal(t, "k", m.Worker.APIKey)
	assert.Equal(t, pools.Broken, m.State())
	assert.EqualValues(t, 1, m.InFlight())
	p.End(pd.Left, pd.Left)
	assert.Zero(t, m.InFlight())
	assert.Error(t, set.Update(&pd.Worker{ID: "decode-0", Role: pd.Prefill}))
	assert.Error(t, set.Update(&pd.Worker{ID: "decode-0", Role: pd.Decode, URL: "http://elsewhere"}))
}

func TestNoPlanHasAWorkerThatWasRemovedBefore(t *testing.T) {
	set := newSet(t, 2, 2, pools.Options{})
	var gone sync.Map
	var planned atomic.Int64
	stop := make(chan struct{})
	var planners, changes sync.WaitGroup
	for range 4 {
		planners.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var before []pd.WorkerID
				gone.Range(func(id, _ any) bool { before = append(before, id.(pd.WorkerID)); return true })
				plans, err := set.Plan(t.Context(), nil, 2, nil)
				if err != nil {
					continue
				}
				planned.Add(1)
				for _, p := range plans {
					assert.False(t, slices.Contains(before, p.Decode.Worker.ID), "%s was removed", p.Decode.Worker.ID)
					p.End(pd.Success, pd.Success)
				}
			}
		})
	}
	changes.Go(func() {
		for i := range 2000 {
			id := pd.WorkerID(fmt.Sprintf("extra-%d", i))
			assert.NoError(t, set.Add(&pd.Worker{ID: id, Role: pd.Decode}))
			assert.NoError(t, set.Remove(id))
			gone.Store(id, true)
		}
	})
	changes.Wait()
	close(stop)
	planners.Wait()
	assert.Positive(t, planned.Load())
	for _, m := range set.Members() {
		assert.Zero(t, m.InFlight())
	}
}
