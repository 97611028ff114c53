package pools

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tandem-pd/tandem/pd"
)

// Breakers configure the circuit breakers. The zero value is the default.
type Breakers struct {
	// Disabled never takes a worker out for its failures.
	Disabled bool
	// A worker's breaker opens when Failures of its legs have failed by its own
	// fault within Window, and at least half of those that say anything of it; 10
	// in 120 s when 0. It stays open for Open, 60 s when 0, and then lets Trials
	// requests through, 3 when 0, all of which must do well to close it.
	Failures, Trials int
	Window, Open     time.Duration
	// Trial is how long one of those may take to show a first good event before
	// another may take its place; 30 s when 0.
	Trial time.Duration
}

// The breaker of a pair opens on few failures, since its workers go on with
// others, and has a trial three times a minute.
const (
	pairFailures = 3
	pairWindow   = 120 * time.Second
	pairOpen     = 20 * time.Second
)

// windowSteps is how finely a breaker's window moves.
const windowSteps = 10

func (b Breakers) withDefaults() Breakers {
	orDefault := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	if b.Failures == 0 {
		b.Failures = 10
	}
	if b.Trials == 0 {
		b.Trials = 3
	}
	orDefault(&b.Window, 120*time.Second)
	orDefault(&b.Open, 60*time.Second)
	orDefault(&b.Trial, 30*time.Second)
	return b
}

// What a leg's end says to a breaker, when it is not that all is well.
var (
	errFault   = errors.New("the worker failed")
	errNeutral = errors.New("nothing is known of the worker") // excluded
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

// The states of a breaker.
const (
	closed int32 = iota
	open
	halfOpen
)

// breaker decides whether a worker, or a pair, is used. It wraps gobreaker's: its
// state is read without a lock, a trial that says nothing gives its place back,
// and it can be closed from outside.
type breaker struct {
	settings gobreaker.Settings
	trial    time.Duration
	changed  func(to int32) // called under gobreaker's lock

	cb    atomic.Pointer[gobreaker.TwoStepCircuitBreaker[struct{}]]
	state atomic.Int32
	until atomic.Int64 // unix nanoseconds: an open one is due for a trial
}

// newBreaker is a breaker that trips when trip says so.
func newBreaker(opt Breakers, trip func(gobreaker.Counts) bool, changed func(to int32)) *breaker {
	b := &breaker{trial: opt.Trial, changed: changed}
	b.settings = gobreaker.Settings{
		MaxRequests:  uint32(opt.Trials),
		Interval:     opt.Window,
		BucketPeriod: opt.Window / windowSteps,
		Timeout:      opt.Open,
		ReadyToTrip:  trip,
		IsExcluded:   func(err error) bool { return errors.Is(err, errNeutral) },
	}
	b.reset()
	return b
}

// reset closes the breaker and forgets what it has counted. What is still to be
// reported of earlier requests goes to the breaker of before.
func (b *breaker) reset() {
	settings := b.settings
	var cb *gobreaker.TwoStepCircuitBreaker[struct{}]
	settings.OnStateChange = func(_ string, _, to gobreaker.State) {
		if b.cb.Load() == cb {
			b.turn(to)
		}
	}
	cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	b.cb.Store(cb)
	if b.state.Swap(closed) != closed {
		b.changed(closed)
	}
}

func (b *breaker) turn(to gobreaker.State) {
	state := closed
	switch to {
	case gobreaker.StateOpen:
		state = open
		b.until.Store(time.Now().Add(b.settings.Timeout).UnixNano())
	case gobreaker.StateHalfOpen:
		state = halfOpen
	}
	b.state.Store(state)
	b.changed(state)
}

// mayAllow reports whether allow could succeed at now.
func (b *breaker) mayAllow(now time.Time) bool {
	return b.state.Load() != open || now.UnixNano() > b.until.Load()
}

// claim is a request's passage through a breaker, shared by its samples. It
// reports one verdict: the first fault, else success, else that nothing is known.
type claim struct {
	done    func(error)
	timer   *time.Timer // of a trial
	trial   bool
	left    atomic.Int32 // legs that have not ended
	success atomic.Bool
	settled atomic.Bool
}

// allow lets a request with that many legs through; nil when it may not pass.
func (b *breaker) allow(legs int) *claim {
	done, err := b.cb.Load().Allow()
	if err != nil {
		return nil
	}
	c := &claim{done: done, trial: b.state.Load() == halfOpen}
	c.left.Store(int32(legs))
	if c.trial {
		c.timer = time.AfterFunc(math.MaxInt64, func() { c.settle(errNeutral) })
		c.timer.Reset(b.trial) // not before c.timer is set
	}
	return c
}

// force lets a request through an open breaker; if it does well, the breaker
// closes.
func (b *breaker) force(legs int) *claim {
	c := &claim{trial: true, done: func(err error) {
		if err == nil {
			b.reset()
		}
	}}
	c.left.Store(int32(legs))
	return c
}

// settle gives the verdict, once.
func (c *claim) settle(verdict error) {
	if c.settled.Swap(true) {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.done(verdict)
}

// progress is a trial's verdict: it has shown a good event. Others are judged at
// their end.
func (c *claim) progress() {
	if c.trial && !c.settled.Load() {
		c.settle(nil)
	}
}

// end counts a leg's end.
func (c *claim) end(verdict error) {
	switch {
	case verdict == nil:
		c.success.Store(true)
	case errors.Is(verdict, errFault):
		c.settle(errFault)
	}
	if c.left.Add(-1) > 0 {
		return
	}
	if c.success.Load() {
		c.settle(nil)
	} else {
		c.settle(errNeutral)
	}
}
