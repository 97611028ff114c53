package pd

import (
	"context"
	"sync"
	"sync/atomic"
)

// Outcome is what a leg's end says about its worker.
type Outcome uint8

// The outcomes of a leg. Only Fault and Unreachable count against a worker.
const (
	Unused      Outcome = iota // the leg was never sent
	Success                    // it did its work
	Fault                      // the worker's own failure
	Unreachable                // nobody is there: it refuses connections, or has no address
	PairFault                  // the two workers cannot work together
	ClientFlaw                 // a 4xx: the client's doing
	Overloaded                 // alive and busy: 408, 429, 503
	Left                       // the client left or asked for an abort
	Echo                       // it failed because the other leg did
	Disputed                   // it failed, and it is not known yet whether the request is to blame
)

var outcomeNames = [...]string{
	"unused", "success", "fault", "unreachable", "pair_fault", "client_error", "overload", "cancelled", "echo", "disputed",
}

// String is the outcome's name in logs.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// Lease is one sample's claim on one worker, counted from before dispatch.
type Lease struct {
	Worker   *Worker
	end      func(Outcome)
	progress func()
	settle   func(Outcome) // nil where nothing is disputed
	dispute  *dispute      // of the request; nil outside of one
	done     atomic.Bool
}

// NewLease claims w. end gives the claim back and hears once how the leg ended;
// progress hears of every sign that the worker does its work. Both may be nil.
func NewLease(w *Worker, end func(Outcome), progress func()) *Lease {
	return &Lease{Worker: w, end: end, progress: progress}
}

// OrDispute has end hear Disputed of a fault that the request itself may be to
// blame for, and settle hear once what it was: Fault, or Unused where nobody is
// blamed.
func (l *Lease) OrDispute(settle func(Outcome)) *Lease {
	l.settle = settle
	return l
}

// End gives the claim back and says how the leg ended. Calls after the first do
// nothing.
func (l *Lease) End(o Outcome) {
	switch {
	case l == nil || l.done.Swap(true) || l.end == nil:
	case o == Fault && l.settle != nil && l.dispute != nil:
		defer l.dispute.hold(l)
		l.end(Disputed)
	default:
		l.end(o)
	}
}

// Progress says that the worker has shown a good event or answer: it is alive,
// whatever its health endpoint says. It may be called for every event.
func (l *Lease) Progress() {
	if l != nil && l.progress != nil {
		l.progress()
	}
}

// Plan is who does the work of one sample: a pair, or one worker that does the
// whole of it, which stands in the place of Decode, with a Prefill of nil.
type Plan struct {
	Prefill, Decode *Lease

	once sync.Once
	end  func(prefill, decode Outcome)
}

// NewPlan joins two leases; end, which may be nil, hears both outcomes once.
func NewPlan(prefill, decode *Lease, end func(prefill, decode Outcome)) *Plan {
	return &Plan{Prefill: prefill, Decode: decode, end: end}
}

// End ends what has not ended of the two leases, and reports how both legs
// ended, together, so that a pair can be judged and not only its workers. Calls
// after the first do nothing.
func (p *Plan) End(prefill, decode Outcome) {
	p.once.Do(func() {
		p.Prefill.End(prefill)
		p.Decode.End(decode)
		if p.end != nil {
			p.end(prefill, decode)
		}
	})
}

// underDispute has the plan's faults judged with those of the request's others.
func (p *Plan) underDispute(d *dispute) {
	for _, l := range []*Lease{p.Prefill, p.Decode} {
		if l != nil {
			l.dispute = d
		}
	}
}

// A Planner picks workers.
type Planner interface {
	// Plan picks one pair, or one whole engine, and takes a lease on each of its
	// workers for each of samples; all or none. It returns one Plan per sample, all
	// on the same workers. Workers in avoid are not picked while others can be. It
	// does no I/O and does not block; its errors are *Error.
	Plan(ctx context.Context, req *Request, samples int, avoid []WorkerID) ([]*Plan, error)
}
