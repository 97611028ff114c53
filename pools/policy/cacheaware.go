package policy

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kvindex"
)

// requestCost is what a request costs a worker besides its prompt, in bytes of
// prompt: a pass through the model takes its time even if all is cached.
const requestCost = 1 << 10

// CacheAwareOptions configure a CacheAware policy. The zero value will do.
type CacheAwareOptions struct {
	// Memory bounds the index of who holds what, in bytes; 0 for
	// [kvindex.DefaultMemory].
	Memory int64
	// Capacity is the room for prompts in a worker's KV cache, in blocks of 512
	// bytes, 0 when it is not known (yet): [kvindex.DefaultCapacity] is assumed. It
	// is asked for each request and must be quick. Nil where nobody knows.
	Capacity func(w *pd.Worker) int
	// Bound is called with "kvindex" when something was forgotten for want of
	// memory.
	Bound func(name string)
}

// CacheAware sends a prompt where it costs least: to the worker with the least
// to compute before its first token is out, what waits there already and what of
// the prompt is not in its cache, counted alike in bytes of prompt. Of those within
// 1 % of the least it takes the one that holds most of the prompt. Where several
// hold as much, or nobody anything, they take turns.
//
// So a short prefix counts for what it saves, however long the rest is; a worker
// with a long queue loses its prompts to one that computes them anew in less time;
// and a prefix in great demand spreads over as many workers as it keeps busy. There
// is nothing to be set for that: the thresholds of SGLang's gateway
// (--cache-threshold, --balance-abs-threshold, --balance-rel-threshold) have no
// meaning here, nor have the size of its tree and how often that is cleared
// (--max-tree-size, --eviction-interval), since a worker's blocks are forgotten one
// by one, when its cache would.
//
// What is in the caches it knows from what it has sent, not from the engines: see
// package kvindex. The policy belongs to one pool.
type CacheAware struct {
	index    *kvindex.Index
	capacity func(w *pd.Worker) int
	turn     atomic.Uint64 // counts the prompts that no worker holds most of
	scratch  sync.Pool     // of *scratch

	mu   sync.Mutex // held while the pool changes
	pool atomic.Pointer[pool]
}

// NewCacheAware makes a policy for one pool.
func NewCacheAware(opt CacheAwareOptions) *CacheAware {
	p := &CacheAware{
		index:    kvindex.New(kvindex.Options{Memory: opt.Memory, Bound: opt.Bound}),
		capacity: opt.Capacity,
	}
	if p.capacity == nil {
		p.capacity = func(*pd.Worker) int { return 0 }
	}
	p.scratch.New = func() any { return new(scratch) }
	p.pool.Store(&pool{})
	return p
}

// scratch is the memory of one choice, used again by another.
type scratch struct {
	chain  []uint64
	match  kvindex.Match
	offers []offer
}

// offer is what it would be to send a request to a member, in bytes of prompt.
type offer struct {
	*account
	cost, held int64
}

// Pick implements [pools.Policy].
func (p *CacheAware) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	prompt := promptOf(req)
	s.chain = p.index.Chain(s.chain, prompt)
	p.index.Lookup(s.chain, &s.match)
	s.gather(p.pool.Load(), members, int64(len(prompt)))
	i := s.best(int(p.turn.Load() % uint64(len(members))))
	if s.contested(i) {
		turn := p.turn.Add(1)
		if a := s.offers[i].account; a != nil {
			a.lastTurn.Store(turn)
		}
	}
	clear(s.offers) // keeps nobody's account
	return members[i]
}

// gather makes the offers of all members for a prompt of so many bytes.
func (s *scratch) gather(pool *pool, members []*pools.Member, prompt int64) {
	s.offers = slices.Grow(s.offers[:0], len(members))
	at := 0
	for _, m := range members {
		var o offer
		o.account, at = pool.find(m, at)
		if o.account != nil {
			o.held = int64(kvindex.Bytes(s.match.Blocks(o.worker)))
		}
		o.cost = o.backlog(m.InFlight()) + prompt - o.held
		s.offers = append(s.offers, o)
	}
}

// best finds the best offer. Among those that nothing tells apart it is the first
// one from start on.
func (s *scratch) best(start int) int {
	least := s.offers[0].cost
	for _, o := range s.offers {
		least = min(least, o.cost)
	}
	best := -1
	for k := range s.offers {
		i := (start + k) % len(s.offers)
		if o := s.offers[i]; o.cost <= least+least/100 && (best < 0 || o.before(s.offers[best])) {
			best = i
		}
	}
	return best
}

