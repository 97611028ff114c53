package policy

import (
	"container/heap"
	"container/list"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// The engines that are reckoned with: an 8B model on one H100, a token of prompt
// being four bytes of it.
const (
	secondsPerToken   = 46e-6
	secondsPerRequest = 0.010
	bytesPerToken     = 4
)

// cluster is prefill engines with a clock of their own. Each takes its prompts in
// turn and caches those it has had last.
type cluster struct {
	testing.TB
	set     *pools.Set
	now     float64 // seconds
	engines map[pd.WorkerID]*engine
	running ends

	tokens, cached int
}

// engine is one prefill.
type engine struct {
	member *pools.Member
	free   float64 // when it is done with all it has
	pool   int     // tokens its cache has room for
	used   int
	lru    *list.List // of part, the one used last in front
	parts  map[string]*list.Element
	load   int // sum of what was in flight when prompts came
}

// part is what a cache keeps or drops as a whole.
type part struct {
	text   string
	tokens int
}

func newCluster(t testing.TB, policy pools.Policy, engines, pool int) *cluster {
	t.Helper()
	workers := []*pd.Worker{{ID: "decode", Role: pd.Decode}}
	for i := range engines {
		w := prefillWorker(i)
		w.KVTokens = pool
		workers = append(workers, w)
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(policy, Random{})})
	require.NoError(t, err)
	f := &cluster{TB: t, set: set, engines: map[pd.WorkerID]*engine{}}
	for _, m := range set.Members() {
		if m.Worker.Role == pd.Prefill {
			f.engines[m.Worker.ID] = &engine{member: m, pool: pool, lru: list.New(), parts: map[string]*list.Element{}}
		}
	}
	return f
}

// send has a prompt of two parts computed by whom the policy picks, and returns who
// that is.
func (f *cluster) send(prefix, rest string) pd.WorkerID {
	for _, e := range f.engines {
		e.load += int(e.member.InFlight())
	}
	plans, err := f.set.Plan(f.Context(), promptRequest(f, prefix+rest), 1, nil)
	require.NoError(f, err)
	e := f.engines[plans[0].Prefill.Worker.ID]
	tokens := (len(prefix) + len(rest)) / bytesPerToken
	cached := e.use(prefix, rest)
	f.tokens += tokens
	f.cached += cached
	e.free = max(e.free, f.now) + secondsPerRequest + float64(tokens-cached)*secondsPerToken
	heap.Push(&f.running, end{e.free, plans[0]})
	return e.member.Worker.ID
}

// use computes a prompt and returns how many tokens of it were there.
func (e *engine) use(prefix, rest string) (cached int) {
	if _, ok := e.parts[prefix]; ok {
		cached = len(prefix) / bytesPerToken
	}
	e.keep(rest) // what comes last is dropped first
	e.keep(prefix)
	return cached
}

func (e *engine) keep(text string) {
	if el, ok := e.parts[text]; ok {
		e.lru.MoveToFront(el)
		return
	}
	p := part{text, len(text) / bytesPerToken}
	for e.used += p.tokens; e.used > e.pool; {
		oldest := e.lru.Remove(e.lru.Back()).(part)
		e.used -= oldest.tokens
		delete(e.parts, oldest.text)
	}
	e.parts[text] = e.lru.PushFront(p)
}

// until lets time pass.
func (f *cluster) until(at float64) {
	for len(f.running) > 0 && f.running[0].at <= at {
		f.next()
	}
	f.now = at
}

// next lets time pass until a prompt is done.
func (f *cluster) next() {
	e := heap.Pop(&f.running).(end)
	f.now = e.at
	e.plan.End(pd.Success, pd.Success)
}

// hitRate is the share of tokens that were cached, and starts counting again.
func (f *cluster) hitRate() float64 {
	rate := float64(f.cached) / float64(max(f.tokens, 1))
	f.tokens, f.cached = 0, 0
	return rate
}

