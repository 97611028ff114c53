package pd

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Stage is where a request was when it failed.
type Stage string

// The stages of a request, in order.
const (
	StageRequest Stage = "request" // reading and checking the client's body
	StagePlan    Stage = "plan"    // choosing workers
	StagePrefill Stage = "prefill" // the prefill leg
	StageDecode  Stage = "decode"  // the decode leg
	StageRegular Stage = "regular" // the one leg of a whole engine
	StageClient  Stage = "client"  // writing to the client
)

// StageOf is the stage of a role's leg.
func StageOf(r Role) Stage {
	switch r {
	case Prefill:
		return StagePrefill
	case Regular:
		return StageRegular
	default:
		return StageDecode
	}
}

// Kind says what sort of failure it was; retry and blame are decided on it.
type Kind uint8

// The kinds of failure.
const (
	Invalid     Kind = iota // the client's request, found by us: nothing was sent
	NoWorker                // nobody there who could do it
	Overload                // a bound of ours, or an engine's 408, 429 or 503
	Refused                 // an engine's other 4xx
	Failed                  // an engine's 5xx or error frame
	Unavailable             // nobody there: the worker was never reached
	Stale                   // a reused connection had been closed by the engine
	Lost                    // the connection broke after the body was sent
	Broken                  // the answer is not what the protocol allows
	Deadline                // one of our deadlines passed
	Late                    // the deadline of a stream's first event passed
	Aborted                 // somebody's abort request ended it
	Cancelled               // the client left
	Internal                // a fault of our own
)

var kindNames = [...]string{
	"invalid", "no_worker", "overload", "refused", "failed", "unavailable",
	"stale", "lost", "broken", "deadline", "late", "aborted", "cancelled", "internal",
}

// String is the kind's name in logs.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Error is the one error type of the package: what failed, on whom, and what
// the client is to be told.
type Error struct {
	Stage  Stage
	Worker WorkerID // empty when no worker is concerned
	// Avoid lists the workers that another attempt should do without where it
	// is not Worker alone: both of a pair that may have failed together.
	Avoid []WorkerID
	// Ran says that a worker may have run the body although the kind does not:
	// all of it was written, to this worker or to the other of the pair.
	Ran    bool
	Kind   Kind
	Status int // HTTP status for the client, 400-599

	// Body is an engine's own JSON, passed on as it came with ContentType; nil
	// for an error of ours, which Code, Message and Param describe.
	Body        []byte
	ContentType string
	Header      http.Header // an engine's end-to-end headers, with Body

	Code       string // snake_case, for machines
	Message    string
	Param      string // the field at fault, for Invalid
	RetryAfter string // value of Retry-After, empty for none

	Err error // the cause, for logs; may name addresses
}

// Error says what was attempted and on whom. It never holds a prompt.
func (e *Error) Error() string {
	s := string(e.Stage)
	if e.Worker != "" {
		s += " on " + string(e.Worker)
	}
	s += ": " + e.Kind.String()
	if e.Status != 0 {
		s += fmt.Sprintf(" (%d)", e.Status)
	}
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// avoid adds the workers that failed so to those that are to be avoided.
func (e *Error) avoid(avoid []WorkerID) []WorkerID {
	if e.Avoid != nil {
		return append(avoid, e.Avoid...)
	}
	if e.Worker != "" {
		return append(avoid, e.Worker)
	}
	return avoid
}

// AsError returns err as an *Error; one of a foreign type becomes Internal.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{
		Stage: StageRequest, Kind: Internal, Status: http.StatusInternalServerError,
		Code: "internal_error", Message: "the router failed to handle the request", Err: err,
	}
}

// invalid is the client's mistake in field param.
func invalid(param, format string, args ...any) *Error {
	return &Error{
		Stage: StageRequest, Kind: Invalid, Status: http.StatusBadRequest,
		Code: "invalid_request", Param: param, Message: fmt.Sprintf(format, args...),
	}
}

// InvalidField is the error of a request whose field param cannot be accepted.
func InvalidField(param, message string) *Error { return invalid(param, "%s", message) }

// ErrCancelled is the error of a request whose client has left. It is nobody's
// failure; 499 is what logs call it.
func ErrCancelled(stage Stage) *Error {
	return &Error{
		Stage: stage, Kind: Cancelled, Status: 499,
		Code: "client_closed_request", Message: "the client closed the connection",
	}
}

// ErrAborted is the error of a request that was aborted while no engine had it.
func ErrAborted(stage Stage) *Error {
	return &Error{
		Stage: stage, Kind: Aborted, Status: http.StatusServiceUnavailable,
		Code: "request_aborted", Message: "the request was aborted",
	}
}

// Wait names one of the deadlines of an exchange.
type Wait string

// The deadlines that end an exchange.
const (
	WaitAnswer     Wait = "answer"      // prefill's answer, or a whole plain one
	WaitFirstEvent Wait = "first_event" // a stream's first event, in a pair after prefill's answer
	WaitNextEvent  Wait = "idle"        // a stream's next event
	WaitRefusal    Wait = "refusal"     // the body of an error answer
)

// what says what was waited for.
func (w Wait) what() string {
	switch w {
	case WaitFirstEvent:
		return "the first event"
	case WaitNextEvent:
		return "the next event"
	case WaitRefusal:
		return "the body of a refusal"
	default:
		return "the answer"
	}
}

// ErrDeadline is the error of a deadline that passed on a worker. Its code names
// both: decode_timeout for the answer, decode_idle_timeout and the like for the
// others.
func ErrDeadline(stage Stage, id WorkerID, wait Wait, after time.Duration) *Error {
	e := &Error{
		Stage: stage, Worker: id, Kind: Deadline, Status: http.StatusGatewayTimeout,
		Code:    string(stage) + "_" + string(wait) + "_timeout",
		Message: fmt.Sprintf("%s of %s worker %s did not come within %s", wait.what(), stage, id, after),
	}
	switch wait {
	case WaitAnswer:
		e.Code = string(stage) + "_timeout"
	case WaitFirstEvent:
		e.Kind = Late
	}
	return e
}
