package registry

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
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
	ErrFull    = fmt.Errorf("there are %d workers, as many as there may be", MaxWorkers)
)

// MaxWorkers bounds the engines that a registry knows of, whoever names them. Each
// change looks at all of them.
const MaxWorkers = 1 << 14

// What keeps a worker of a source out.
var (
	errTwice = errors.New("it is described twice, and not alike: the first counts")
	errTaken = errors.New("another worker has its id")
)

// byAPI is the source of what operators add while the router runs.
const byAPI = "api"

// drainFor is how long a worker that goes is shown as draining, at most.
const drainFor = 10 * time.Minute

// Options configure a Registry. A duration of 0 is its default.
type Options struct {
	// Transport asks engines for their facts, and has them switch their roles. It is
	// needed where they are asked.
	Transport http.RoundTripper
	// APIKey is sent to workers whose source gives no key; empty for none.
	APIKey string
	// CloseOnly is that of every worker, see [pd.Worker].
	CloseOnly bool
	// Ranks makes each data-parallel rank of an engine a worker of its own.
	Ranks bool
	// StateFile keeps what was added by the API over a restart; empty for not.
	StateFile string
	// Drain bounds how long a worker that goes is waited for, 10 minutes. What it
	// still has then goes on unseen.
	Drain time.Duration
	// SwitchTimeout is how long an engine may take to switch its role, 300 s.
	SwitchTimeout time.Duration
	// SwitchEvery is the least time between two switches of one worker, 10 s.
	SwitchEvery time.Duration
	// Report hears, under a lock of the registry's, of what cannot be done: a worker of a
	// source that is refused, or state that cannot be written. It must not ask the
	// registry anything. Nil ignores it.
	Report func(source string, w pd.WorkerID, err error)
}

func (o Options) withDefaults() Options {
	o.Drain = cmp.Or(o.Drain, drainFor)
	o.SwitchTimeout = cmp.Or(o.SwitchTimeout, 300*time.Second)
	o.SwitchEvery = cmp.Or(o.SwitchEvery, 10*time.Second)
	if o.Report == nil {
		o.Report = func(string, pd.WorkerID, error) {}
	}
	return o
}

// Registry is which workers there are to be. All of its methods may be called at
// any time, from any goroutine. Its lock is taken before those of the set, which
// never calls back.
type Registry struct {
	opt      Options
	set      *pools.Set
	troubles troubles
	wake     chan struct{}

	disk sync.Mutex // held while the state file is written; taken before mu

	mu      sync.Mutex
	unsaved bool     // the state file is to be written, see unlock
	entries []*entry // in the order in which they came
	urls    map[string]*entry
	ids     map[pd.WorkerID]*entry // who has the id; another one that wants it waits
}

