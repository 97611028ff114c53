package policy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Assignment is how [Manual] chooses a worker where none is remembered.
type Assignment string

// The assignments. Among equals each chooses at random.
const (
	AssignRandom   Assignment = "random"
	AssignMinLoad  Assignment = "min_load"  // fewest samples in flight
	AssignMinGroup Assignment = "min_group" // fewest keys that were sent there last
)

// ManualOptions configure a [Manual]. Functions are called on the goroutines of
// requests, under no lock; they must be quick.
type ManualOptions struct {
	// Key is the session that a request belongs to, "" for none; nil for the routing
	// key in its headers, as the other keyed policies have it. It is not called with
	// nil.
	Key        func(*pd.Request) string
	Assignment Assignment // AssignRandom if empty
	// MaxIdle is how long a key is remembered behind its last request; 0 for 4 hours.
	MaxIdle time.Duration
	// MaxKeys bounds the keys that are remembered, each in some 430 bytes, or 500
	// with a store; 0 for 1,048,576. One more makes the one unused for longest go.
	MaxKeys int
	// Store is where routers agree; nil for a router that is alone.
	Store Store
	// StoreTimeout is how long a request waits for the store; 0 for 20 ms.
	StoreTimeout time.Duration
	// Bound is called when a named bound was hit: "manual_keys", a key was forgotten
	// before its time; "manual_store", a key was decided without the store, or what
	// it should be told of one has no place in the queue.
	Bound func(name string)
	// StoreFailed is called with the error of every call to the store that failed,
	// Panic when one panicked. Both may also be called on a goroutine of the policy.
	StoreFailed func(error)
	Panic       func(value any, stack []byte)
}

func (o ManualOptions) withDefaults() ManualOptions {
	if o.Key == nil {
		o.Key = routingKey
	}
	o.Assignment = cmp.Or(o.Assignment, AssignRandom)
	o.MaxIdle = cmp.Or(o.MaxIdle, 4*time.Hour)
	o.MaxKeys = cmp.Or(o.MaxKeys, 1<<20)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, 20*time.Millisecond)
	if o.Bound == nil {
		o.Bound = func(string) {}
	}
	if o.StoreFailed == nil {
		o.StoreFailed = func(error) {}
	}
	if o.Panic == nil {
		o.Panic = func(any, []byte) {}
	}
	return o
}

// Manual keeps the requests of a session on one worker. A session has up to two
// workers: a request goes to the first of them that is offered, and where none is,
// to another, which joins them; of two the older makes room. So a worker that is
// well again takes its sessions back, and one that is new takes none from others.
//
// With a store, several routers send a session to the same worker. A decision then
// does what no other policy may: the first request of a key that this router does
// not know waits for the store, for StoreTimeout at most. Every other request is
// decided from memory, and the store is told and asked again behind it; see [Store].
type Manual struct {
	opt    ManualOptions
	epoch  time.Time // what instants count from
	shared *shared   // nil without a store

	mu    sync.Mutex
	hosts map[pd.WorkerID]*host // of the members of the pool
	known map[sessionKey]*session
	used  session // root of the ring of the known; used.next is unused for longest
}

// host is what is kept of a member.
type host struct {
	place int // in the pool
	keys  int // sessions that were sent here last
}

// sessionKey stands for a key. Keys are as long as clients like, and may be
// cookies, which are nobody's to keep.
type sessionKey [16]byte

func keyOf(name string) sessionKey {
	sum := sha256.Sum256([]byte(name))
	return sessionKey(sum[:])
}

// session is what is known of a key.
type session struct {
	key        sessionKey
	workers    candidates
	last       *host         // where it was sent last, nil if that was no member
	at         time.Duration // when
	prev, next *session      // in the order of at
	synced     *synced       // nil without a store
}

// candidates are the ids of the workers of a session, the older first; "" is none.
type candidates [2]pd.WorkerID

// with is c and id, without the older one if need be.
func (c candidates) with(id pd.WorkerID) candidates {
	switch {
	case slices.Contains(c[:], id):
		return c
	case c[0] == "":
		return candidates{id}
	case c[1] == "":
		return candidates{c[0], id}
	}
	return candidates{c[1], id}
}

