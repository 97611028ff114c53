package pools

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tandem-pd/tandem/pd"
)

// pairFailures in a row open a pair's breaker: few, since its workers go on with
// others. For the same reason it is open for a third of a worker's time, which
// makes three trials a minute unless that is set otherwise.
const pairFailures = 3

// maxPairs bounds the pairs that are remembered for having failed.
const maxPairs = 4096

// pairs are the breakers of those pairs that have failed as such: both workers
// do well with others, but not together.
type pairs struct {
	breakers Breakers
	bound    func(string)

	size atomic.Int64 // breakers in of; written with mu held
	mu   sync.RWMutex
	of   map[pd.WorkerID]map[pd.WorkerID]*breaker // by prefill, then by decode
}

func newPairs(opt Options) *pairs {
	b := Breakers{Disabled: opt.Breakers.Disabled, Trials: 1, Window: opt.Breakers.Window, Open: opt.Breakers.Open / 3, Trial: opt.Breakers.Trial}
	return &pairs{breakers: b, bound: opt.Bound, of: make(map[pd.WorkerID]map[pd.WorkerID]*breaker)}
}

// some reports whether any pair has failed.
func (p *pairs) some() bool { return p.size.Load() > 0 }

// find is the pair's breaker, nil for one that has not failed.
func (p *pairs) find(prefill, decode pd.WorkerID) *breaker {
	if !p.some() {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.of[prefill][decode]
}

// avoided lists the decodes that the prefill may not be paired with at now.
func (p *pairs) avoided(prefill pd.WorkerID, now time.Time) []pd.WorkerID {
	if !p.some() {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []pd.WorkerID
	for decode, b := range p.of[prefill] {
		if !b.mayPass(now, false) {
			out = append(out, decode)
		}
	}
	return out
}

// fault counts the failure of a pair that had no breaker when it was chosen.
func (p *pairs) fault(prefill, decode pd.WorkerID) {
	if p.breakers.Disabled {
		return
	}
	if b := p.add(prefill, decode); b != nil {
		b.count(b.now.Load(), errFault)
	}
}

// add is the pair's breaker, a new one if it has none; nil if there is no room
// for one.
func (p *pairs) add(prefill, decode pd.WorkerID) *breaker {
	b := p.findOrMake(prefill, decode)
	if b == nil {
		p.bound("pairs") // which may read the status, and so must not run under p.mu
	}
	return b
}

func (p *pairs) findOrMake(prefill, decode pd.WorkerID) *breaker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.of[prefill][decode]; b != nil {
		return b
	}
	if p.size.Load() >= maxPairs {
		p.drop(func(_, _ pd.WorkerID, b *breaker) bool { return b.state() == closed })
	}
	if p.size.Load() >= maxPairs {
		return nil
	}
	b := newBreaker(p.breakers, func(c gobreaker.Counts) bool {
		return c.ConsecutiveFailures >= pairFailures
	}, func(breakerState) {})
	if p.of[prefill] == nil {
		p.of[prefill] = make(map[pd.WorkerID]*breaker)
	}
	p.of[prefill][decode] = b
	p.size.Add(1)
	return b
}

// forget drops what is known of a worker's pairs.
func (p *pairs) forget(id pd.WorkerID) {
	if !p.some() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(func(prefill, decode pd.WorkerID, _ *breaker) bool { return prefill == id || decode == id })
}

// drop removes the breakers that which holds for. The caller holds p.mu.
func (p *pairs) drop(which func(prefill, decode pd.WorkerID, b *breaker) bool) {
	for prefill, with := range p.of {
		for decode, b := range with {
			if which(prefill, decode, b) {
				delete(with, decode)
				p.size.Add(-1)
			}
		}
		if len(with) == 0 {
			delete(p.of, prefill)
		}
	}
}

// bad lists the pairs whose breakers are not closed, by id.
func (p *pairs) bad() []PairStatus {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []PairStatus
	for prefill, with := range p.of {
		for decode, b := range with {
			if b.state() != closed {
				out = append(out, PairStatus{prefill, decode})
			}
		}
	}
	slices.SortFunc(out, func(a, b PairStatus) int {
		return cmp.Or(cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.Decode, b.Decode))
	})
	return out
}
