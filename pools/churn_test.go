package pools_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// turmoil is a set whose members come and go while calls are planned and end in
// all ways.
type turmoil struct {
	set *pools.Set
	// out counts, for each worker, the times it was taken out and put back: odd
	// while it is surely out.
	out   map[pd.WorkerID]*atomic.Int64
	calls atomic.Int64
}

// call plans, makes progress, and ends. It returns the worker that was given work
// while it was out all the time.
func (c *turmoil) call(t *testing.T, r *rand.Rand) (wrong pd.WorkerID) {
	before := map[pd.WorkerID]int64{}
	for id, n := range c.out {
		before[id] = n.Load()
	}
	var avoid []pd.WorkerID
	if r.IntN(4) == 0 {
		avoid = []pd.WorkerID{"prefill-1", "decode-2"}
	}
	plans, err := c.set.Plan(t.Context(), nil, 1+r.IntN(3), avoid)
	if err != nil {
		return ""
	}
	c.calls.Add(1)
	for _, id := range []pd.WorkerID{plans[0].Prefill.Worker.ID, plans[0].Decode.Worker.ID} {
		if n := before[id]; n%2 == 1 && n == c.out[id].Load() {
			wrong = id
		}
	}
	for _, p := range plans {
		if r.IntN(2) == 0 {
			p.Decode.Progress()
		}
		if r.IntN(2) == 0 {
			p.Prefill.End(pd.Outcome(r.IntN(int(pd.Echo) + 1)))
		}
		p.End(pd.Outcome(r.IntN(int(pd.Echo)+1)), pd.Outcome(r.IntN(int(pd.Echo)+1)))
	}
	return wrong
}

// change takes a worker out and puts it back, or speaks of its health.
func (c *turmoil) change(m *pools.Member, r *rand.Rand) {
	out := c.out[m.Worker.ID]
	switch r.IntN(4) {
	case 0:
		c.set.Drain(m.Worker.ID)
		out.Add(1)
		time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		out.Add(1)
		c.set.Resume(m.Worker.ID)
	case 1:
		m.Blame()
	case 2:
		m.Down("went away")
	default:
		m.Up()
	}
}

func TestTurmoil(t *testing.T) {
	const callers, changes, each = 6, 600, 800
	prefill, err := policy.ByName(policy.Default)
	require.NoError(t, err)
	told := map[pd.WorkerID]pools.State{}
	var mu sync.Mutex
	set := allUp(newSet(t, 3, 4, watched(pools.Options{
		Policies: pools.Share(prefill, new(policy.RoundRobin)), MaxInFlight: 8,
		Breakers: pools.Breakers{Failures: 3, Trials: 2, Open: time.Millisecond, Trial: time.Millisecond},
		Changed: func(w *pd.Worker, to pools.State, _ string) {
			mu.Lock()
			defer mu.Unlock()
			told[w.ID] = to
		},
	})))
	c := &turmoil{set: set, out: map[pd.WorkerID]*atomic.Int64{}}
	for _, m := range set.Members() {
		c.out[m.Worker.ID] = new(atomic.Int64)
	}

	var wg sync.WaitGroup
	for g := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range each {
				if wrong := c.call(t, r); wrong != "" {
					t.Errorf("%s was given work while it was out", wrong)
				}
			}
		})
	}
	for i, m := range set.Members() {
		wg.Go(func() { // one for each, so that nobody else resumes it
			r := rand.New(rand.NewPCG(2, uint64(i)))
			for range changes / len(set.Members()) {
				c.change(m, r)
			}
		})
	}
	wg.Wait()

	assert.Positive(t, c.calls.Load())
	for _, w := range set.Status().Workers {
		m := set.Find(w.ID)
		assert.Zero(t, w.InFlight, w.ID)
		_, _, under := pools.Verdicts(m)
		assert.Zero(t, under, "%s has a trial that was not settled", w.ID)
		shown := w.State
		if shown == pools.Busy {
			shown = pools.Ready
		}
		assert.Equal(t, shown, told[w.ID], "the last change of %s was told last", w.ID)
		if w.State != pools.Dead { // which hides it
			assert.Equal(t, w.Breaker != "closed", w.State == pools.Broken, "%s is %s, its breaker %s", w.ID, w.State, w.Breaker)
		}
		m.Down("went away")
		m.Up()
		assert.Equal(t, pools.Ready, m.State(), "%s comes back", w.ID)
		assert.Equal(t, "closed", breakerOf(set, w.ID))
	}
}

// A hook may be slow, but it never waits for something that waits for it.
func TestChangesAreToldWhileOthersRead(t *testing.T) {
	var set *pools.Set
	var reads atomic.Int64
	set = newSet(t, 2, 2, pools.Options{
		Breakers: pools.Breakers{Failures: 1, Open: time.Millisecond},
		Changed:  func(*pd.Worker, pools.State, string) { reads.Add(int64(len(set.Status().Workers))) },
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				plans, err := set.Plan(t.Context(), nil, 1, nil)
				if err == nil {
					plans[0].End(pd.Fault, pd.Fault)
				}
				set.Drain("decode-0")
				set.Resume("decode-0")
			}
		})
	}
	wg.Wait()
	assert.Positive(t, reads.Load())
}
