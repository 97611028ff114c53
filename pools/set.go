package pools

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Policy picks one of members, all of one role and all of them usable, for a
// request. It does no I/O, does not block, does not keep members, and is called
// from many goroutines at once, more than once for a plan when a member that was
// usable no longer is. Nil means that none will do.
type Policy interface {
	Pick(req *pd.Request, members []*Member) *Member
}

// A Follower is a policy that keeps something of its pool: it hears of what has
// been chosen, and of who there is. It is called from many goroutines at once.
type Follower interface {
	Policy
	// Chosen is called when m has been taken for req, before anything is sent.
	Chosen(req *pd.Request, m *Member)
	// Follow is called with all members of the pool, whatever their state, before
	// the first request and when that changes. It must not keep the slice.
	Follow(members []*Member)
}

// A Learner is a policy that takes into account what engines say of their caches.
// It is called from many goroutines at once, when a request is over.
type Learner interface {
	Policy
	// Learned tells what worker w has said of a request that it was sent: the tokens
	// of its prompt, and how many of them it had in its cache.
	Learned(req *pd.Request, w pd.WorkerID, prompt, cached int)
}

// Options configure a Set. Functions are called on the goroutines of requests,
// some under locks: they must be quick, and may do no more with the set than read
// its Status.
type Options struct {
	// Policies makes the policies of the pools of one model. It is needed, is called
	// once for each model that comes to be served, under the lock of the membership,
	// and again if the model went and comes back. The name is empty where no
	// worker's model is known.
	Policies func(model string) (Policies, error)
	// Regular says that the workers are whole engines: a plan is one of them. Else
	// it is a pair.
	Regular  bool
	Breakers Breakers
	// MaxInFlight bounds the samples in flight on each worker; 0 for no bound.
	MaxInFlight int
	// Suspect is called when some member should be looked at soon; see
	// Member.Suspected. It says that the members are watched over: they begin as
	// starting, and one that refuses a connection is out until Member.Up. Nil
	// means that every member serves at all times.
	Suspect func()
	// Changed is called when a worker's state changes, in order and once for each
	// change, and when one that drains has nothing left; why is empty or a short
	// reason. Busy is over in a second and counts as Ready here.
	Changed func(w *pd.Worker, to State, why string)
	// Bound is called when a named bound was hit: "worker_inflight", "pairs".
	Bound func(name string)
}

// Set is the planner over pools of workers: one of each role for each model.
type Set struct {
	opt     Options
	current atomic.Pointer[snapshot]
	change  sync.Mutex // held while the membership changes
	pairs   *pairs
	epoch   time.Time    // what instants count from
	forced  atomic.Int64 // instant of the last call sent in spite of open breakers
}

// New is a set of workers, whose ids must differ. A role without workers is no
// error: requests get one until there are some.
func New(workers []*pd.Worker, opt Options) (*Set, error) {
	if opt.Policies == nil {
		return nil, errors.New("pools: there are no policies")
	}
	if opt.Bound == nil {
		opt.Bound = func(string) {}
	}
	opt.Breakers = opt.Breakers.withDefaults()
	s := &Set{opt: opt, pairs: newPairs(opt), epoch: time.Now().Add(-time.Hour)}
	var members []*Member
	for _, w := range workers {
		if w.ID == "" || index(members, w.ID) >= 0 {
			return nil, fmt.Errorf("pools: worker id %q is empty or used twice", w.ID)
		}
		if err := s.fits(w); err != nil {
			return nil, err
		}
		members = append(members, newMember(s, w))
	}
	if err := s.publish(members); err != nil {
		return nil, err
	}
	return s, nil
}

// watched reports whether somebody looks at the members' health.
func (s *Set) watched() bool { return s.opt.Suspect != nil }

// instant is t as nanoseconds of the monotonic clock, which nobody sets back, for
// atomic variables. 0 is long before the set was made.
func (s *Set) instant(t time.Time) int64 { return int64(t.Sub(s.epoch)) }

// Members lists every member, in the order in which they were given.
func (s *Set) Members() []*Member { return slices.Clone(s.current.Load().members) }

// Workers lists every worker, in the order in which they were given.
func (s *Set) Workers() []*pd.Worker {
	members := s.current.Load().members
	out := make([]*pd.Worker, len(members))
	for i, m := range members {
		out[i] = m.Worker
	}
	return out
}

// WorkersOf lists the workers that a request for a model may go to, whatever their
// state; the error is that of Plan for a model that is not served.
func (s *Set) WorkersOf(model string) ([]*pd.Worker, error) {
	g, err := s.current.Load().group(&pd.Request{Model: model})
	if err != nil {
		return nil, err
	}
	var out []*pd.Worker
	for _, pool := range g.pools {
		for _, m := range pool {
			out = append(out, m.Worker)
		}
	}
	return out, nil
}

// Find is the member with the given id, nil if there is none.
func (s *Set) Find(id pd.WorkerID) *Member { return s.current.Load().find(id) }

// Others reports whether a worker of role takes req now that is none of avoid.
func (s *Set) Others(req *pd.Request, role pd.Role, avoid []pd.WorkerID) bool {
	group, err := s.current.Load().group(req)
	return err == nil && s.others(group.pools[role], avoid)
}

func (s *Set) others(pool []*Member, avoid []pd.WorkerID) bool {
	c := choice{set: s, samples: 1, now: time.Now()}
	return slices.ContainsFunc(pool, func(m *Member) bool {
		return !slices.Contains(avoid, m.Worker.ID) && c.usable(m)
	})
}

// Last reports whether a member is the last of one of its pools to take work; the
// ranks of its engine do not count.
func (s *Set) Last(m *Member) bool {
	for _, group := range s.current.Load().groups {
		pool := group.pools[m.Worker.Role]
		if index(pool, m.Worker.ID) >= 0 && !s.others(pool, engine(pool, m)) {
			return true
		}
	}
	return false
}

// Models are the names of the models that are served, sorted; one without a name
// where no worker's model is known. One that has a worker of each role is served;
// where none has, all are.
func (s *Set) Models() []string {
	var models []string
	for _, g := range s.current.Load().served {
		models = append(models, g.model)
	}
	return models
}

// Serves reports whether worker id is alive and takes part; see [Member.Serves].
func (s *Set) Serves(id pd.WorkerID) bool {
	m := s.Find(id)
	return m != nil && m.Serves()
}

// Drain has worker id take no new work; what it has goes on. False if there is
// no such worker.
func (s *Set) Drain(id pd.WorkerID) bool { return s.drain(id, true) }

// Resume undoes Drain.
func (s *Set) Resume(id pd.WorkerID) bool { return s.drain(id, false) }

func (s *Set) drain(id pd.WorkerID, on bool) bool {
	m := s.Find(id)
	if m != nil {
		m.flag(flagDraining, on)
	}
	return m != nil
}