// NewManual is a policy for one pool. One with a store works until ctx ends or
// Close is called; without a store there is nothing to end.
func NewManual(ctx context.Context, opt ManualOptions) (*Manual, error) {
	opt = opt.withDefaults()
	switch {
	case !slices.Contains([]Assignment{AssignRandom, AssignMinLoad, AssignMinGroup}, opt.Assignment):
		return nil, fmt.Errorf("policy manual: assignment %q is unknown: want %s, %s or %s",
			opt.Assignment, AssignRandom, AssignMinLoad, AssignMinGroup)
	case opt.MaxIdle < 0 || opt.MaxKeys < 0 || opt.StoreTimeout < 0:
		return nil, errors.New("policy manual: a bound is negative")
	}
	p := &Manual{
		opt: opt, epoch: time.Now(),
		hosts: make(map[pd.WorkerID]*host), known: make(map[sessionKey]*session),
	}
	p.used.prev, p.used.next = &p.used, &p.used
	if opt.Store != nil {
		p.shared = share(ctx, p)
	}
	return p, nil
}

// Close ends what goes on behind the requests and waits for it; what the store has
// not been told by then it is not told. Picks go on, without the store.
func (p *Manual) Close() {
	if p.shared != nil {
		p.shared.close()
	}
}

// Follow implements [pools.Follower].
func (p *Manual) Follow(members []*pools.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hosts := make(map[pd.WorkerID]*host, len(members))
	for i, m := range members {
		h := p.hosts[m.Worker.ID]
		if h == nil {
			h = &host{}
		}
		h.place = i
		hosts[m.Worker.ID] = h
	}
	p.hosts = hosts
}

// Chosen implements [pools.Follower]. Pick has noted the worker already: the next
// request of a session may be decided before this one is under way.
func (p *Manual) Chosen(*pd.Request, *pools.Member) {}

// Pick implements [pools.Policy]; see [Manual] on what it may wait for.
func (p *Manual) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	var name string
	if req != nil {
		name = p.opt.Key(req)
	}
	if name == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.assign(members)
	}
	key := keyOf(name)
	if p.shared != nil && !p.knows(key) {
		p.shared.ask(key, members)
	}
	m, dropped, unsent := p.pick(key, members)
	if dropped {
		p.opt.Bound("manual_keys")
	}
	if unsent {
		p.opt.Bound("manual_store")
	}
	return m
}

// pick decides from memory. It reports whether a key had to go before its time, and
// whether the store cannot be told.
func (p *Manual) pick(key sessionKey, members []*pools.Member) (m *pools.Member, dropped, unsent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, dropped := p.session(key, p.now())
	m = p.usable(s.workers, members)
	if m == nil {
		m = p.assign(members)
		s.workers = p.remaining(s.workers).with(m.Worker.ID)
	}
	s.sentTo(p.hosts[m.Worker.ID])
	if p.shared != nil {
		unsent = !p.shared.follow(s)
	}
	return m, dropped, unsent
}

// usable is the first of the candidates that is offered.
func (p *Manual) usable(workers candidates, members []*pools.Member) *pools.Member {
	for _, id := range workers {
		if h := p.hosts[id]; h != nil {
			if m := find(members, id, h.place); m != nil {
				return m
			}
		}
	}
	return nil
}

// remaining is the candidates less those who have left the pool. With a store they
// stay: what this router does not know another one may, and knows first.
func (p *Manual) remaining(workers candidates) candidates {
	if p.shared != nil {
		return workers
	}
	var left candidates
	for _, id := range workers {
		if p.hosts[id] != nil {
			left = left.with(id)
		}
	}
	return left
}

// assign chooses one of members, of which there are some.
func (p *Manual) assign(members []*pools.Member) *pools.Member {
	switch p.opt.Assignment {
	case AssignMinLoad:
		return least(members, (*pools.Member).InFlight)
	case AssignMinGroup:
		return least(members, func(m *pools.Member) int64 {
			if h := p.hosts[m.Worker.ID]; h != nil {
				return int64(h.keys)
			}
			return 0
		})
	}
	return members[rand.IntN(len(members))]
}
