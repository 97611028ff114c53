package legs

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

const (
	// echoWait is how long a failure that only echoes the other leg's waits for
	// the other leg's own words.
	echoWait = 50 * time.Millisecond
	// drainAfter is how long prefill's answer is still read after decode's
	// clean end.
	drainAfter = 2 * time.Second
)

// Pair is the two concurrent legs of one exchange. One of three things happens
// to it first: a leg fails, the client leaves, or decode is ready and the pair
// commits. Prefill is heard first whenever both have something to say.
type Pair struct {
	Prefill, Decode *Leg
	Aborts          *Aborter
	// HandedOver tells, after the commit, whether prefill's work is done as far
	// as the client is concerned, so that a lost prefill connection hurts
	// nobody.
	HandedOver func() bool
	// OnEnd runs when both legs have ended.
	OnEnd func()

	plan     *pd.Plan
	settled  chan struct{} // closed at the commit or the first failure
	verdicts [2]verdict    // by role
	stop     func() bool   // unhooks the client's context

	mu        sync.Mutex
	committed bool
	failure   *Failure
	outcomes  [2]pd.Outcome // by role
	open      int           // legs that have not ended
	drain     *time.Timer
	prefilled bool // prefill has ended
}

// verdict is what one leg came to, known before anything follows from it.
type verdict struct {
	once  sync.Once
	known chan struct{}
	fail  *Failure // nil on success; set before known is closed
}

func (v *verdict) tell(f *Failure) {
	v.once.Do(func() {
		v.fail = f
		close(v.known)
	})
}

// failure is what the leg failed with, nil while nothing is known of it.
func (v *verdict) failure() *Failure {
	select {
	case <-v.known:
		return v.fail
	default:
		return nil
	}
}

// NewPair prepares an exchange on plan. The legs are set before Watch; each
// must be made with Ended of its role and must end.
func NewPair(plan *pd.Plan, aborts *Aborter) *Pair {
	p := &Pair{plan: plan, Aborts: aborts, settled: make(chan struct{}), open: 2}
	for i := range p.verdicts {
		p.verdicts[i].known = make(chan struct{})
	}
	return p
}

// Ended is the onEnd of a leg of the given role.
func (p *Pair) Ended(r pd.Role) func(pd.Outcome) {
	return func(o pd.Outcome) {
		p.mu.Lock()
		p.outcomes[r] = o
		p.open--
		last := p.open == 0
		if r == pd.Prefill {
			p.prefilled = true
			if p.drain != nil {
				p.drain.Stop()
			}
		}
		p.mu.Unlock()
		if last {
			p.stop()
			defer p.OnEnd() // also when a hook behind the plan panics
			p.plan.End(p.outcomes[pd.Prefill], p.outcomes[pd.Decode])
		}
	}
}

// Watch ends the exchange when ctx does: the client has left, or ctx's cause is
// the *pd.Error to end it with. It must be called once, before the legs run.
func (p *Pair) Watch(ctx context.Context) {
	p.stop = OnCancel(ctx, func(why *pd.Error) {
		f := NewFailure(why)
		f.Outcome, f.Other = pd.Left, pd.Left
		p.fail(f, nil)
	})
}

// Wait returns nil at the commit, else the failure that decided.
func (p *Pair) Wait() *pd.Error {
	<-p.settled
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.committed {
		return nil
	}
	return p.failure.Err
}

