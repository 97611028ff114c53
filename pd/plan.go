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
)

var outcomeNames = [...]string{
	"unused", "success", "fault", "unreachable", "pair_fault", "client_error", "overload", "cancelled", "echo",
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
	done     atomic.Bool
}

// NewLease claims w. end gives the claim back and hears once how the leg ended;
// progress hears of every sign that the worker does its work. Both may be nil.
func NewLease(w *Worker, end func(Outcome), progress func()) *Lease {
	return &Lease{Worker: w, end: end, progress: progress}
}

// End gives the claim back and says how the leg ended. Calls after the first do
// nothing.
func (l *Lease) End(o Outcome) {
	if l != nil && !l.done.Swap(true) && l.end != nil {
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

// Plan is the pair that one sample runs on. Prefill is nil where one worker
// does the whole work.
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

// A Planner picks workers.
type Planner interface {
	// Plan picks one pair and takes a lease on both its workers for each of
	// samples; all or none. It returns one Plan per sample, all on the same
	// pair. Workers in avoid are not picked while others can be. It does no I/O
	// and does not block; its errors are *Error.
	Plan(ctx context.Context, req *Request, samples int, avoid []WorkerID) ([]*Plan, error)
}
