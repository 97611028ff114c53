package pd

import (
	"sync"
	"time"
)

// budgetWindow is the time over which a budget looks, in steps of a second.
const budgetWindow = 10

// Budget keeps repeated attempts from multiplying the load on a pool that is
// failing: over the last 10 s they are at most a share of the requests, or a
// floor, whichever is more. The zero value is 20 % with a floor of 30.
type Budget struct {
	Percent int // repeats for each hundred requests, 20 when 0
	Floor   int // repeats in 10 s that are always allowed, 30 when 0; negative for none

	mu    sync.Mutex
	steps [budgetWindow]budgetStep // by second, in a ring
	begun time.Time                // of second 0
}

type budgetStep struct {
	second            int64
	requests, repeats int
}

// request counts a request's first attempt.
func (b *Budget) request() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	step, _ := b.step()
	step.requests++
}

// take counts a repeated attempt, unless that would exceed the budget. A nil
// budget has no bound.
func (b *Budget) take() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now, second := b.step()
	requests, repeats := 0, 0
	for _, s := range b.steps {
		if second-s.second < budgetWindow {
			requests += s.requests
			repeats += s.repeats
		}
	}
	percent, floor := b.Percent, b.Floor
	if percent == 0 {
		percent = 20
	}
	if floor == 0 {
		floor = 30
	}
	if repeats >= max(requests*percent/100, floor) {
		return false
	}
	now.repeats++
	return true
}

// step is the present second's, emptied if it was that of an earlier round. The
// caller holds b.mu.
func (b *Budget) step() (*budgetStep, int64) {
	now := time.Now()
	if b.begun.IsZero() {
		b.begun = now
	}
	second := int64(now.Sub(b.begun) / time.Second)
	s := &b.steps[second%budgetWindow]
	if s.second != second {
		*s = budgetStep{second: second}
	}
	return s, second
}
