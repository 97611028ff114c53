package chaos

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// successRate is how many of the requests that no fault touched must succeed.
	successRate = 0.999
	// maxFailures is how many failures of such requests are kept, to be told if
	// the rate is missed.
	maxFailures = 20
)

// availabilityChecker checks that the router refuses nobody for want of a
// worker while a prefill and a decode have been well for as long as recovery.
type availabilityChecker struct {
	report            func(Violation)
	prefills, decodes []string
	faulty            func(engine string, from, to time.Time) bool
	guarded           atomic.Int64 // answers that had a healthy pair
}

// forWant are the router's own codes for a 503 that says that there is nobody to
// serve the request.
var forWant = []string{
	"no_prefill_available", "no_decode_available", "no_pair_available", "prefill_unavailable", "decode_unavailable",
}

// answered judges an answer. code is the router's own error code, empty if the
// answer is an engine's.
func (c *availabilityChecker) answered(id string, status int, code string, began, ended time.Time) {
	from := ended.Add(-recovery)
	if began.Before(from) {
		from = began
	}
	well := func(engine string) bool { return !c.faulty(engine, from, ended) }
	p, d := slices.IndexFunc(c.prefills, well), slices.IndexFunc(c.decodes, well)
	if p < 0 || d < 0 {
		return
	}
	c.guarded.Add(1)
	if status != http.StatusServiceUnavailable || !slices.Contains(forWant, code) {
		return
	}
	c.report(Violation{Invariant: invariantAvailability, Request: id, Detail: fmt.Sprintf(
		"%d %s after %s, though %s and %s have been well since %s", status, code,
		ended.Sub(began).Round(time.Millisecond), c.prefills[p], c.decodes[d], from.Format("15:04:05.000"))})
}

// successChecker checks that nearly all requests whose client stays and whose
// pairs have no fault, from their start to their end, succeed.
type successChecker struct {
	report func(Violation)
	faulty func(engine string, from, to time.Time) bool

	mu        sync.Mutex
	planned   map[string][]string // engines of the open requests
	clean, ok int
	failures  []Violation
	plans     int
}

func newSuccessChecker(report func(Violation), faulty func(string, time.Time, time.Time) bool) *successChecker {
	return &successChecker{report: report, faulty: faulty, planned: map[string][]string{}}
}

// restart forgets what was counted so far.
func (c *successChecker) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clean, c.ok, c.plans, c.failures = 0, 0, 0, nil
}

// began notes a request before it is sent.
func (c *successChecker) began(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.planned[id] = nil
}

// plan notes that a request is tried on engines.
func (c *successChecker) plan(id string, engines ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plans++
	if _, open := c.planned[id]; open { // its client may have left
		c.planned[id] = append(c.planned[id], engines...)
	}
}

// engines are those that an open request was tried on.
func (c *successChecker) engines(id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.planned[id])
}

// ended judges a request; how says what became of it. One that no fault of an
// engine can excuse, nor its client, counts.
func (c *successChecker) ended(id string, stayed, succeeded bool, how string, began, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	engines := c.planned[id]
	delete(c.planned, id)
	touched := func(engine string) bool { return c.faulty(engine, began, at) }
	if !stayed || slices.ContainsFunc(engines, touched) {
		return
	}
	c.clean++
	if succeeded {
		c.ok++
		return
	}
	if len(c.failures) < maxFailures {
		c.failures = append(c.failures, Violation{Invariant: invariantSuccess, Request: id, Detail: fmt.Sprintf(
			"%s after %s on %v", how, at.Sub(began).Round(time.Millisecond), engines)})
	}
}

// conclude tells the failures if there are too many of them.
func (c *successChecker) conclude() {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := c.clean - c.ok
	if float64(c.ok) >= successRate*float64(c.clean) {
		return
	}
	c.report(Violation{Invariant: invariantSuccess, Detail: fmt.Sprintf(
		"%d of %d requests that no fault touched failed", failed, c.clean)})
	for _, v := range c.failures {
		c.report(v)
	}
}
