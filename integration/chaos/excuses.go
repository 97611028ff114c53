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

// A machine that has no time for the engines makes them faulty without the
// director: decodes give up prefills whose heartbeat they cannot hear. That shows
// up to heartbeats later, once the process has lost more than its share.
const (
	heartbeats = 2 * time.Second
	share      = 0.25
)

// faulty reports whether an engine's fault, or the machine's, touches the time
// from from to to.
func (r *run) faulty(engine string, from, to time.Time) bool {
	from = from.Add(-heartbeats)
	if r.stalls.lost(from, to).Seconds() > share*to.Sub(from).Seconds() {
		return true
	}
	return r.timeline.faulty(engine, from.Add(heartbeats), to)
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
