package policy

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kvindex"
)

// CacheAwareOptions configure a CacheAware policy. The zero value will do.
type CacheAwareOptions struct {
	// Memory bounds the index of who holds what, in bytes; 0 for
	// [kvindex.DefaultMemory].
	Memory int64
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
// What is in the caches it knows from what it has sent; see package kvindex. A
// worker that was dead and comes back has nothing, and so has one that keeps saying
// that it has not what it should have: see [CacheAware.Learned]. A breaker that
// opens makes nobody forget anything. The policy belongs to one pool.
type CacheAware struct {
	index   *kvindex.Index
	turn    atomic.Uint64 // counts the prompts that no worker holds most of
	scratch sync.Pool     // of *scratch

	mu   sync.Mutex // held while the pool changes
	pool atomic.Pointer[pool]
}

// pool is who there is at one instant. It never changes.
type pool struct {
	*roster
	accounts []*account // of the members
}

// NewCacheAware makes a policy for one pool.
func NewCacheAware(opt CacheAwareOptions) *CacheAware {
	p := &CacheAware{index: kvindex.New(kvindex.Options{Memory: opt.Memory, Bound: opt.Bound})}
	p.scratch.New = func() any { return new(scratch) }
	p.pool.Store(&pool{roster: &roster{}})
	return p
}

// scratch is the memory of one choice, used again by another.
type scratch struct {
	prompt []byte // that chain is of
	chain  []uint64
	match  kvindex.Match
	offers []offer
}

// hash has the chain of a prompt in s. Chosen follows Pick and has the same scratch,
// as a rule: then the chain is there.
func (s *scratch) hash(index *kvindex.Index, prompt []byte) {
	if len(prompt) > 0 && len(prompt) == len(s.prompt) && &prompt[0] == &s.prompt[0] {
		return
	}
	s.prompt, s.chain = prompt, index.Chain(s.chain, prompt)
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
	pool := p.pool.Load()
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	prompt := promptOf(req)
	s.hash(p.index, prompt)
	p.index.Lookup(s.chain, &s.match)
	s.gather(pool, members, int64(len(prompt)), items(req))
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

// gather makes the offers of all members for so many prompts of so many bytes.
func (s *scratch) gather(pool *pool, members []*pools.Member, prompt, items int64) {
	s.offers = slices.Grow(s.offers[:0], len(members))
	at := 0
	for _, m := range members {
		var o offer
		o.account, at = pool.account(m, at)
		if o.account != nil && o.ups == m.Ups() {
			o.held = int64(kvindex.Bytes(s.match.Blocks(o.worker)))
		}
		o.cost = o.backlog(m) + (prompt-o.held)*items
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
	a, _ := p.pool.Load().account(m, 0)
	if a != nil && a.ups != m.Ups() {
		a = p.forget(a)
	}
	if a == nil {
		return // it has just been removed
	}
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	prompt := promptOf(req)
	s.hash(p.index, prompt)
	held := kvindex.Bytes(a.worker.Insert(s.chain))
	s.prompt = nil // nothing is kept of who has been sent
	a.add(sent{
		body: bodyOf(req), uncached: int64(len(prompt)-held) * items(req),
		mark: markOf(s.chain, prompt), held: held,
	})
}

// Learned implements [pools.Learner]. A worker that has less than the quarter of what it
// should have, five times in a row, is taken to have lost its cache, and what is
// known of it is forgotten. One time says little: by then the worker has what it
// had to compute.
func (p *CacheAware) Learned(req *pd.Request, w pd.WorkerID, prompt, cached int) {
	pool := p.pool.Load()
	i, ok := pool.places[w]
	if !ok || prompt <= 0 {
		return
	}
	s := p.scratch.Get().(*scratch)
	defer p.scratch.Put(s)
	text := promptOf(req)
	s.hash(p.index, text)
	s.prompt = nil
	had := int(float64(cached) / float64(prompt) * float64(len(text)))
	if a := pool.accounts[i]; a.judge(markOf(s.chain, text), had) {
		p.forget(a)
	}
}

// Follow implements [pools.Follower]: who is new holds nothing, and who is gone is
// forgotten.
func (p *CacheAware) Follow(members []*pools.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.pool.Load()
	next := &pool{newRoster(members), make([]*account, len(members))}
	kept := make(map[*account]bool, len(members))
	for i, m := range members {
		if j, ok := old.places[m.Worker.ID]; ok && old.members[j].Is(m) {
			next.accounts[i] = old.accounts[j]
			next.accounts[i].worker.SetCapacity(capacity(m.Worker))
			kept[next.accounts[i]] = true
		} else {
			next.accounts[i] = p.open(m)
		}
	}
	p.pool.Store(next)
	for _, a := range old.accounts {
		if !kept[a] {
			a.worker.Leave()
		}
	}
}

// forget puts a new account in the place of a, and returns it; nil if a's worker
// has been removed. Where somebody else was faster, it is theirs.
func (p *CacheAware) forget(a *account) *account {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.pool.Load()
	i, ok := old.places[a.id]
	if !ok || old.accounts[i] != a {
		if ok {
			return old.accounts[i]
		}
		return nil
	}
	next := &pool{old.roster, slices.Clone(old.accounts)}
	next.accounts[i] = p.open(old.members[i])
	p.pool.Store(next)
	a.worker.Leave()
	return next.accounts[i]
}

// open makes the account of a worker that holds nothing.
func (p *CacheAware) open(m *pools.Member) *account {
	return &account{id: m.Worker.ID, ups: m.Ups(), worker: p.index.Join(capacity(m.Worker))}
}

// capacity is the room for prompts in a worker's KV cache, in blocks of the index.
func capacity(w *pd.Worker) int { return w.KVTokens * tokenBytes / kvindex.BlockBytes }

// account is that of m, nil if it has none, and where to look for the next
// member; see [roster.place].
func (p *pool) account(m *pools.Member, at int) (*account, int) {
	place, next := p.place(m, at)
	if place < 0 {
		return nil, next
	}
	return p.accounts[place], next
}
