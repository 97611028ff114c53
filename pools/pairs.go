package pools

import (
	"sync"
	"sync/atomic"

	"github.com/sony/gobreaker/v2"

	"github.com/tandem-pd/tandem/pd"
)

// maxPairs bounds the pairs that are remembered for having failed.
const maxPairs = 4096

// pair names two workers.
type pair struct{ prefill, decode pd.WorkerID }

// pairs are the breakers of those pairs that have failed as such: both workers
// do well with others, but not together.
type pairs struct {
	bound func(string)
	off   bool // nothing is counted

	some atomic.Bool // there is an entry
	mu   sync.RWMutex
	of   map[pair]*breaker
}

// find is the pair's breaker, nil for one that has not failed.
func (p *pairs) find(prefill, decode *Member) *breaker {
	if !p.some.Load() {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.of[pair{prefill.Worker.ID, decode.Worker.ID}]
}

// ended counts how a pair did.
func (p *pairs) ended(prefill, decode *Member, first, second pd.Outcome) {
	b := p.find(prefill, decode)
	switch {
	case p.off:
	case first == pd.PairFault || second == pd.PairFault:
		if b == nil {
			b = p.add(pair{prefill.Worker.ID, decode.Worker.ID})
		}
		if b != nil {
			b.count(errFault)
		}
	case b != nil && first == pd.Success && second == pd.Success:
		b.count(nil)
	}
}

// count reports a verdict that did not need a passage.
func (b *breaker) count(verdict error) {
	if b.state.Load() != closed {
		return // a trial's own claim reports it
	}
	if c := b.allow(1); c != nil {
		c.end(verdict)
	}
}

func (p *pairs) add(key pair) *breaker {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.of[key]; b != nil {
		return b
	}
	if len(p.of) >= maxPairs {
		p.sweep()
	}
	if len(p.of) >= maxPairs {
		p.bound("pairs")
		return nil
	}
	b := newBreaker(Breakers{Trials: 1, Window: pairWindow, Open: pairOpen}.withDefaults(), func(c gobreaker.Counts) bool {
		return c.ConsecutiveFailures >= pairFailures
	}, func(int32) {})
	if p.of == nil {
		p.of = make(map[pair]*breaker)
	}
	p.of[key] = b
	p.some.Store(true)
	return b
}

// sweep forgets the pairs that are well. The caller holds p.mu.
func (p *pairs) sweep() {
	for key, b := range p.of {
		if b.state.Load() == closed {
			delete(p.of, key)
		}
	}
}

// forget drops what is known of a worker's pairs.
func (p *pairs) forget(id pd.WorkerID) {
	if !p.some.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.of {
		if key.prefill == id || key.decode == id {
			delete(p.of, key)
		}
	}
	p.some.Store(len(p.of) > 0)
}

// bad lists the pairs that are avoided now.
func (p *pairs) bad() []pair {
	if !p.some.Load() {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []pair
	for key, b := range p.of {
		if b.state.Load() != closed {
			out = append(out, key)
		}
	}
	return out
}
