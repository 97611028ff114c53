package pools

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tandem-pd/tandem/pd"
)

// Breakers configure the circuit breakers. The zero value is the default.
type Breakers struct {
	// Disabled never takes a worker out for its failures.
	Disabled bool
	// A worker's breaker opens when Failures calls have failed within Window by
	// the worker's own fault, and at least half of those that say anything of it;
	// 10 in 120 s when 0. It stays open for Open, 60 s when 0, and then lets
	// Trials calls through, 3 when 0, all of which must do well to close it.
	Failures, Trials int
	Window, Open     time.Duration
	// Trial is how long one of those may take to show a first good event; then
	// another may have its place. 30 s when 0.
	Trial time.Duration
}

// windowSteps is how finely a breaker's window moves.
const windowSteps = 10

func (b Breakers) withDefaults() Breakers {
	b.Failures = cmp.Or(b.Failures, 10)
	b.Trials = cmp.Or(b.Trials, 3)
	b.Window = cmp.Or(b.Window, 120*time.Second)
	b.Open = cmp.Or(b.Open, 60*time.Second)
	b.Trial = cmp.Or(b.Trial, 30*time.Second)
	return b
}

// trips reports whether a worker's breaker opens: on nothing but failures for a
// while, or on many of them that are at least half of all. A few among many
// successes never do, or a fault that all workers share would take all of them
// out.
func (b Breakers) trips(c gobreaker.Counts) bool {
	limit := uint32(b.Failures)
	return c.ConsecutiveFailures >= limit || c.TotalFailures >= limit && c.TotalFailures >= c.TotalSuccesses
}

// What a call's end says to a breaker, when it is not that all is well.
var (
	errFault   = errors.New("the worker failed")
	errNeutral = errors.New("nothing is known of the worker")
)

// verdictOf is what an outcome says of the worker it is about.
func verdictOf(o pd.Outcome) error {
	switch o {
	case pd.Success:
		return nil
	case pd.Fault, pd.Unreachable:
		return errFault
	default:
		return errNeutral
	}
}

// breakerState is what a breaker does with calls.
type breakerState uint8

const (
	closed   breakerState = iota // all may pass
	open                         // none may, until it is time for a trial
	halfOpen                     // a few may: the trials
)

var breakerNames = [...]string{"closed", "open", "half_open"}

func (s breakerState) String() string { return breakerNames[s] }

// breaker decides whether a worker, or a pair, is used. The counting and the
// turns are gobreaker's. Around it: the state is read without a lock, calls are
// counted when they end and not when they began, which may be long ago, a trial
// cannot keep its place for ever, and the breaker can be closed from outside.
type breaker struct {
	settings gobreaker.Settings
	trial    time.Duration
	off      bool                  // nothing is counted
	changed  func(to breakerState) // called under locks

	mu  sync.Mutex // held for a turn; taken with gobreaker's own held, never before it
	now atomic.Pointer[phase]
}

// phase is a breaker's life from one turn to the next. What a call has shown
// says something of the phase in which it began, and nothing of a later one.
type phase struct {
	cb    *gobreaker.TwoStepCircuitBreaker[struct{}]
	state breakerState
	until time.Time // an open one is due for a trial after it
}

// newBreaker is a closed breaker that opens when trip says so.
func newBreaker(opt Breakers, trip func(gobreaker.Counts) bool, changed func(to breakerState)) *breaker {
	b := &breaker{trial: opt.Trial, off: opt.Disabled, changed: changed}
	b.settings = gobreaker.Settings{
		MaxRequests:  uint32(opt.Trials),
		Interval:     opt.Window,
		BucketPeriod: opt.Window / windowSteps,
		Timeout:      opt.Open,
		ReadyToTrip:  trip,
		IsExcluded:   func(err error) bool { return errors.Is(err, errNeutral) },
	}
	b.now.Store(b.fresh())
	return b
}

// fresh is the phase of a breaker that has counted nothing.
func (b *breaker) fresh() *phase {
	p := &phase{}
	settings := b.settings
	settings.OnStateChange = func(_ string, _, to gobreaker.State) { b.turn(p.cb, to) }
	p.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	return p
}

// reset closes the breaker and forgets what it has counted. Where in is given,
// only if the breaker is in that phase still.
func (b *breaker) reset(in *phase) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.now.Load()
	if in != nil && in != was {
		return
	}
	b.now.Store(b.fresh())
	if was.state != closed {
		b.changed(closed)
	}
}

// turn follows cb, unless a reset has put another one in its place.
func (b *breaker) turn(cb *gobreaker.TwoStepCircuitBreaker[struct{}], to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now.Load().cb != cb {
		return
	}
	next := &phase{cb: cb}
	switch to {
	case gobreaker.StateOpen:
		next.state, next.until = open, time.Now().Add(b.settings.Timeout)
	case gobreaker.StateHalfOpen:
		next.state = halfOpen
	}
	b.now.Store(next)
	b.changed(next.state)
}

func (b *breaker) state() breakerState { return b.now.Load().state }

// mayPass reports whether a call at now would pass; a forced one passes an open
// breaker, but has no place among the trials of a half-open one.
func (b *breaker) mayPass(now time.Time, force bool) bool {
	in := b.now.Load()
	switch in.state {
	case open:
		return force || now.After(in.until)
	case halfOpen:
		c := in.cb.Counts()
		return c.Requests < c.TotalExclusions+b.settings.MaxRequests
	default:
		return true
	}
}

// pass lets a call through that may be forced; c is what it reports to. False
// when it may not pass.
func (b *breaker) pass(c *claim, now time.Time, force bool) bool {
	in := b.now.Load()
	switch {
	case in.state == closed:
		c.breaker, c.in, c.trial = b, in, nil
	case in.state == open && force && !now.After(in.until):
		c.trial = &trial{done: func(verdict error) {
			if verdict == nil {
				b.reset(in)
			}
		}}
	default:
		done, err := in.cb.Allow()
		if err != nil {
			return false
		}
		c.trial = &trial{done: done}
		c.trial.lapse = time.AfterFunc(b.trial, c.trial.lapsed)
	}
	return true
}

// count takes the verdict of a call that began in phase in.
func (b *breaker) count(in *phase, verdict error) {
	if b.off || verdict == errNeutral || in.state != closed || in != b.now.Load() {
		return
	}
	if done, err := in.cb.Allow(); err == nil {
		done(verdict)
	}
}

// fault counts a fault that no call has shown. A half-open breaker opens.
func (b *breaker) fault() {
	if b.off {
		return
	}
	if done, err := b.now.Load().cb.Allow(); err == nil {
		done(errFault)
	}
}
