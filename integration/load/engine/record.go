package engine

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// Leg is what the engine saw of one leg since NewRun. Times are Unix
// nanoseconds, 0 for what did not happen.
type Leg struct {
	Role     Role
	Opened   int64 // the request was read
	Answered int64 // just before its whole answer, or refusal, was written
	Closed   int64 // the router closed the connection of a silent leg
	Aborted  int64 // /abort_request with the leg's rid came to its worker
}

// Freed is when the engine first learned that nobody wants the leg any more,
// 0 while it has not.
func (l Leg) Freed() int64 {
	if l.Closed == 0 || (l.Aborted != 0 && l.Aborted < l.Closed) {
		return l.Aborted
	}
	return l.Closed
}

type leg struct {
	Leg
	rid string
}

// record holds the legs of the present run, of which there is one at a time.
type record struct {
	mu      sync.Mutex
	legs    []*leg
	changed chan struct{} // closed, and made anew, at each change
}

func (r *record) update(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	if r.changed != nil {
		close(r.changed)
	}
	r.changed = make(chan struct{})
}

func (r *record) newRun() {
	r.update(func() { r.legs = nil })
}

func (r *record) open(role Role, rid string, now time.Time) *leg {
	l := &leg{Leg: Leg{Role: role, Opened: now.UnixNano()}, rid: rid}
	r.update(func() { r.legs = append(r.legs, l) })
	return l
}

// answered and closed take a nil leg when the mode does not record.
func (r *record) answered(l *leg, now time.Time) {
	if l != nil {
		r.update(func() { l.Answered = now.UnixNano() })
	}
}

func (r *record) closed(l *leg, now time.Time) {
	if l != nil {
		r.update(func() { l.Closed = now.UnixNano() })
	}
}

// abort notes the first abort of each live leg of that rid: a router may
// repeat itself, and a late repetition belongs to a run that is over.
func (r *record) abort(role Role, rid string, now time.Time) {
	if rid == "" {
		return
	}
	r.update(func() {
		for _, l := range r.legs {
			if l.Role == role && l.rid == rid && l.Aborted == 0 {
				l.Aborted = now.UnixNano()
			}
		}
	})
}

// wait returns the legs as soon as done holds for them, or at the end of ctx.
func (r *record) wait(ctx context.Context, done func([]Leg) bool) []Leg {
	for {
		r.mu.Lock()
		legs := make([]Leg, len(r.legs))
		for i, l := range r.legs {
			legs[i] = l.Leg
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if done(legs) {
			return legs
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return legs
		}
	}
}

// ridOf is the rid of a body, "" if it has none that is a string.
func ridOf(body []byte) string {
	var b struct{ RID any }
	if json.Unmarshal(body, &b) != nil {
		return ""
	}
	rid, _ := b.RID.(string)
	return rid
}
