package registry

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// The errors of a change.
var (
	ErrExists  = errors.New("there is a worker with this URL")
	ErrUnknown = errors.New("there is no worker with this id")
	ErrLeaving = errors.New("the worker is on its way out")
)

// byAPI is the source of what operators add while the router runs.
const byAPI = "api"

// drainFor is how long a worker that goes is shown as draining, at most.
const drainFor = 10 * time.Minute

// Options configure a Registry.
type Options struct {
	// Transport asks engines for their facts. It is needed where they are asked.
	Transport http.RoundTripper
	// APIKey is sent to workers whose source gives no key; empty for none.
	APIKey string
	// CloseOnly is that of every worker, see [pd.Worker].
	CloseOnly bool
	// Ranks makes each data-parallel rank of an engine a worker of its own.
	Ranks bool
	// StateFile keeps what was added by the API over a restart; empty for not.
	StateFile string
	// Drain bounds how long a worker that goes is waited for; 10 minutes if 0. What
	// it still has then goes on unseen.
	Drain time.Duration
	// Report hears, under the registry's lock, of what cannot be done: a worker of a
	// source that is refused, or state that cannot be written. Nil ignores it.
	Report func(source string, w pd.WorkerID, err error)
}

// Registry is which workers there are to be. All of its methods may be called at
// any time, from any goroutine.
type Registry struct {
	opt Options
	set *pools.Set

	mu      sync.Mutex
	entries []*entry // in the order in which they came
	wake    chan struct{}
}

// entry is one worker, by its URL.
type entry struct {
	id     pd.WorkerID
	claims []claim // the first counts; none once it is to go
	// change is what operators have changed of what the source says.
	change Change
	// deleted says that an operator has removed what a source still names.
	deleted bool
	since   time.Time
	facts   Facts
	refused string // why the engine does not join, though it is well
	// reported is why it could not be made a member when that was last tried.
	reported string

	members []*pd.Worker // those in the set, one for each rank; none while it is not there
	leaving time.Time    // until when it is waited for, zero while it is to stay
	move    *move        // its role is being switched
}

// claim is what one source says of a worker.
type claim struct {
	source string
	spec   Spec
}

// New is a registry that set follows. What the state file holds is added; the
// error is that of reading it.
func New(set *pools.Set, opt Options) (*Registry, error) {
	if opt.Drain == 0 {
		opt.Drain = drainFor
	}
	if opt.Report == nil {
		opt.Report = func(string, pd.WorkerID, error) {}
	}
	r := &Registry{opt: opt, set: set, wake: make(chan struct{}, 1)}
	if opt.StateFile != "" {
		specs, err := readState(opt.StateFile)
		if err != nil {
			return nil, err
		}
		r.Apply(byAPI, specs)
	}
	return r, nil
}

// IDOf is the id of a worker that its source has not named: the same in every
// router and after every restart.
func IDOf(url string) pd.WorkerID {
	return pd.WorkerID(uuid.NewSHA1(uuid.NameSpaceURL, []byte(url)).String())
}

// Apply makes specs all that source says. Of two sources that name one worker the
// first counts, for as long as it does; what operators add counts before both. A
// spec that cannot be served is reported and left out.
func (r *Registry) Apply(source string, specs []Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := make(map[*entry]bool, len(specs))
	for _, spec := range specs {
		e := r.claimed(source, spec)
		named[e] = true
	}
	for _, e := range slices.Clone(r.entries) {
		if !named[e] {
			e.claims = slices.DeleteFunc(e.claims, func(c claim) bool { return c.source == source })
		}
		r.report(source, e, r.settle(e))
	}
}

// report tells of what keeps a source's worker out, once for as long as it does.
func (r *Registry) report(source string, e *entry, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != e.reported {
		r.opt.Report(source, e.id, err)
	}
	e.reported = why
}

