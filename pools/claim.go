package pools

import (
	"sync/atomic"
	"time"
)

// claim is a call's passage through a breaker, shared by its samples. It gives
// one verdict: the first fault, else that all is well if any sample shows it,
// else that nothing is known. The zero value passes no breaker.
type claim struct {
	breaker *breaker // counts the verdict of a call that began in phase in
	in      *phase
	trial   *trial // or hears it

	left    atomic.Int32 // samples that have not ended
	well    atomic.Bool
	settled atomic.Bool
}

// end takes the verdict of one sample.
func (c *claim) end(verdict error) {
	switch verdict {
	case nil:
		c.well.Store(true)
	case errFault:
		c.settle(errFault)
	}
	if c.left.Add(-1) > 0 {
		return
	}
	if c.well.Load() {
		c.settle(nil)
	} else {
		c.settle(errNeutral)
	}
}

// progress hears of a good event: all that is asked of a trial. Other calls are
// judged at their end.
func (c *claim) progress() {
	if c.trial != nil {
		c.trial.settle(nil)
	}
}

// settle gives the verdict, once.
func (c *claim) settle(verdict error) {
	switch {
	case c.settled.Swap(true):
	case c.trial != nil:
		c.trial.settle(verdict)
	case c.breaker != nil:
		c.breaker.count(c.in, verdict)
	}
}

// undo gives back what was passed: nothing was sent.
func (c *claim) undo() {
	if c.trial != nil {
		c.trial.settle(errNeutral)
		c.trial = nil
	}
}

// trial is a call that was let through a breaker which is not closed.
type trial struct {
	done    func(verdict error)
	lapse   *time.Timer // nil for a forced one, which has no place to give back
	settled atomic.Bool
}

func (t *trial) settle(verdict error) {
	if t.settled.Load() || t.settled.Swap(true) {
		return
	}
	if t.lapse != nil {
		t.lapse.Stop()
	}
	t.done(verdict)
}

// lapsed gives the trial's place to another call. It does not touch t.lapse,
// which may not be set yet.
func (t *trial) lapsed() {
	if !t.settled.Swap(true) {
		t.done(errNeutral)
	}
}