// New is a registry that set follows. What the state file holds is added; the
// error is that of reading it.
func New(set *pools.Set, opt Options) (*Registry, error) {
	r := &Registry{
		opt: opt.withDefaults(), set: set, wake: make(chan struct{}, 1),
		urls: make(map[string]*entry), ids: make(map[pd.WorkerID]*entry),
	}
	if opt.StateFile == "" {
		return r, nil
	}
	if target, err := filepath.EvalSymlinks(opt.StateFile); err == nil {
		r.opt.StateFile = target // which is replaced, and not the link to it
	}
	saved, err := readState(r.opt.StateFile)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range saved {
		e := r.claimed(byAPI, s.spec)
		e.change.role = s.role
		r.keep(e)
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
// spec that cannot be served is reported and left out, and tried again later.
func (r *Registry) Apply(source string, specs []Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := make(map[*entry]bool, len(specs))
	for _, spec := range specs {
		if e := r.urls[spec.URL]; e != nil && named[e] {
			if said := e.claims[e.claimOf(source)].spec; !said.equal(spec) {
				r.opt.Report(source, e.id, errTwice)
			}
			continue
		}
		if r.urls[spec.URL] == nil && len(r.entries) >= MaxWorkers {
			r.opt.Report(source, "", ErrFull)
			break
		}
		named[r.claimed(source, spec)] = true
	}
	for _, e := range slices.Clone(r.entries) {
		if named[e] || r.unclaim(e, source) {
			r.keep(e)
		}
	}
}

// claimed notes what a source says of a worker, which may be new.
func (r *Registry) claimed(source string, spec Spec) *entry {
	e := r.urls[spec.URL]
	if e == nil {
		e = &entry{id: spec.ID, url: spec.URL, known: known{since: time.Now()}}
		if e.id == "" {
			e.id = IDOf(spec.URL)
		}
		r.entries = append(r.entries, e)
		r.urls[e.url] = e
	}
	i := e.claimOf(source)
	switch {
	case i >= 0:
		if e.claims[i].spec.Role != spec.Role {
			e.change.role = nil // what was said last counts
		}
		e.claims[i].spec = spec
	case source == byAPI:
		e.claims = slices.Insert(e.claims, 0, claim{source, spec})
	default:
		e.claims = append(e.claims, claim{source, spec})
	}
	return e
}

// unclaim drops what a source has said of an entry; false if it has said nothing.
// A worker that no source names any more may be named anew, whoever deleted it.
func (r *Registry) unclaim(e *entry, source string) bool {
	i := e.claimOf(source)
	if i < 0 {
		return false
	}
	e.claims = slices.Delete(e.claims, i, i+1)
	e.deleted = e.deleted && len(e.claims) > 0
	return true
}

// Add adds a worker by the API. The error is [ErrExists] where a worker with its
// URL takes part, [ErrLeaving] where one that goes is switching its role, or says
// why it cannot be served; then nothing has changed.
func (r *Registry) Add(spec Spec) (pd.WorkerID, error) {
	r.mu.Lock()
	defer r.unlock()
	e := r.urls[spec.URL]
	switch {
	case e != nil && e.stays():
		return e.id, ErrExists
	case e != nil && e.move != nil:
		return e.id, ErrLeaving
	case e == nil && len(r.entries) >= MaxWorkers:
		return "", ErrFull
	}
	e = r.claimed(byAPI, spec)
	deleted, change := e.deleted, e.change
	e.deleted, e.change = false, Change{}
	if err := r.settle(e); err != nil {
		r.unclaim(e, byAPI)
		e.deleted, e.change = deleted, change
		_ = r.settle(e) // which has nothing to refuse where a worker goes
		return "", err
	}
	r.save()
	return e.id, nil
}

// Remove takes a worker out, with all ranks of its engine: it is drained, and gone
// when it has nothing left. A source that goes on naming it does not bring it
// back. The error is [ErrUnknown].
func (r *Registry) Remove(id pd.WorkerID) error {
	r.mu.Lock()
	defer r.unlock()
	e := r.byID(id)
	if e == nil || !e.stays() {
		return ErrUnknown
	}
	r.unclaim(e, byAPI)
	e.deleted = len(e.claims) > 0
	_ = r.settle(e) // as above
	r.save()
	return nil
}

// Drain has a worker take no new work: one rank, or all by the engine's id. The
// error is [ErrUnknown], [ErrLeaving] or [ErrBusySwitching].
func (r *Registry) Drain(id pd.WorkerID) error { return r.drain(id, true) }

// Resume undoes Drain, and has a worker take part that a switch of its role has
// left out. The errors are those of Drain.
func (r *Registry) Resume(id pd.WorkerID) error { return r.drain(id, false) }

func (r *Registry) drain(id pd.WorkerID, on bool) error {
	change := r.set.Resume
	if on {
		change = r.set.Drain
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID(id)
	switch {
	case e == nil && change(id):
		return nil // one that the set has been given by others
	case e == nil || !e.stays() && len(e.members) == 0:
		return ErrUnknown
	case e.move != nil:
		return ErrBusySwitching
	case !e.stays():
		return ErrLeaving
	}
	if e.id == id {
		e.drained = on
	}
	if !on {
		e.held, e.lost = reason{}, false
	}
	for _, w := range e.members {
		if w.ID == id || e.id == id { // one rank, or all
			change(w.ID)
		}
	}
	return nil
}

// byID is the entry of a worker's id, or of that of one of its ranks; nil if there
// is none.
func (r *Registry) byID(id pd.WorkerID) *entry {
	if e := r.ids[id]; e != nil {
		return e
	}
	i := strings.LastIndexByte(string(id), '@')
	if i < 0 {
		return nil
	}
	e := r.ids[id[:i]]
	if e != nil && slices.ContainsFunc(e.members, func(w *pd.Worker) bool { return w.ID == id }) {
		return e
	}
	return nil
}
