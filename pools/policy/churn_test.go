package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestEveryPolicyPicksOneOfThoseOffered(t *testing.T) {
	for name, build := range builders() {
		t.Run(name, func(t *testing.T) {
			p := build(t)
			assert.Nil(t, p.Pick(nil, nil), "nobody is offered")
			for _, n := range []int{1, 2, 3, 64} {
				members := idle(t, n)
				follow(p, members)
				before := slices.Clone(members)
				picked := map[*pools.Member]int{}
				for range 200 * n {
					m := p.Pick(nil, members) // a request that nothing is known of
					require.True(t, slices.Contains(before, m))
					picked[m]++
				}
				assert.Len(t, picked, n, "equal members are all used")
				for _, count := range picked {
					assert.Greater(t, count, 60, "none is starved")
				}
				assert.Equal(t, before, members, "the list is not changed")
				for i, req := range visits(t, 20) {
					offered := members[i%n:]
					require.True(t, slices.Contains(offered, p.Pick(req, offered)), "some are out")
				}
				follow(p, nil)
				assert.Nil(t, p.Pick(visit(t, 0), nil))
			}
		})
	}
}

// follow tells a policy who there is, if it wants to know.
func follow(p pools.Policy, members []*pools.Member) {
	if f, ok := p.(pools.Follower); ok {
		f.Follow(members)
	}
}

// Workers come, go, die, drain and change while requests are sent: all that is
// taken is given back, nobody who is out is chosen, and in the end all are used.
func TestPoolsChangeWhileRequestsAreSent(t *testing.T) {
	for name, build := range builders() {
		t.Run(name, func(t *testing.T) {
			_, p := Targeted(Random{}, build(t))
			set := fleet(t, 6, p)
			var requests, changes sync.WaitGroup
			for range 4 {
				reqs := visits(t, 60)
				for i := 0; i < len(reqs); i += 10 {
					reqs[i].Header.Set(headerTargetWorker, fmt.Sprintf("decode-%d", 2+i%4))
				}
				requests.Go(func() { sendMany(t, set, reqs, 300) })
			}
			stop := make(chan struct{})
			changes.Go(func() { comeAndGo(t, set, stop) })
			requests.Wait()
			close(stop)
			changes.Wait()

			for _, m := range set.Members() {
				assert.Zero(t, m.InFlight(), m.Worker.ID)
				assert.Zero(t, m.Work(), m.Worker.ID)
			}
			used := map[pd.WorkerID]bool{}
			for i := range 400 {
				used[home(t, set, visit(t, 1000+i))] = true
			}
			assert.Len(t, used, 6)
			for id := range used {
				assert.NotNil(t, set.Find(id), "%s is gone", id)
			}
		})
	}
}

// sendMany sends n requests, of one or two samples each.
func sendMany(t *testing.T, set *pools.Set, reqs []*pd.Request, n int) {
	for i := range n {
		plans, err := set.Plan(t.Context(), reqs[i%len(reqs)], 1+i%2, nil)
		if !assert.NoError(t, err) {
			return
		}
		finish(plans)
	}
}

// comeAndGo changes a fleet until stop is closed. Workers 2 to 5 are there at all times.
func comeAndGo(t *testing.T, set *pools.Set, stop <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		w := *decoder(6 + i%3)
		w.KVTokens = i
		assert.NoError(t, set.Add(&w))
		set.Drain("decode-1")
		set.Find("decode-0").Down("went away")
		w.KVTokens = 1000
		assert.NoError(t, set.Update(&w))
		set.Resume("decode-1")
		set.Find("decode-0").Up()
		assert.NoError(t, set.Remove(w.ID))
	}
}

// What the engines say of their caches comes whenever it comes.
func TestEnginesSpeakWhileRequestsAreSent(t *testing.T) {
	p := NewCacheAware(CacheAwareOptions{Memory: 50_000})
	set := fleet(t, 4, p)
	var all sync.WaitGroup
	for g := range uint64(4) {
		reqs := visits(t, 60)
		all.Go(func() {
			r := rand.New(rand.NewPCG(g, 2))
			for range 300 {
				req := reqs[r.IntN(len(reqs))]
				plans, err := set.Plan(t.Context(), req, 1, nil)
				if !assert.NoError(t, err) {
					return
				}
				finish(plans)
				p.Learned(req, plans[0].Decode.Worker.ID, 200, 100*r.IntN(2))
			}
		})
	}
	all.Wait()
	pool := p.pool.Load()
	assert.Len(t, pool.accounts, 4)
	for i, a := range pool.accounts {
		assert.Equal(t, pool.members[i].Worker.ID, a.id)
		assert.Less(t, a.misses, maxMisses)
	}
}
