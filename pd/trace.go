package pd

import (
	"sync"
	"time"
)

// trace collects what happens to one request. Its methods may be called from
// any of the request's goroutines, and on a nil trace.
type trace struct {
	mu     sync.Mutex
	start  time.Time
	hooks  *Hooks
	legs   []*LegTrace
	report Report
}

// LegTrace is one leg's place in the request's report.
type LegTrace struct {
	trace  *trace
	req    *Request
	report LegReport
}

func newTrace(start time.Time, hooks *Hooks) *trace {
	return &trace{start: start, hooks: hooks, report: Report{Start: start}, legs: make([]*LegTrace, 0, 2)}
}

// Leg begins the report of one leg.
func (r *Request) Leg(w *Worker, rooms []uint64, rid string) *LegTrace {
	l := &LegTrace{trace: r.trace, req: r, report: LegReport{
		Worker: w.ID, Role: w.Role, Attempt: r.Attempt, Sample: r.SampleIndex, Rooms: rooms, Rid: rid,
	}}
	if t := r.trace; t != nil {
		l.report.Sent = time.Since(t.start)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.legs = append(t.legs, l)
	}
	return l
}

// Headers notes the leg's status.
func (l *LegTrace) Headers(status int) {
	l.note(func(r *LegReport, now time.Duration) { r.Status, r.Headers = status, now })
}

// First notes the leg's first event or byte.
func (l *LegTrace) First() {
	l.note(func(r *LegReport, now time.Duration) {
		if r.First == 0 {
			r.First = now
		}
	})
}

// End notes how the leg ended; only the first call counts.
func (l *LegTrace) End(o Outcome, err *Error) {
	ended := false
	l.note(func(r *LegReport, now time.Duration) {
		if r.End == 0 {
			r.Outcome, r.Err, r.End, ended = o, err, now, true
		}
	})
	if t := l.trace; ended && t.hooks.Leg != nil {
		t.mu.Lock()
		report := l.report
		t.mu.Unlock()
		t.hooks.Leg(l.req, report)
	}
}

func (l *LegTrace) note(f func(*LegReport, time.Duration)) {
	t := l.trace
	if t == nil {
		return
	}
	now := time.Since(t.start)
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&l.report, now)
}

// Count adds to what the engine said of tokens, and to the events seen.
func (r *Request) Count(prompt, completion, cached, events int) {
	if t := r.trace; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.report.PromptTokens = max(t.report.PromptTokens, prompt)
		t.report.CachedTokens = max(t.report.CachedTokens, cached)
		t.report.CompletionTokens += completion
		t.report.Events += events
	}
}

// again forgets what the engines of a failed attempt counted.
func (t *trace) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.report
	r.PromptTokens, r.CompletionTokens, r.CachedTokens, r.Events = 0, 0, 0, 0
}

// Bound tells the hooks that a named bound was hit.
func (r *Request) Bound(name string) {
	if r.trace != nil && r.trace.hooks.Bound != nil {
		r.trace.hooks.Bound(name)
	}
}

func (t *trace) commit() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Commit = time.Since(t.start)
}

func (t *trace) finish(attempts int, err *Error) Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Attempts, t.report.Err = attempts, err
	t.report.Total = time.Since(t.start)
	t.report.Legs = make([]LegReport, len(t.legs))
	for i, l := range t.legs {
		t.report.Legs[i] = l.report
		first := l.report.First
		if answers := l.report.Role != Prefill && l.report.Attempt == attempts; !answers || first == 0 {
			continue
		}
		if t.report.TTFT == 0 || first < t.report.TTFT {
			t.report.TTFT = first
		}
	}
	return t.report
}
