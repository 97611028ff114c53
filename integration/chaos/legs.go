package chaos

import (
	"fmt"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
)

const (
	// legLimit is how long an engine may go on with a leg whose request has ended
	// at the client: the router sees the client leave, tells the engine, and tells
	// it again half a second later if the first word may have come too early.
	legLimit = time.Second
	// drainLimit is how long prefill may still answer, beyond legLimit, after
	// decode has ended well: its answer is read to the end then, not dropped.
	drainLimit = 2 * time.Second
	// slack is for what a busy machine does to all of this without standing still
	// for long enough to be called a stall.
	slack = 250 * time.Millisecond
	// remembered is for how long a request that has ended and has no leg is known.
	// It is longer than any pause, from which an engine may wake up to find a leg.
	remembered = 30 * time.Second
)

// legChecker checks that no leg is alive on an engine for longer than legLimit
// after its request ended at the client. A leg is alive until its call has been
// answered or given up, and every item of it is out of the engine's scheduler.
type legChecker struct {
	report func(Violation)
	// excused is the time between two points that does not count on an engine.
	excused func(engine string, from, to time.Time) time.Duration

	mu       sync.Mutex
	requests map[string]*legsOf
	worst    time.Duration
}

// legsOf is a request and its legs that are alive.
type legsOf struct {
	ended  time.Time // zero before
	whole  bool      // the client got decode's answer to its end
	unsent bool
	live   map[legKey]*leg
}

// legKey tells the legs of a request apart.
type legKey struct {
	engine, rid string
	arrived     time.Time
}

// leg is one call as an engine saw it.
type leg struct {
	engine   string
	role     simengine.Role
	record   simengine.Record
	reported bool
}

func newLegChecker(report func(Violation), excused func(string, time.Time, time.Time) time.Duration) *legChecker {
	return &legChecker{report: report, excused: excused, requests: map[string]*legsOf{}}
}

// began notes a request before it is sent; unsent says that it must have no leg.
func (c *legChecker) began(id string, unsent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[id] = &legsOf{unsent: unsent, live: map[legKey]*leg{}}
}

// ended notes that the client has its answer or has left.
func (c *legChecker) ended(id string, at time.Time, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.requests[id]; r != nil {
		r.ended, r.whole = at, whole
	}
}

// saw notes a leg that has arrived or, when it says so, is freed.
func (c *legChecker) saw(engine string, role simengine.Role, r simengine.Record) {
	id := r.Header.Get(requestIDHeader)
	r.Body = nil // not needed, and it can be long
	c.mu.Lock()
	defer c.mu.Unlock()
	req := c.requests[id]
	if req == nil {
		c.report(Violation{Invariant: invariantLegs, Request: id, Engine: engine, Detail: "a leg of no known request: " + describe(r)})
		return
	}
	key := legKey{engine: engine, arrived: r.Arrived}
	if len(r.Rids) > 0 {
		key.rid = r.Rids[0]
	}
	if r.Freed.IsZero() {
		if req.unsent {
			c.report(Violation{Invariant: invariantLegs, Request: id, Engine: engine, Detail: "a leg of a request that is to be refused: " + describe(r)})
		}
		req.live[key] = &leg{engine: engine, role: role, record: r}
		return
	}
	if l := req.live[key]; l != nil {
		l.record = r
		c.judge(id, req, l, r.Freed)
		delete(req.live, key)
	}
}

// look judges the legs that are alive now, and forgets what is long over.
func (c *legChecker) look(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, r := range c.requests {
		for _, l := range r.live {
			c.judge(id, r, l, now)
		}
		if len(r.live) == 0 && !r.ended.IsZero() && now.Sub(r.ended) > remembered {
			delete(c.requests, id)
		}
	}
}

// judge reports a leg that is alive at a time too long after its request, once.
func (c *legChecker) judge(id string, r *legsOf, l *leg, at time.Time) {
	if r.ended.IsZero() || !at.After(r.ended) {
		return
	}
	over := at.Sub(r.ended) - c.excused(l.engine, r.ended, at)
	limit := legLimit + slack
	if r.whole && l.role == simengine.Prefill {
		limit += drainLimit
	} else {
		c.worst = max(c.worst, over)
	}
	if over <= limit || l.reported {
		return
	}
	l.reported = true
	c.report(Violation{Invariant: invariantLegs, Request: id, Engine: l.engine, Detail: fmt.Sprintf(
		"alive %s after its request ended: %s", over.Round(time.Millisecond), describe(l.record))})
}

// alive is the number of legs alive now.
func (c *legChecker) alive() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		n += len(r.live)
	}
	return n
}

// longest is for how long a leg outlived its request at most, but for prefill's
// that were read to their end.
func (c *legChecker) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.worst
}

// describe is a record without its prompt.
func describe(r simengine.Record) string {
	since := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.Sub(r.Arrived).Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%s stream=%t rids=%v rooms=%v arrived %s; after that: first byte %s, closed by client %s, aborted %s, ended %s, freed %s; events %d, status %d, end %q",
		r.Path, r.Stream, r.Rids, r.Rooms, r.Arrived.Format("15:04:05.000"), since(r.FirstByte), since(r.ClosedByClient),
		since(r.AbortedAt), since(r.Ended), since(r.Freed), r.Events, r.Status, r.End)
}
