package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

const (
	// longestRun is what the longest generation takes when nothing holds it up,
	// and three times that for a busy machine.
	longestRun = 3 * unwantedTokens * tokenInterval
	// settleTime is how long everything may take to be as before, when the last
	// client has left.
	settleTime = 5 * time.Second
	// lookEvery is how often the checkers look.
	lookEvery = 50 * time.Millisecond
	// warmUps are made by so many clients at a time: all at once are more than a
	// small machine can begin with.
	warmUps, warmUpClients = 320, 16
)

// outcomeBound is when a request must have its outcome. No attempt begins later
// than the request's deadline after its start, but those that follow one which
// reached nobody at once: each of these may wait for a connection, and for an
// engine to let go of the client's rid, 2 s each. The last attempt may wait for
// prefill's answer and then for decode's first event; it stands still once for
// as long as a stream may, runs to its end, and is read slowly.
func outcomeBound() time.Duration {
	const connectAndSettle = 4 * time.Second
	return deadlines.Request + (maxAttempts-1)*connectAndSettle +
		deadlines.Request + deadlines.FirstEvent + deadlines.Idle + longestRun + slowFor
}

// Config says what a run is like; zero means the default.
type Config struct {
	Seed              uint64
	Duration          time.Duration // for which engines break and clients ask; 20 s
	Clients           int           // 200
	Prefills, Decodes int           // 4 each
	Pace              time.Duration // mean time from a client's answer to its next request; 1 s
}

func (c Config) withDefaults() Config {
	if c.Duration == 0 {
		c.Duration = 20 * time.Second
	}
	if c.Clients == 0 {
		c.Clients = 200
	}
	if c.Prefills == 0 {
		c.Prefills = 4
	}
	if c.Decodes == 0 {
		c.Decodes = 4
	}
	if c.Pace == 0 {
		c.Pace = time.Second
	}
	return c
}

// run is one run.
type run struct {
	cfg      Config
	book     *book
	timeline *timeline
	stalls   *stalls
	legs     *legChecker
	rooms    *roomChecker
	outcomes *outcomeChecker
	success  *successChecker
	rig      *rig
	clients  *clients
	director *director

	mu     sync.Mutex
	result Result
}

// Run makes one run. Violations are in its result; an error means that there
// was no run to speak of, as when the warm-up fails: the result, nil if engines
// do not start, then tells what was seen so far.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	r, err := newRun(cfg.withDefaults())
	if err != nil {
		return nil, err
	}
	err = r.all(ctx)
	r.clients.close()
	err = errors.Join(err, r.rig.close())
	r.result.Violations, r.result.More = r.book.all()
	return &r.result, err
}

func newRun(cfg Config) (*run, error) {
	now := time.Now()
	r := &run{cfg: cfg, book: &book{seed: cfg.Seed, start: now}, timeline: newTimeline(), stalls: newStalls(now)}
	report := r.report
	r.legs = newLegChecker(report, r.excused)
	r.rooms = newRoomChecker(report)
	r.outcomes = newOutcomeChecker(report, outcomeBound(), r.stalls.lost)
	r.success = newSuccessChecker(report, r.faulty)
	r.director = &director{seed: cfg.Seed, timeline: r.timeline, report: report, faults: map[string]int{}}
	r.result = Result{Seed: cfg.Seed, Outcomes: map[string]int{}, Manners: map[string]int{}, Codes: map[string]int{}}
	var err error
	r.rig, err = newRig(cfg.Prefills, cfg.Decodes, r.saw, pd.Hooks{
		Planned: func(req *pd.Request, _ int, p *pd.Plan) {
			r.success.plan(req.ID, string(p.Prefill.Worker.ID), string(p.Decode.Worker.ID))
		},
		Retry: func(*pd.Request, int, *pd.Error, time.Duration) { r.count(func(res *Result) { res.Retries++ }) },
		Panic: func(value any, stack []byte) {
			report(Violation{Invariant: invariantPanic, Detail: fmt.Sprintf("%v\n%s", value, stack)})
		},
	})
	if err != nil {
		return nil, err
	}
	r.clients = newClients(r.rig.router.URL, outcomeBound()+settleTime)
	r.clients.legs, r.clients.outcomes, r.clients.success, r.clients.report = r.legs, r.outcomes, r.success, report
	r.clients.available = &availabilityChecker{
		report: report, faulty: r.faulty, prefills: ids(r.rig.prefills), decodes: ids(r.rig.decodes),
	}
	return r, nil
}

func ids(engines []*simengine.Engine) (all []string) {
	for _, e := range engines {
		all = append(all, e.ID())
	}
	return all
}

// saw passes on what the engines see.
func (r *run) saw(engine string, role simengine.Role, rec simengine.Record) {
	r.rooms.saw(engine, role, rec)
	r.legs.saw(engine, role, rec)
}

func (r *run) count(change func(*Result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.result)
}

