package chaos

import (
	"context"
	"sync"
	"time"
)

const (
	// beat is how often the heartbeat looks at the clock.
	beat = 20 * time.Millisecond
	// stallAfter is how late a beat is when the process has stood still, or others
	// have the processors most of the time: everything takes several turns.
	stallAfter = 20 * time.Millisecond
	// tooBusy is the share of the last second that must be lost for clients to
	// wait with their next request.
	tooBusy = 0.3
	// maxStalls is how many stalls are remembered; the oldest are forgotten.
	maxStalls = 1 << 14
)

// stalls measures when the process itself got no processor: a goroutine that
// wants to run every beat says when it could not. That time is nobody's fault.
type stalls struct {
	mu    sync.Mutex
	spans []spell // closed ones, oldest first
	last  time.Time
	worst time.Duration
}

func newStalls(now time.Time) *stalls { return &stalls{last: now} }

// run beats until ctx ends.
func (s *stalls) run(ctx context.Context) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.beat(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// beat notes that the process runs, and since when it did not.
func (s *stalls) beat(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	late := now.Sub(s.last) - beat
	if late >= stallAfter {
		if len(s.spans) == maxStalls {
			s.spans = append(s.spans[:0], s.spans[maxStalls/2:]...)
		}
		s.spans = append(s.spans, spell{from: s.last, to: now})
	}
	s.worst = max(s.worst, late)
	s.last = now
}

// lost is how much of the time from from to to the process stood still. A beat
// that is overdue at to counts already.
func (s *stalls) lost(from, to time.Time) (sum time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.Sub(s.last)-beat >= stallAfter {
		sum = overlap(s.last, to, from, to)
	}
	for i := len(s.spans) - 1; i >= 0 && s.spans[i].to.After(from); i-- {
		sum += overlap(s.spans[i].from, s.spans[i].to, from, to)
	}
	return sum
}

// busy reports whether the processors have no time for more requests.
func (s *stalls) busy(now time.Time) bool {
	return s.lost(now.Add(-time.Second), now).Seconds() > tooBusy
}

// longest is the longest stall so far.
func (s *stalls) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worst
}
