package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// aftermath is for how long after the end of a fault an engine still counts as
// faulty: the others learn of a restart when their connections to it break, and
// a heartbeat that failed during the fault can end a room shortly after it.
const aftermath = 500 * time.Millisecond

// spell is a time in which an engine is not its usual self.
type spell struct {
	kind     string
	from, to time.Time // to is zero while it lasts
	paused   bool      // it does nothing at all
	harmless bool      // it works, only otherwise: no excuse for a failure
}

// end is the spell's end, now if it lasts.
func (s *spell) end(now time.Time) time.Time {
	if s.to.IsZero() {
		return now
	}
	return s.to
}

// timeline knows what was wrong with which engine when. Its size is that of the
// director's plan.
type timeline struct {
	mu     sync.Mutex
	spells map[string][]*spell
}

func newTimeline() *timeline { return &timeline{spells: map[string][]*spell{}} }

// begin opens a spell; the result ends it.
func (t *timeline) begin(engine string, s spell) (end func(at time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spells[engine] = append(t.spells[engine], &s)
	return func(at time.Time) {
		t.mu.Lock()
		defer t.mu.Unlock()
		s.to = at
	}
}

// faulty reports whether a fault of the engine, or what follows one, touches the
// time from from to to.
func (t *timeline) faulty(engine string, from, to time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spells[engine] {
		if !s.harmless && !s.from.After(to) && !s.end(to).Add(aftermath).Before(from) {
			return true
		}
	}
	return false
}

// between lists what was wrong with whom in a time.
func (t *timeline) between(from, to time.Time) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	for engine, spells := range t.spells {
		for _, s := range spells {
			if !s.from.After(to) && !s.end(to).Before(from) {
				all = append(all, fmt.Sprintf("%s: %s from %s for %s", engine, s.kind, s.from.Format("15:04:05.000"), s.end(to).Sub(s.from).Round(time.Millisecond)))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// paused is how much of the time from from to to the engine stood still.
func (t *timeline) paused(engine string, from, to time.Time) (sum time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spells[engine] {
		if s.paused {
			sum += overlap(s.from, s.end(to), from, to)
		}
	}
	return sum
}

// overlap is the length of what two spans of time have in common.
func overlap(a1, a2, b1, b2 time.Time) time.Duration {
	from, to := a1, a2
	if b1.After(from) {
		from = b1
	}
	if b2.Before(to) {
		to = b2
	}
	return max(0, to.Sub(from))
}
