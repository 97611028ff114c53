package single

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// refusal is the failure of an answer whose status is not 2xx.
func (x *exchange) refusal(resp *http.Response) *legs.Failure {
	if resp.StatusCode < 400 || resp.StatusCode > 599 { // it may name the engine's address, or never end
		return x.broken("an answer with status "+strconv.Itoa(resp.StatusCode), nil)
	}
	words, err := x.leg.ReadRefusal(resp.Body)
	if err != nil {
		return x.lost(err)
	}
	e := x.refused(resp.StatusCode)
	e.RetryAfter = resp.Header.Get("Retry-After")
	if words == nil {
		e.Message = "worker " + string(e.Worker) + " refused the request and did not say why"
		return x.judge(e, "")
	}
	e.Body, e.ContentType, e.Header = x.hideAddress(words), resp.Header.Get("Content-Type"), pd.Inbound(resp.Header)
	if f, ok := sglang.BodyFailure(words); ok {
		return x.judge(e, f.Message)
	}
	return x.judge(e, "")
}

// frame is the failure that the engine wrote into the first event of a stream.
// The other items of a batch go on.
func (x *exchange) frame(f *sglang.Failure) *legs.Failure {
	e := x.refused(f.Status)
	e.Body, e.ContentType = x.hideAddress(f.Body), "application/json"
	fail := x.judge(e, f.Message)
	fail.Running = x.req.Items > 1
	return fail
}

// refused is the error of an engine that says no.
func (x *exchange) refused(status int) *pd.Error {
	w := x.leg.Call.Worker
	return &pd.Error{Stage: pd.StageOf(w.Role), Worker: w.ID, Status: status, Code: w.Role.String() + "_error"}
}

// judge decides by status and words what a refusal says of the worker.
func (x *exchange) judge(e *pd.Error, words string) *legs.Failure {
	switch {
	case x.req.Aborted():
		e.Kind = pd.Aborted
	case e.Status == http.StatusRequestTimeout, e.Status == http.StatusTooManyRequests, e.Status == http.StatusServiceUnavailable:
		e.Kind = pd.Overload
	case e.Status < 500:
		e.Kind = pd.Refused
	default:
		e.Kind = pd.Failed
	}
	if e.Status == http.StatusBadRequest && sglang.Classify(words) == sglang.DuplicateRid {
		e.Code = pd.CodeDuplicateRid
	}
	return legs.NewFailure(e)
}

// lost is the failure of a call or an answer that broke off, for which nobody is
// blamed when somebody has asked for the request's end.
func (x *exchange) lost(err *pd.Error) *legs.Failure {
	f := legs.NewFailure(err)
	if x.req.Aborted() {
		f.Outcome = pd.Left
	}
	return f
}

func (x *exchange) broken(what string, err error) *legs.Failure {
	w := x.leg.Call.Worker
	return legs.NewFailure(&pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Broken, Status: http.StatusBadGateway,
		Code: w.Role.String() + "_bad_response", Message: "worker " + string(w.ID) + " sent " + what, Err: err,
	})
}

// hideAddress puts the worker's id in the place of its address in the engine's
// words, but not of an address that merely begins like it: host:899 and host:8998.
func (x *exchange) hideAddress(words []byte) []byte {
	w := x.leg.Call.Worker
	addr := []byte(w.Addr())
	if !bytes.Contains(words, addr) {
		return words
	}
	var out []byte
	for {
		before, rest, found := bytes.Cut(words, addr)
		out = append(out, before...)
		switch {
		case !found:
			return out
		case len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9':
			out = append(out, addr...)
		default:
			out = append(out, w.ID...)
		}
		words = rest
	}
}

// errorEvent is the event that ends a stream which cannot go on, as clients of its
// API expect it.
func errorEvent(req *pd.Request, e *pd.Error) []byte {
	if req.Endpoint != pd.Other || !strings.HasPrefix(req.Target, "/v1/messages") {
		return e.Event(req.Endpoint)
	}
	kind := pd.ErrorType(e.Status)
	if kind == "server_error" {
		kind = "api_error"
	}
	line, err := json.Marshal(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": e.Message}})
	if err != nil {
		panic("BUG: strings that do not marshal: " + err.Error())
	}
	return slices.Concat([]byte("event: error\ndata: "), line, []byte("\n\n"))
}
