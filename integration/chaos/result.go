package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// The invariants, as violations name them.
const (
	invariantLegs         = "no leg outlives its request"
	invariantOutcome      = "every request has an outcome in time"
	invariantRooms        = "a room belongs to one attempt"
	invariantRids         = "a rid belongs to one attempt"
	invariantAnswers      = "an answer is true, and whole if it looks whole"
	invariantAvailability = "healthy pairs are never all refused"
	invariantSuccess      = "what no fault touched succeeds"
	invariantCounters     = "counters return to zero"
	invariantLeaks        = "resources return to where they were"
	invariantCrash        = "no engine dies of what the router sends"
	invariantPanic        = "nothing panics"
)

// Violation is one breach of an invariant.
type Violation struct {
	Seed      uint64
	At        time.Duration // since the run's start
	Invariant string
	Request   string // its X-Request-Id, empty if it is about none
	Engine    string // empty if it is about none
	Detail    string
}

func (v Violation) String() string {
	s := fmt.Sprintf("seed %d, %s: %s", v.Seed, v.At.Round(time.Millisecond), v.Invariant)
	if v.Request != "" {
		s += ": request " + v.Request
	}
	if v.Engine != "" {
		s += " on " + v.Engine
	}
	return s + ": " + v.Detail
}

// maxViolations is how many violations of one invariant a run writes down; the
// others are counted.
const maxViolations = 20

// book takes the violations of a run.
type book struct {
	seed  uint64
	start time.Time

	mu   sync.Mutex
	list []Violation
	of   map[string]int // by invariant
	more int
}

// report writes a violation down, with the seed and the time.
func (b *book) report(v Violation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[v.Invariant] == maxViolations {
		b.more++
		return
	}
	if b.of == nil {
		b.of = map[string]int{}
	}
	b.of[v.Invariant]++
	v.Seed, v.At = b.seed, time.Since(b.start)
	b.list = append(b.list, v)
}

func (b *book) all() (list []Violation, more int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list), b.more
}

// Resources are what a process holds.
type Resources struct {
	Goroutines, Files int
	Heap              uint64 // bytes in use after a collection
}

// Worst are the longest times of a run.
type Worst struct {
	Request time.Duration // from a request's start to its end, stalls excluded
	Slowest string        // which request that was
	Leg     time.Duration // for which a leg outlived its request, pauses and stalls excluded
	Stall   time.Duration // in which the process got no processor
}

// Result is what became of a run.
type Result struct {
	Seed     uint64
	Took     time.Duration // of the clients' part
	Lost     time.Duration // of that, while the process got no processor
	Requests int
	Outcomes map[string]int // by outcome
	Manners  map[string]int // by what the client did
	Codes    map[string]int // of failures, by the status and the router's error code
	Attempts int            // plans made
	Retries  int
	Faults   map[string]int // by kind
	// Clean are the requests whose client stayed and whose pairs had no fault
	// meanwhile, CleanOK those of them that succeeded.
	Clean, CleanOK int
	Guarded        int // answers given while some pair had been well for long enough
	Worst          Worst
	Before, After  Resources

	Violations []Violation
	More       int // violations that are not listed
}

// String is the summary of a run, one thing to a line, then its violations.
func (r *Result) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("seed", "%d", r.Seed)
	line("requests", "%d in %s (%s of it lost), %.0f a second; %d attempts, %d retries", r.Requests, r.Took.Round(time.Millisecond), r.Lost.Round(time.Millisecond),
		float64(r.Requests)/max(r.Took.Seconds(), 1), r.Attempts, r.Retries)
	line("outcomes", "%s", counts(r.Outcomes))
	line("clients", "%s", counts(r.Manners))
	line("failures", "%s", counts(r.Codes))
	line("faults", "%s", counts(r.Faults))
	line("untouched", "%d, of which %d succeeded; %d while a pair was well", r.Clean, r.CleanOK, r.Guarded)
	line("worst", "request %s, leg after its request %s, stall of the process %s",
		r.Worst.Request.Round(time.Millisecond), r.Worst.Leg.Round(time.Millisecond), r.Worst.Stall.Round(time.Millisecond))
	line("slowest", "%s", r.Worst.Slowest)
	line("before", "%s", r.Before)
	line("after", "%s", r.After)
	line("violations", "%d", len(r.Violations)+r.More)
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  %s\n", v)
	}
	return b.String()
}

func (r Resources) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %.1f MiB of heap", r.Goroutines, r.Files, float64(r.Heap)/(1<<20))
}

// counts lists what was counted, by name.
func counts(m map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(parts, ", ")
}