// Ready commits the pair: decode's answer may go to the client. False when a
// failure was faster, were it one that still waits for decode's own words; the
// caller then ends decode's leg.
func (p *Pair) Ready() bool {
	p.verdicts[pd.Decode].tell(nil)
	if f := p.verdicts[pd.Prefill].failure(); f != nil {
		p.fail(f, p.Prefill)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure != nil {
		return false
	}
	p.committed = true
	close(p.settled)
	return true
}

// PrefillFailed ends prefill's leg and, before the commit, the exchange. After
// the commit only a refusal ends it, or a loss that the client would feel.
func (p *Pair) PrefillFailed(f *Failure) {
	p.failed(p.Prefill, f, pd.Decode)
}

// PrefillDone ends prefill's leg with success.
func (p *Pair) PrefillDone() {
	p.verdicts[pd.Prefill].tell(nil)
	p.Prefill.End(pd.Success, nil)
}

// DecodeFailed ends decode's leg, and the exchange, before the commit.
func (p *Pair) DecodeFailed(f *Failure) {
	p.failed(p.Decode, f, pd.Prefill)
}

func (p *Pair) failed(l *Leg, f *Failure, other pd.Role) {
	outcome := f.Outcome
	if p.hear(l.Call.Worker.Role, f, other) {
		p.fail(f, l)
	} else {
		outcome = pd.Echo
	}
	if f.Running {
		p.Aborts.Drop(l, outcome, f.Err)
		<-l.ctx.Done()
	}
	l.End(outcome, f.Err)
}

// hear records a leg's failure. One that echoes the other leg waits for that
// leg's own words; false means that those decide. When both echo, prefill is
// believed.
func (p *Pair) hear(r pd.Role, f *Failure, other pd.Role) bool {
	p.verdicts[r].tell(f)
	if !f.Echo {
		return true
	}
	timer := time.NewTimer(echoWait)
	defer timer.Stop()
	select {
	case <-p.verdicts[other].known:
		of := p.verdicts[other].fail
		return of == nil || (of.Echo && r == pd.Prefill)
	case <-p.settled: // somebody else has decided
		return true
	case <-timer.C:
		return true
	}
}

// fail applies a failure of leg from, or of the client when from is nil. The
// leg that did not fail is dropped.
func (p *Pair) fail(f *Failure, from *Leg) {
	p.mu.Lock()
	switch {
	case p.failure != nil:
		p.mu.Unlock()
		return
	case from == p.Prefill && !f.Explicit && p.spared():
		p.mu.Unlock() // blamed by its outcome, felt by nobody
		return
	}
	if from != nil {
		p.note(f.Err, from)
	}
	p.decide(f)
	p.dropOthers(f, from)
}

// note adds to a leg's failure what concerns the other one: it may run the body
// meanwhile, and may have died of it like the one that was lost.
func (p *Pair) note(err *pd.Error, from *Leg) {
	other := p.beside(from).Call
	switch err.Kind {
	case pd.Unavailable:
		err.Ran = !other.WroteAt().IsZero()
	case pd.Stale, pd.Lost, pd.Broken:
		if err.Avoid == nil {
			err.Avoid = []pd.WorkerID{from.Call.Worker.ID, other.Worker.ID}
		}
	}
}

// beside is the other leg of the pair.
func (p *Pair) beside(l *Leg) *Leg {
	if l == p.Prefill {
		return p.Decode
	}
	return p.Prefill
}

// spared reports whether the client feels nothing of a prefill that breaks off.
// The caller holds p.mu.
func (p *Pair) spared() bool { return p.committed && p.HandedOver() }

// Expire ends the exchange because a deadline passed on leg on: both legs are
// dropped, or prefill alone where the client does not feel it. With early, a
// committed exchange is left alone.
func (p *Pair) Expire(on *Leg, early bool, wait pd.Wait, after time.Duration) {
	w := on.Call.Worker
	f := NewFailure(pd.ErrDeadline(pd.StageOf(w.Role), w.ID, wait, after))
	if on == p.Prefill {
		f.Outcome = pd.PairFault // it waits for decode to have room: either may be late
	}
	p.mu.Lock()
	if p.failure != nil || (early && p.committed) || on.over() {
		p.mu.Unlock()
		return
	}
	if on == p.Prefill && p.spared() {
		p.mu.Unlock()
		p.Aborts.Drop(on, f.Outcome, f.Err)
		return
	}
	p.decide(f)
	p.Aborts.Drop(on, f.Outcome, f.Err)
	p.dropOthers(f, on)
}

// decide makes f the exchange's end. It gives p.mu back.
func (p *Pair) decide(f *Failure) {
	p.failure = f
	if !p.committed {
		close(p.settled)
	}
	p.mu.Unlock()
}

func (p *Pair) dropOthers(f *Failure, from *Leg) {
	for _, l := range []*Leg{p.Prefill, p.Decode} {
		if l != from {
			p.Aborts.Drop(l, f.Other, f.Err)
		}
	}
}

// Failed is the failure that ended the exchange, nil while there is none.
func (p *Pair) Failed() *pd.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		return nil
	}
	return p.failure.Err
}

// DecodeDone ends decode's leg at the clean end of its answer, which may have
// told of a failure. Prefill is read on for a while, without an abort: its work
// is done.
func (p *Pair) DecodeDone(o pd.Outcome) {
	p.mu.Lock()
	if !p.prefilled {
		p.drain = time.AfterFunc(drainAfter, func() {
			if p.Prefill.drop(pd.Success, nil) {
				p.Prefill.close(pd.ErrCancelled(pd.StagePrefill))
			}
		})
	}
	p.mu.Unlock()
	p.stop() // a server ends a request's context as soon as it is answered
	p.Decode.End(o, nil)
}

// Leave ends both legs because the client will read no more of a committed
// answer.
func (p *Pair) Leave() {
	p.fail(NewFailure(pd.ErrCancelled(pd.StageClient)), nil)
}

// DecodeLost ends the exchange because decode's answer broke off after the
// commit. The caller ends decode's leg when its context has ended.
func (p *Pair) DecodeLost(f *Failure) {
	p.fail(f, p.Decode)
	if f.Running {
		p.Aborts.Drop(p.Decode, f.Outcome, f.Err)
		return
	}
	p.Decode.End(f.Outcome, f.Err)
}
