package registry

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// turmoil is a registry that everybody wants something of at once.
type turmoil struct {
	*Registry
	set   *pools.Set
	specs []Spec

	sees sync.Mutex
	seen map[*pools.Member]bool // that were ever given work, by who they are
}

// spread picks any member.
type spread struct{}

func (spread) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	return members[rand.IntN(len(members))]
}

func newTurmoil(t *testing.T) *turmoil {
	t.Helper()
	e := newEngine("prefill")
	e.says(switchPath, 200, `{"success":true}`)
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(spread{}, spread{}), Suspect: func() {}})
	require.NoError(t, err)
	c := &turmoil{set: set, seen: map[*pools.Member]bool{}}
	c.Registry = newRegistry(t, set, Options{
		Ranks: true, Transport: inMemory{e}, Drain: 20 * time.Millisecond, SwitchEvery: time.Nanosecond,
		StateFile: filepath.Join(t.TempDir(), "state.json"),
	})
	for i := range 12 {
		c.specs = append(c.specs, Spec{URL: fmt.Sprintf("http://w:%d", i+1), Role: pd.Role(i % 2)})
	}
	return c
}

// some are workers by chance.
func (c *turmoil) some(r *rand.Rand) []Spec {
	var out []Spec
	for _, spec := range c.specs {
		if r.IntN(3) > 0 {
			out = append(out, spec)
		}
	}
	return out
}

// change wants something of the registry.
func (c *turmoil) change(t *testing.T, r *rand.Rand) {
	spec := c.specs[r.IntN(len(c.specs))]
	id, n := IDOf(spec.URL), r.IntN(100)
	switch r.IntN(9) {
	case 0, 1:
		c.Apply([]string{"file", "dns"}[n%2], c.some(r))
	case 2:
		_, _ = c.Add(spec)
	case 3:
		_ = c.Remove(id)
	case 4:
		_ = c.Update(id, Change{Priority: &n})
	case 5:
		_ = c.Drain(id)
		_ = c.Resume(id)
	case 6:
		_ = c.learn(id, Facts{Model: "m", DPSize: n % 4})
	case 7:
		_, _ = c.SwitchRole(t.Context(), id, Switch{Role: pd.Role(n % 2), DrainTimeout: 5 * time.Millisecond, Force: true})
	default:
		assert.NotNil(t, c.Status().Workers)
	}
	for _, m := range c.set.Members() {
		m.Up()
	}
}

// call is given a pair, and gives it back. False if there was none.
func (c *turmoil) call(t *testing.T) bool {
	plans, err := c.set.Plan(t.Context(), nil, 2, nil)
	if err != nil {
		return false
	}
	c.sees.Lock()
	for _, w := range []*pd.Worker{plans[0].Prefill.Worker, plans[0].Decode.Worker} {
		if m := c.set.Find(w.ID); m != nil {
			c.seen[m] = true
		}
	}
	c.sees.Unlock()
	time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
	for _, p := range plans {
		p.End(pd.Success, pd.Success)
	}
	return true
}

func TestTurmoil(t *testing.T) {
	c := newTurmoil(t)
	runs(t, c.Run)
	var changing, calling sync.WaitGroup
	var over atomic.Bool
	var calls atomic.Int64
	for i := range 4 {
		changing.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range 150 {
				c.change(t, r)
			}
		})
	}
	for range 4 {
		calling.Go(func() {
			for !over.Load() {
				if c.call(t) {
					calls.Add(1)
				} else {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	changing.Wait()
	over.Store(true)
	calling.Wait()
	assert.Positive(t, calls.Load())
	c.settled(t)
}

// settled checks that in the end there is what there is to be, and nothing else.
func (c *turmoil) settled(t *testing.T) {
	t.Helper()
	c.Apply("dns", nil)
	c.Apply("file", c.specs[:2])
	for _, spec := range c.specs {
		_ = c.Remove(IDOf(spec.URL))
	}
	for m := range c.seen {
		assert.Zero(t, m.InFlight(), m.Worker.URL)
		assert.Zero(t, m.Work(), m.Worker.URL)
	}
	soon(t, "all have gone", func() bool { return len(c.set.Members()) == 0 })
	assert.Empty(t, c.Status().Workers)
	assert.Empty(t, kept(t, c.opt.StateFile))
	c.Apply("file", nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	assert.Equal(t, []int{0, 0, 0}, []int{len(c.entries), len(c.urls), len(c.ids)})
}

// A list of many workers is followed without looking at all of them for each.
func TestAThousandWorkersAreSoonFollowed(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	specs := make([]Spec, 2000)
	for i := range specs {
		specs[i] = Spec{URL: fmt.Sprintf("http://w:%d", i+1), Role: pd.Role(i % 2)}
	}
	began := time.Now()
	r.Apply("file", specs)
	assert.Len(t, set.Members(), len(specs))
	r.Apply("file", specs)
	for _, spec := range specs[:200] {
		require.NoError(t, r.learn(IDOf(spec.URL), Facts{Model: "m"}))
	}
	r.Apply("file", nil)
	assert.Empty(t, set.Members())
	assert.Less(t, time.Since(began), time.Minute)
}