// before reports whether o is better than one that costs about the same.
func (o offer) before(other offer) bool {
	if o.held != other.held || o.account == nil || other.account == nil {
		return o.held > other.held
	}
	return o.lastTurn.Load() < other.lastTurn.Load()
}

// contested reports whether another than member i holds as much: it was not, or
// not alone, taken for what it holds.
func (s *scratch) contested(i int) bool {
	for j, o := range s.offers {
		if j != i && o.held >= s.offers[i].held {
			return true
		}
	}
	return false
}

// Chosen implements [pools.Follower]: m will hold the prompt.
func (p *CacheAware) Chosen(req *pd.Request, m *pools.Member) {
	a, _ := p.pool.Load().find(m, 0)
	if a == nil {
		return // it has just been removed
	}
	a.worker.SetCapacity(p.capacity(m.Worker))
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	prompt := promptOf(req)
	s.chain = p.index.Chain(s.chain, prompt)
	held := a.worker.Insert(s.chain)
	a.add(int64(len(prompt) - kvindex.Bytes(held)))
}

// Follow implements [pools.Follower]: who is new holds nothing, and who is gone is
// forgotten.
func (p *CacheAware) Follow(members []*pools.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.pool.Load()
	next := &pool{members: slices.Clone(members), of: make(map[pd.WorkerID]int, len(members))}
	for i, m := range members {
		id := m.Worker.ID
		next.of[id] = i
		if j, ok := old.of[id]; ok {
			next.accounts = append(next.accounts, old.accounts[j])
		} else {
			next.accounts = append(next.accounts, &account{worker: p.index.Join(p.capacity(m.Worker))})
		}
	}
	p.pool.Store(next)
	for id, i := range old.of {
		if _, ok := next.of[id]; !ok {
			old.accounts[i].worker.Leave()
		}
	}
}

// promptOf is the request's prompt; a call that is no request has none.
func promptOf(req *pd.Request) []byte {
	if req == nil {
		return nil
	}
	return req.Prompt()
}

// pool is who there is at one instant. It never changes.
type pool struct {
	members  []*pools.Member
	accounts []*account // of the members
	of       map[pd.WorkerID]int
}

// find is the account of m, nil if it has none, and where to look for the next
// member, at being where to look for this one. Members come in the order of the
// pool, with gaps.
func (p *pool) find(m *pools.Member, at int) (*account, int) {
	if at < len(p.members) && p.members[at] == m {
		return p.accounts[at], at + 1
	}
	if i, ok := p.of[m.Worker.ID]; ok {
		return p.accounts[i], i + 1
	}
	return nil, at
}

// account is what is kept of a worker.
type account struct {
	worker   *kvindex.Worker
	lastTurn atomic.Uint64 // when it was last given a prompt that others hold as much of

	// sums[i%remembered] is what the first i prompts have cost, those that there
	// were so far; and so the difference of two is what those between them cost.
	mu   sync.Mutex // held by who adds one
	sent atomic.Uint64
	sums [remembered]atomic.Int64
}

// remembered bounds the prompts of a worker whose cost is known. What is in flight
// beyond that counts as the mean of these.
const remembered = 64

// add counts a prompt that the worker was sent, by what is not cached of it.
func (a *account) add(uncached int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.sent.Load()
	a.sums[(n+1)%remembered].Store(a.sums[n%remembered].Load() + uncached)
	a.sent.Store(n + 1)
}

// backlog is what the worker has yet to do, in bytes of prompt. Nobody says which
// requests have ended, only how many have not: a worker takes them in turn, so it
// is those that were sent last, and half of the first of these is done, on average.
func (a *account) backlog(inFlight int64) int64 {
	if inFlight <= 0 {
		return 0
	}
	cost := inFlight*requestCost - requestCost/2
	if a == nil {
		return cost
	}
	n := a.sent.Load()
	known := min(uint64(inFlight), n, remembered-1)
	if known == 0 {
		return cost
	}
	all, rest := a.since(n, known), a.since(n, known-1)
	return cost + (all+rest)/2*inFlight/int64(known)
}

// since is what the last k of n prompts have cost.
func (a *account) since(n, k uint64) int64 {
	sum := a.sums[n%remembered].Load() - a.sums[(n-k)%remembered].Load()
	return max(sum, 0) // it may be overwritten while it is read
}
