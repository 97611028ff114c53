package legs

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/tandem-pd/tandem/pd"
)

// Failure is a leg's failure and what it says of the workers.
type Failure struct {
	Err     *pd.Error
	Outcome pd.Outcome // of the leg that failed
	Other   pd.Outcome // of the leg that is dropped for it
	Echo    bool       // the words name the other leg: it may have a cause of its own
	// Explicit marks a refusal: an answer that says no, as against a lost
	// connection.
	Explicit bool
	// Running says that the engine may still be at work on the leg: it is told
	// before the leg's socket closes.
	Running bool
}

// NewFailure is the failure err with the blame that its kind implies.
func NewFailure(err *pd.Error) *Failure {
	f := &Failure{Err: err, Outcome: pd.Fault, Other: pd.Echo}
	switch err.Kind {
	case pd.Refused, pd.Invalid:
		f.Outcome, f.Explicit = pd.ClientFlaw, true
	case pd.Unavailable:
		if err.Status != http.StatusGatewayTimeout { // silence may be that of a busy machine
			f.Outcome = pd.Unreachable
		}
	case pd.Overload:
		f.Outcome, f.Explicit = pd.Overloaded, true
	case pd.Failed:
		f.Explicit = true
	case pd.Aborted:
		f.Outcome, f.Other, f.Explicit = pd.Left, pd.Left, true
	case pd.Cancelled:
		f.Outcome, f.Other = pd.Left, pd.Left
	case pd.Stale, pd.Internal:
		f.Outcome, f.Other = pd.Unused, pd.Unused
	}
	return f
}

// Lost is the failure of a call or an answer that broke off, for which nobody is
// blamed when somebody has asked for the request's end.
func (l *Leg) Lost(err *pd.Error) *Failure {
	f := NewFailure(err)
	if l.req.Aborted() {
		f.Outcome, f.Other = pd.Left, pd.Left
	}
	return f
}

// Broken is the failure of an answer that the protocol does not allow; what says
// what the worker sent.
func (l *Leg) Broken(what string, err error) *Failure {
	w := l.Call.Worker
	role := w.Role.String()
	return NewFailure(&pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Broken, Status: http.StatusBadGateway,
		Code: role + "_bad_response", Message: role + " worker " + string(w.ID) + " sent " + what, Err: err,
	})
}

// Refused is the error of an engine that says no, of the kind that the status
// alone implies. What it says is the caller's to put in.
func (l *Leg) Refused(status int) *pd.Error {
	w := l.Call.Worker
	e := &pd.Error{Stage: pd.StageOf(w.Role), Worker: w.ID, Status: status, Code: w.Role.String() + "_error"}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		e.Kind = pd.Overload
	case status < 500:
		e.Kind = pd.Refused
	default:
		e.Kind = pd.Failed
	}
	return e
}

// Refusal reads an answer whose status is not 2xx. hide takes the engines'
// addresses out of its words. The failure is of an answer that is no refusal, or
// that cannot be read.
func (l *Leg) Refusal(resp *http.Response, hide func(words []byte) []byte) (*pd.Error, *Failure) {
	if resp.StatusCode < 400 || resp.StatusCode > 599 { // it may name the engine's address, or never end, as an upgrade does
		return nil, l.Broken("an answer with status "+strconv.Itoa(resp.StatusCode), nil)
	}
	words, err := l.readRefusal(resp.Body)
	if err != nil {
		return nil, l.Lost(err)
	}
	e := l.Refused(resp.StatusCode)
	e.RetryAfter = resp.Header.Get("Retry-After")
	if words == nil {
		e.Message = l.Call.Worker.Role.String() + " worker " + string(e.Worker) + " refused the request and did not say why"
		return e, nil
	}
	e.Body, e.ContentType, e.Header = hide(words), resp.Header.Get("Content-Type"), pd.Inbound(resp.Header)
	return e, nil
}

// HideAddr puts id in the place of a worker's address in an engine's words, but not
// of an address that merely begins like it: host:899 and host:8998. words is not
// changed.
func HideAddr(words []byte, addr string, id pd.WorkerID) []byte {
	if addr == "" {
		return words
	}
	var out []byte
	rest := words
	for {
		before, after, found := bytes.Cut(rest, []byte(addr))
		if !found {
			break
		}
		out = append(out, before...)
		if len(after) > 0 && after[0] >= '0' && after[0] <= '9' {
			out = append(out, addr...)
		} else {
			out = append(out, id...)
		}
		rest = after
	}
	if out == nil {
		return words
	}
	return append(out, rest...)
}
