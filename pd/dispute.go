package pd

import (
	"slices"
	"sync"
)

// dispute holds back the blame for a request's failed attempts until it is known
// who was at fault. Where another worker does what one has failed at, the one was;
// where all fail alike it is the request, since some bodies make every engine
// fail, and must not take the workers out of everybody else's service.
type dispute struct {
	suspects []WorkerID // that the request has failed on; for the attempt loop alone

	mu      sync.Mutex
	held    []*Lease
	settled bool
	outcome Outcome // once settled
}

// failed notes a failed attempt.
func (d *dispute) failed(err *Error) {
	switch err.Kind {
	case Failed, Lost, Broken:
		if !slices.Contains(d.suspects, err.Worker) {
			d.suspects = append(d.suspects, err.Worker)
		}
	}
}

// hold keeps the blame of l back, or gives it at once when all is settled.
func (d *dispute) hold(l *Lease) {
	d.mu.Lock()
	if !d.settled {
		d.held = append(d.held, l)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	l.settle(d.outcome)
}

// settle gives the blame, or takes it from those who failed alike.
func (d *dispute) settle(committed bool) {
	d.mu.Lock()
	if d.settled {
		d.mu.Unlock()
		return
	}
	d.settled, d.outcome = true, Fault
	if !committed && len(d.suspects) > 1 {
		d.outcome = Unused
	}
	held := d.held
	d.held = nil
	d.mu.Unlock()
	for _, l := range held {
		l.settle(d.outcome)
	}
}