// claimed notes what a source says of a worker, which may be new.
func (r *Registry) claimed(source string, spec Spec) *entry {
	e := r.byURL(spec.URL)
	if e == nil {
		e = &entry{id: spec.ID, since: time.Now()}
		if e.id == "" {
			e.id = IDOf(spec.URL)
		}
		r.entries = append(r.entries, e)
	}
	i := slices.IndexFunc(e.claims, func(c claim) bool { return c.source == source })
	switch {
	case i >= 0:
		e.claims[i].spec = spec
	case source == byAPI:
		e.claims = slices.Insert(e.claims, 0, claim{source, spec})
	default:
		e.claims = append(e.claims, claim{source, spec})
	}
	return e
}

// Add adds a worker by the API. The error is [ErrExists] where a worker with its
// URL takes part, or says why it cannot be served.
func (r *Registry) Add(spec Spec) (pd.WorkerID, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byURL(spec.URL); e != nil && e.stays() {
		return e.id, ErrExists
	}
	e := r.claimed(byAPI, spec)
	e.deleted, e.change = false, Change{}
	if err := r.settle(e); err != nil {
		r.unclaim(e)
		return "", err
	}
	r.save()
	return e.id, nil
}

// Remove takes a worker out: it is drained, and gone when it has nothing left. A
// source that goes on naming it does not bring it back. The error is [ErrUnknown].
func (r *Registry) Remove(id pd.WorkerID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID(id)
	if e == nil || !e.stays() {
		return ErrUnknown
	}
	e.deleted = true
	r.unclaim(e)
	r.save()
	return nil
}

// unclaim drops what the API has said of an entry.
func (r *Registry) unclaim(e *entry) {
	e.claims = slices.DeleteFunc(e.claims, func(c claim) bool { return c.source == byAPI })
	_ = r.settle(e) // which has nothing to refuse where a worker goes
}

// Drain has a worker take no new work; the error is [ErrUnknown].
func (r *Registry) Drain(id pd.WorkerID) error { return r.drain(id, r.set.Drain) }

// Resume undoes Drain. The error is [ErrUnknown], or [ErrLeaving] for one that is
// drained to be removed or to switch its role.
func (r *Registry) Resume(id pd.WorkerID) error { return r.drain(id, r.set.Resume) }

func (r *Registry) drain(id pd.WorkerID, change func(pd.WorkerID) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID(id)
	switch {
	case e == nil && change(id):
		return nil // one that the set has been given by others
	case e == nil || len(e.members) == 0:
		return ErrUnknown
	case !e.stays() || e.move != nil:
		return ErrLeaving
	}
	for _, w := range e.members {
		if w.ID == id || e.id == id { // one rank, or all
			change(w.ID)
		}
	}
	return nil
}

// byURL is the entry of a URL, nil if there is none.
func (r *Registry) byURL(url string) *entry {
	for _, e := range r.entries {
		if e.url() == url {
			return e
		}
	}
	return nil
}

// byID is the entry of a worker's id, or of that of one of its ranks.
func (r *Registry) byID(id pd.WorkerID) *entry {
	for _, e := range r.entries {
		if e.id == id || slices.ContainsFunc(e.members, func(w *pd.Worker) bool { return w.ID == id }) {
			return e
		}
	}
	return nil
}

// stays reports whether the worker is to take part.
func (e *entry) stays() bool { return len(e.claims) > 0 && !e.deleted }

// Run sees workers off that have to go, until ctx ends. It is needed for that
// alone.
func (r *Registry) Run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ticks := tick.C
		if !r.seeOff(time.Now()) {
			ticks = nil // nobody goes: there is nothing to wait for but news
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		case <-r.wake:
		}
	}
}

// seeOff removes those that have nothing left, and reports whether others are
// still leaving.
func (r *Registry) seeOff(now time.Time) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Clone(r.entries) {
		if e.leaving.IsZero() {
			continue
		}
		if now.After(e.leaving) || r.drained(e) {
			r.takeOut(e)
		} else {
			more = true
		}
	}
	return more
}

func (r *Registry) drained(e *entry) bool {
	return !slices.ContainsFunc(e.members, func(w *pd.Worker) bool {
		m := r.set.Find(w.ID)
		return m != nil && !m.Drained()
	})
}
