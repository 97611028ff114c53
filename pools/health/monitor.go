package health

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// lookEvery bounds how long a new member or a passed deadline goes unnoticed.
const lookEvery = time.Second

// Options configure a Monitor. A duration or number of 0 is its default. The
// functions may be nil; but for Panic they are called on Run's goroutine, one at
// a time, and must be quick.
type Options struct {
	// Transport makes the calls. It is needed.
	Transport http.RoundTripper
	// Path is what a worker is asked for, with GET; "/health" when empty. Any 2xx
	// is a good answer.
	Path string
	// Interval is the wait between the probes of a worker that serves, and the
	// longest between those of one that is out; 60 s.
	Interval time.Duration
	// Timeout is how long an answer may take, 5 s. An engine that is well takes
	// more than 1 s, one that is loaded up to 20 s.
	Timeout time.Duration
	// StartupTimeout is after how long a worker that has not served yet is shown
	// as dead, 1800 s. It is probed all the same, and joins when it serves.
	StartupTimeout time.Duration
	// Failures is how many probes in a row must fail to take a worker out, 3, and
	// Successes how many must do well to bring it back, 2.
	Failures, Successes int
	// RequireBootstrap makes a prefill's bootstrap server part of its health.
	RequireBootstrap bool
	// Parallel is how many probes may be under way at once, 32.
	Parallel int

	// Meet asks a worker that is about to join what it is, behind a good probe of its
	// API and within Timeout of its own. What it returns is called on Run's
	// goroutine, unless the worker has gone meanwhile: it says whether the worker
	// may join, and may change the membership. Its error is shown as the reason and
	// must hold no address; the worker is asked again later. Nil lets all join.
	Meet func(ctx context.Context, w *pd.Worker) (agree func() error)
	// Probed is called after each probe of a worker; err, nil when it did well,
	// may hold an address.
	Probed func(w *pd.Worker, took time.Duration, err error)
	// Kept is called when a worker has failed its probes, and why, but stays as
	// the last one of its role; once until it does well again.
	Kept func(w *pd.Worker, why string)
	// Unreached is called when a prefill's bootstrap server is found not to answer
	// for the first time or after it did, and with nil when it does again.
	Unreached func(w *pd.Worker, err error)
	// Bound is called when a named bound was hit: "probes" when a probe that is
	// due has to wait for others to end.
	Bound func(name string)
	// Panic is called with what was recovered from a probe, on its goroutine.
	Panic func(value any, stack []byte)
}

func (o Options) withDefaults() Options {
	o.Path = cmp.Or(o.Path, "/health")
	o.Interval = cmp.Or(o.Interval, 60*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.StartupTimeout = cmp.Or(o.StartupTimeout, 1800*time.Second)
	o.Failures = cmp.Or(o.Failures, 3)
	o.Successes = cmp.Or(o.Successes, 2)
	o.Parallel = cmp.Or(o.Parallel, 32)
	if o.Probed == nil {
		o.Probed = func(*pd.Worker, time.Duration, error) {}
	}
	if o.Kept == nil {
		o.Kept = func(*pd.Worker, string) {}
	}
	if o.Unreached == nil {
		o.Unreached = func(*pd.Worker, error) {}
	}
	if o.Bound == nil {
		o.Bound = func(string) {}
	}
	if o.Panic == nil {
		o.Panic = func(any, []byte) {}
	}
	return o
}

// Monitor probes the members of a set.
type Monitor struct {
	opt  Options
	wake chan struct{}
}

// New is a monitor that does nothing until Run.
func New(opt Options) *Monitor {
	return &Monitor{opt: opt.withDefaults(), wake: make(chan struct{}, 1)}
}

// Suspect has the members looked at now; see [pools.Options.Suspect]. It never
// blocks, and may be called from any goroutine and before Run.
func (m *Monitor) Suspect() {
	select {
	case m.wake <- struct{}{}:
	default: // it has been told already
	}
}

// Run probes the members of set, as they come and go, until ctx ends and every
// probe has ended. It may be called again when it has returned, but not twice at
// once: all that it knows is its own.
func (m *Monitor) Run(ctx context.Context, set *pools.Set) {
	r := &round{
		opt: m.opt, set: set,
		watched: make(map[pd.WorkerID]*watch),
		ended:   make(chan *probe, m.opt.Parallel),
	}
	defer r.probes.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-timer.C:
		case p := <-r.ended:
			if ctx.Err() == nil { // else it may have failed for that
				r.take(p, time.Now())
			}
		}
		if ctx.Err() == nil {
			timer.Reset(r.turn(ctx, time.Now()))
		}
	}
}

// round is a monitor at work. All of it, and every watch, belongs to Run's
// goroutine; a probe's goroutine has nothing but its probe.
type round struct {
	opt     Options
	set     *pools.Set
	watched map[pd.WorkerID]*watch
	turns   uint64      // how often the members have been followed
	active  int         // probes that have not been taken from ended
	ended   chan *probe // has room for all of them, so that no probe waits
	probes  sync.WaitGroup
}

// question is something to ask of a worker: whether its API is well, or else its
// bootstrap server.
type question struct {
	of  *watch
	api bool
	at  time.Time // when it is due
}

// turn starts what is due, the longest due first, and says when to look again.
func (r *round) turn(ctx context.Context, now time.Time) time.Duration {
	var open []question
	for _, w := range r.follow(now) {
		r.notice(w, now)
		open = w.questions(open)
	}
	slices.SortStableFunc(open, func(a, b question) int { return a.at.Compare(b.at) })
	for _, q := range open {
		left := q.at.Sub(now)
		switch {
		case left > 0:
			return min(left, lookEvery)
		case r.active < r.opt.Parallel:
			r.start(ctx, q, now)
		case !q.of.queued:
			q.of.queued = true
			r.opt.Bound("probes")
		}
	}
	return lookEvery
}

// take judges a probe that has ended, if its worker is still a member.
func (r *round) take(p *probe, now time.Time) {
	r.active--
	m := r.set.Find(p.worker.ID)
	if w := p.watch; r.watched[p.worker.ID] == w && m != nil && m.Is(w.engine[0]) {
		r.judge(p, now)
	}
}

// follow is the watches of the present engines. What was known of those that are
// gone is dropped.
func (r *round) follow(now time.Time) []*watch {
	engines := enginesOf(r.set.Members())
	watches := make([]*watch, 0, len(engines))
	for _, e := range engines {
		w := r.watched[e.worker().ID]
		if w == nil || !w.engine.is(e) {
			w = newWatch(e, now)
			r.watched[e.worker().ID] = w
		}
		w.engine, w.round = e, r.turns
		watches = append(watches, w)
	}
	if len(r.watched) > len(watches) {
		maps.DeleteFunc(r.watched, func(_ pd.WorkerID, w *watch) bool { return w.round != r.turns })
	}
	r.turns++
	return watches
}

// start asks.
func (r *round) start(ctx context.Context, q question, now time.Time) {
	w := q.of
	p := &probe{watch: w, worker: w.engine.worker(), as: w.phase, began: now}
	w.queued = false
	if q.api {
		p.api, p.boot = true, r.opt.RequireBootstrap && w.hasBootstrap()
		p.meet = r.opt.Meet != nil && w.phase != serving
		w.probing, w.urgent = true, false
	} else {
		p.boot, p.suspected = true, w.suspected
		w.asking, w.suspected, w.ask = true, false, time.Time{}
	}
	r.active++
	r.probes.Go(func() {
		defer func() { r.ended <- p }()
		p.run(ctx, &r.opt)
	})
}