// end is when a prompt is done.
type end struct {
	at   float64
	plan *pd.Plan
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// leastLoad picks the member with the least in flight.
type leastLoad struct{}

func (leastLoad) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	best := members[0]
	for _, m := range members {
		if m.InFlight() < best.InFlight() {
			best = m
		}
	}
	return best
}

// A thousand system prompts, of which each of eight engines has room for one in ten:
// 60 requests a second.
func TestManyPrefixes(t *testing.T) {
	const pool, prefixes = 214_284, 1000
	run := func(policy pools.Policy, requests int) float64 {
		f := newCluster(t, policy, 8, pool)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range requests {
			f.until(f.now + r.ExpFloat64()/60)
			f.send(distinct(fmt.Sprintf("prefix %d ", r.IntN(prefixes)), 8<<10), distinct(fmt.Sprint(i), 40))
			if i == requests*2/3 {
				f.hitRate()
			}
		}
		return f.hitRate()
	}
	turns, aware := run(new(RoundRobin), 3000), run(NewCacheAware(CacheAwareOptions{}), 12_000)
	t.Logf("hit rate %.3f in turns, %.3f by cache", turns, aware)
	assert.InDelta(t, 0.10, turns, 0.02)
	assert.GreaterOrEqual(t, aware, 0.80)
}

// Prompts of which a fifth is shared: a rule that asks for a larger part to match
// before it looks at caches goes by load alone here.
func TestShortPrefixesOfLongPrompts(t *testing.T) {
	const pool, tenants, requests = 428_569, 40, 1600
	run := func(policy pools.Policy) float64 {
		f := newCluster(t, policy, 8, pool)
		r := rand.New(rand.NewPCG(2, 1))
		for i := range requests {
			f.until(f.now + r.ExpFloat64()/14)
			f.send(distinct(fmt.Sprintf("tenant %d ", r.IntN(tenants)), 8<<10), distinct(fmt.Sprint(i), 32<<10))
			if i == requests/4 {
				f.hitRate()
			}
		}
		return f.hitRate()
	}
	load, aware := run(leastLoad{}), run(NewCacheAware(CacheAwareOptions{}))
	t.Logf("hit rate %.3f by load, %.3f by cache", load, aware)
	assert.InDelta(t, 0.137, load, 0.01)
	assert.GreaterOrEqual(t, aware, 0.15)
}

// Two prompts of five begin the same, and engines always have something to do: no
// worker is left alone with all of them.
func TestAHotPrefixSpreads(t *testing.T) {
	const pool, engines, requests = 214_284, 8, 4000
	for _, inFlight := range []int{8, 16} {
		t.Run(fmt.Sprintf("%d in flight each", inFlight), func(t *testing.T) {
			f := newCluster(t, NewCacheAware(CacheAwareOptions{}), engines, pool)
			r := rand.New(rand.NewPCG(3, 1))
			for i := range requests {
				if i >= engines*inFlight {
					f.next()
				}
				prefix := 0
				if r.IntN(5) >= 2 {
					prefix = 1 + r.IntN(999)
				}
				f.send(distinct(fmt.Sprintf("prefix %d ", prefix), 8<<10), distinct(fmt.Sprint(i), 400))
			}
			for id, e := range f.engines {
				mean := float64(e.load) / requests
				assert.Less(t, mean, 2*float64(inFlight), id)
				assert.Greater(t, mean, float64(inFlight)/2, id)
			}
			t.Logf("hit rate %.3f", f.hitRate())
		})
	}
}

// All prompts begin the same and then differ: nobody is left without work.
func TestASharedBeginningStarvesNobody(t *testing.T) {
	const pool, engines, requests = 214_284, 4, 2000
	f := newCluster(t, NewCacheAware(CacheAwareOptions{}), engines, pool)
	r := rand.New(rand.NewPCG(4, 1))
	had := map[pd.WorkerID]int{}
	for i := range requests {
		f.until(f.now + r.ExpFloat64()/40)
		had[f.send(distinct("system", 8<<10), distinct(fmt.Sprint(i), 4<<10))]++
	}
	evenly(t, had, engines, 0.06)
}
