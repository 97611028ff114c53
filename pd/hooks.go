package pd

import "time"

// Hooks are optional functions called as a request moves on. They run on the
// request's own goroutines: they must be quick, must not block and must not
// keep what they are given, except where said. The zero value observes nothing.
type Hooks struct {
	// Planned is called when an attempt has its workers.
	Planned func(req *Request, attempt int, plan *Plan)
	// Leg is called when a leg has ended, with all that is known of it. By then
	// another attempt may be under way: leg.Attempt is the leg's, req.Attempt is not.
	Leg func(req *Request, leg LegReport)
	// Retry is called when a failed attempt is to be followed by another, wait
	// from now.
	Retry func(req *Request, attempt int, err *Error, wait time.Duration)
	// Committed is called when bytes may go to the client.
	Committed func(req *Request)
	// Done is called once, when the client's answer has ended in whatever way.
	Done func(req *Request, report Report)
	// Bound is called when a named bound was hit ("aborts", "retry_budget", ...).
	Bound func(name string)
	// Panic is called with what was recovered from a goroutine.
	Panic func(value any, stack []byte)
}

// LegReport is one leg: durations count from the request's start, zero meaning
// that it never happened.
type LegReport struct {
	Worker  WorkerID
	Role    Role
	Attempt int
	Sample  int
	Rooms   []uint64 // one per batch item, shared: read only
	Rid     string   // the first item's rid
	Status  int      // HTTP status, 0 when no answer came

	Sent    time.Duration // handed to the transport
	Headers time.Duration // response headers in
	First   time.Duration // first event or body byte in
	End     time.Duration

	Outcome Outcome
	Err     *Error // nil on success
}

// Report is what became of one request.
type Report struct {
	Start    time.Time
	Commit   time.Duration // when bytes could first go out, zero if never
	TTFT     time.Duration // the first event of decode, or of a whole engine, or first byte, of the last attempt
	Total    time.Duration
	Attempts int
	Legs     []LegReport // legs that had ended by then come whole, others as they stood

	PromptTokens, CompletionTokens, CachedTokens int // as the engine counted; zero if unseen
	Events                                       int // events of the answer's streams
	Err                                          *Error
}
