package chaos

import (
	"fmt"
	"time"
)

// Both words that the router sends an engine about a leg can come before the leg
// has got into its scheduler, if the process, which the engine is part of, stands
// still for longer than overtaken around the end of the request. Nothing frees a
// plain call that runs then but its own end, after ownRun at most.
const (
	overtaken = 150 * time.Millisecond
	ownRun    = unwantedTokens * tokenInterval
)

// excused is how much of the time that a leg has outlived its request does not count.
func (r *run) excused(engine string, from, to time.Time) time.Duration {
	sum := r.timeline.paused(engine, from, to) + r.stalls.lost(from, to)
	if r.stalls.lost(from.Add(-legLimit), from.Add(legLimit)) > overtaken {
		sum += ownRun
	}
	return sum
}

// lately is how far back a violation tells what else was wrong.
const lately = 5 * time.Second

// report writes a violation down, with what went on at the time.
func (r *run) report(v Violation) {
	now := time.Now()
	v.Detail += fmt.Sprintf("; faults lately: [%s], the process lost %s of the last %s",
		r.timeline.between(now.Add(-lately), now), r.stalls.lost(now.Add(-lately), now).Round(time.Millisecond), lately)
	r.book.report(v)
}
