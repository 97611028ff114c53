package chaos

import (
	"fmt"
	"sync"
	"time"
)

// outcomeChecker checks that every request has ended, in whatever way, within
// a bound.
type outcomeChecker struct {
	report func(Violation)
	bound  time.Duration
	lost   func(from, to time.Time) time.Duration // time that does not count

	mu    sync.Mutex
	open  map[string]*openRequest
	worst time.Duration
	which string // took it
}

type openRequest struct {
	began    time.Time
	what     string
	reported bool
}

func newOutcomeChecker(report func(Violation), bound time.Duration, lost func(from, to time.Time) time.Duration) *outcomeChecker {
	return &outcomeChecker{report: report, bound: bound, lost: lost, open: map[string]*openRequest{}}
}

// began notes a request; what describes it.
func (c *outcomeChecker) began(id, what string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[id] = &openRequest{began: at, what: what}
}

// ended notes that a request has its outcome.
func (c *outcomeChecker) ended(id string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.open[id]; r != nil {
		c.judge(id, r, at)
		delete(c.open, id)
	}
}

// look judges the requests that have none yet.
func (c *outcomeChecker) look(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, r := range c.open {
		c.judge(id, r, now)
	}
}

func (c *outcomeChecker) judge(id string, r *openRequest, at time.Time) {
	took := at.Sub(r.began) - c.lost(r.began, at)
	if took > c.worst {
		c.worst, c.which = took, id+" ("+r.what+")"
	}
	if took <= c.bound || r.reported {
		return
	}
	r.reported = true
	c.report(Violation{Invariant: invariantOutcome, Request: id, Detail: fmt.Sprintf(
		"no outcome after %s, the bound is %s: %s", took.Round(time.Millisecond), c.bound, r.what)})
}

// longest is the longest that a request has taken.
func (c *outcomeChecker) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.worst
}

// slowest says which request that was.
func (c *outcomeChecker) slowest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.which
}