// all is the run, from the warm-up to the last comparison.
func (r *run) all(ctx context.Context) error {
	looking, stop := context.WithCancel(ctx)
	defer stop()
	var watchers sync.WaitGroup
	watchers.Go(func() { r.stalls.run(looking) })
	watchers.Go(func() { r.look(looking) })
	defer watchers.Wait()
	defer stop()
	if err := r.rig.ready(ctx); err != nil {
		return err
	}
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	before, err := r.resources(ctx, func(Resources) bool { return false })
	if err != nil {
		return err
	}
	r.count(func(res *Result) { res.Before = before })
	if err := r.rig.ready(ctx); err != nil {
		return err
	}
	if err := r.act(ctx); err != nil {
		return err
	}
	r.settle(ctx)
	stop()
	watchers.Wait()
	r.success.conclude()
	r.conclude()
	after, err := r.resources(ctx, func(now Resources) bool { return leaked(before, now) == "" })
	if err != nil {
		return err
	}
	r.result.After = after
	if what := leaked(before, after); what != "" {
		r.report(Violation{Invariant: invariantLeaks, Detail: what})
	}
	return ctx.Err()
}

// look makes the checkers look until ctx ends.
func (r *run) look(ctx context.Context) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		r.legs.look(now)
		r.outcomes.look(now)
		if what := r.rig.counters().negative(); what != "" {
			r.report(Violation{Invariant: invariantCounters, Detail: what})
		}
	}
}

// warmUp makes calls of all kinds to engines that are all up; those that wait
// must be answered rightly.
func (r *run) warmUp(ctx context.Context) error {
	var wg sync.WaitGroup
	failed := make([]error, warmUpClients)
	for i := range warmUpClients {
		c := r.caller(fmt.Sprintf("warm%d", i))
		wg.Go(func() {
			for range warmUps / warmUpClients {
				k := c.next()
				if _, res := r.clients.do(ctx, k); res.outcome != right && k.stays() {
					failed[i] = fmt.Errorf("warm-up: request %s: %s (%s): %s", k.id, res.outcome, res.why, k.describe)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	r.settle(ctx)
	return nil
}

func (r *run) caller(name string) *caller {
	var stream uint64
	for _, b := range []byte(name) {
		stream = stream*31 + uint64(b)
	}
	return &caller{name: name, dice: rand.New(rand.NewPCG(r.cfg.Seed, stream))}
}

// act lets clients ask and engines break for the run's duration.
func (r *run) act(ctx context.Context) error {
	r.success.restart()
	r.clients.available.guarded.Store(0)
	began := time.Now()
	acting, end := context.WithTimeout(ctx, r.cfg.Duration)
	defer end()
	var wg sync.WaitGroup
	var prefillErr, decodeErr error
	wg.Go(func() {
		prefillErr = r.director.run(acting, simengine.Prefill, r.rig.prefills, r.cfg.Duration)
	})
	wg.Go(func() { decodeErr = r.director.run(acting, simengine.Decode, r.rig.decodes, r.cfg.Duration) })
	for i := range r.cfg.Clients {
		c := r.caller(fmt.Sprintf("c%d", i))
		wg.Go(func() {
			wait(acting, c.within(r.cfg.Pace)) // not all at the same time
			for acting.Err() == nil {
				k := c.next()
				a, res := r.clients.do(ctx, k)
				r.tally(k, a, res)
				for pause := true; pause; pause = r.stalls.busy(time.Now()) && acting.Err() == nil {
					wait(acting, c.within(2*r.cfg.Pace))
				}
			}
		})
	}
	wg.Wait()
	r.count(func(res *Result) { res.Took, res.Lost = time.Since(began), r.stalls.lost(began, time.Now()) })
	return errors.Join(prefillErr, decodeErr)
}

func (r *run) tally(k *call, a *answer, res result) {
	r.count(func(all *Result) {
		all.Requests++
		all.Outcomes[string(res.outcome)]++
		all.Manners[string(k.manner)]++
		if res.outcome == refused {
			all.Codes[a.code()]++
		}
	})
}

// settle waits until nothing is under way any more, and reports what stays.
func (r *run) settle(ctx context.Context) {
	left := func() string {
		what := r.rig.counters().left()
		if n := r.legs.alive(); n > 0 {
			what += fmt.Sprintf(", %d legs are alive", n)
		}
		return what
	}
	if !until(ctx, settleTime, func() bool { return left() == "" }) {
		r.report(Violation{Invariant: invariantCounters, Detail: left()})
	}
}

// conclude fills in the result and lets go of what the checkers remember.
func (r *run) conclude() {
	r.result.Attempts, r.result.Clean, r.result.CleanOK = r.success.plans, r.success.clean, r.success.ok
	r.result.Guarded = int(r.clients.available.guarded.Load())
	r.result.Faults = r.director.faults
	r.result.Worst = Worst{Request: r.outcomes.longest(), Slowest: r.outcomes.slowest(), Leg: r.legs.longest(), Stall: r.stalls.longest()}
	r.rooms.forget()
}

// resources restarts the engines, closes what is idle, and measures until it is
// enough, at most for settleTime; it returns the least that was seen of each.
func (r *run) resources(ctx context.Context, enough func(Resources) bool) (Resources, error) {
	if err := r.rig.fresh(); err != nil {
		return Resources{}, err
	}
	r.clients.close()
	least, err := measure()
	if err != nil {
		return least, err
	}
	until(ctx, settleTime, func() bool {
		now, failed := measure()
		if failed != nil {
			err = failed
			return true
		}
		least = least.least(now)
		return enough(least)
	})
	return least, err
}
