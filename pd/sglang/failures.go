package sglang

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
)

// refusal is the failure of an answer whose status is not 2xx.
func (x *exchange) refusal(leg *legs.Leg, resp *http.Response) *legs.Failure {
	if resp.StatusCode < 400 || resp.StatusCode > 599 { // its body may never end, as that of an upgrade
		return x.broken(leg, "an answer with status "+strconv.Itoa(resp.StatusCode), nil)
	}
	body, err := leg.ReadRefusal(resp.Body)
	if err != nil {
		return x.lost(err)
	}
	w := leg.Call.Worker
	e := &pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Status: resp.StatusCode,
		RetryAfter: resp.Header.Get("Retry-After"), Code: w.Role.String() + "_error",
	}
	if body == nil {
		e.Message = w.Role.String() + " worker " + string(w.ID) + " refused the request and did not say why"
		return x.judge(leg, e)
	}
	e.Body, e.ContentType, e.Header = x.hideAddresses(body), resp.Header.Get("Content-Type"), pd.Inbound(resp.Header)
	e.Message = message(e.Body)
	return x.judge(leg, e)
}

// lost is the failure of a call or an answer that broke off, for which nobody is
// blamed when somebody has asked for the request's end.
func (x *exchange) lost(err *pd.Error) *legs.Failure {
	f := legs.NewFailure(err)
	if x.req.Aborted() {
		f.Outcome, f.Other = pd.Left, pd.Left
	}
	return f
}

// frame is the failure that an engine wrote into an answer with status 200.
func (x *exchange) frame(leg *legs.Leg, f *Failure) *legs.Failure {
	w := leg.Call.Worker
	e := &pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Status: f.Status,
		Body: x.hideAddresses(f.Body), ContentType: "application/json",
		Code: w.Role.String() + "_error", Message: string(x.hideAddresses([]byte(f.Message))),
	}
	if f.Aborted {
		return aborted(w, e.Status)
	}
	return x.judge(leg, e)
}

// aborted is the failure of a request that somebody's abort has ended.
func aborted(w *pd.Worker, status int) *legs.Failure {
	role := w.Role.String()
	return legs.NewFailure(&pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Aborted, Status: status,
		Code: role + "_aborted", Message: "the request was aborted on " + role + " worker " + string(w.ID),
	})
}

// eventFailure is the failure that an engine wrote into an event. The other
// items of a batch go on.
func (x *exchange) eventFailure(leg *legs.Leg, f *Failure) *legs.Failure {
	fail := x.frame(leg, f)
	fail.Running = x.req.Items > 1
	return fail
}

// judge decides by status and words what an engine's refusal says of the
// workers.
func (x *exchange) judge(leg *legs.Leg, e *pd.Error) *legs.Failure {
	switch {
	case e.Status == http.StatusRequestTimeout, e.Status == http.StatusTooManyRequests, e.Status == http.StatusServiceUnavailable:
		e.Kind = pd.Overload
	case e.Status < 500:
		e.Kind = pd.Refused
	default:
		e.Kind = pd.Failed
	}
	if x.req.Aborted() {
		e.Kind = pd.Aborted // the words are those of a lost prefill
		return legs.NewFailure(e)
	}
	prefill := leg.Call.Worker.Role == pd.Prefill
	echo := Classify(e.Message)
	switch {
	case echo == DuplicateRid && e.Status == http.StatusBadRequest:
		e.Code = pd.CodeDuplicateRid
	case echo == EchoAborted && prefill:
		return aborted(leg.Call.Worker, http.StatusServiceUnavailable)
	case echo == EchoLostPrefill && !prefill:
		e.Kind, e.Avoid = pd.Lost, x.both()
		f := legs.NewFailure(e)
		f.Outcome, f.Other, f.Echo, f.Explicit = pd.Echo, pd.PairFault, true, true
		return f
	case echo == EchoLostDecode && prefill:
		e.Avoid = x.both()
		f := legs.NewFailure(e)
		f.Outcome, f.Other, f.Echo = pd.PairFault, pd.Echo, true
		return f
	case echo == EchoBootstrapTimeout && prefill:
		e.Kind = pd.Deadline // it has waited its 300 s: not a second time
		f := legs.NewFailure(e)
		f.Outcome, f.Other, f.Echo, f.Explicit = pd.Overloaded, pd.Echo, true, true
		return f
	}
	return legs.NewFailure(e)
}

// both names the pair, for a failure of which it is not known whose it is.
func (x *exchange) both() []pd.WorkerID {
	return []pd.WorkerID{x.pair.Prefill.Call.Worker.ID, x.pair.Decode.Call.Worker.ID}
}

func (x *exchange) broken(leg *legs.Leg, what string, err error) *legs.Failure {
	w := leg.Call.Worker
	return legs.NewFailure(&pd.Error{
		Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Broken, Status: http.StatusBadGateway,
		Code: w.Role.String() + "_bad_response", Message: w.Role.String() + " worker " + string(w.ID) + " sent " + what, Err: err,
	})
}

func (x *exchange) tooLarge(leg *legs.Leg) *legs.Failure {
	x.req.Bound("event")
	f := x.broken(leg, "more than can be held at once", nil)
	f.Running = true
	return f
}

// noPrompt is the failure of an answer for which prefill has nothing.
func (x *exchange) noPrompt(leg *legs.Leg) *legs.Failure {
	if err := leg.Context().Err(); err != nil {
		return legs.NewFailure(leg.ReadError(err))
	}
	f := x.broken(x.pair.Prefill, "no answer for a prompt that decode has answered", nil)
	f.Outcome, f.Other, f.Running = pd.Echo, pd.Fault, true
	return f
}

// hideAddresses replaces the addresses of the pair in an engine's words by the
// workers' ids.
func (x *exchange) hideAddresses(body []byte) []byte {
	p, d := x.pair.Prefill.Call.Worker, x.pair.Decode.Call.Worker
	for _, known := range []struct {
		addr string
		id   pd.WorkerID
	}{{p.Addr(), p.ID}, {d.Addr(), d.ID}, {bootstrapAddr(p), p.ID}} {
		if known.addr != "" {
			body = replaceAddr(body, known.addr, string(known.id))
		}
	}
	return body
}

// replaceAddr puts id in the place of addr, but not of an address that merely
// begins like it: host:899 and host:8998.
func replaceAddr(body []byte, addr, id string) []byte {
	var out []byte
	rest := body
	for {
		i := bytes.Index(rest, []byte(addr))
		if i < 0 {
			break
		}
		end := i + len(addr)
		out = append(out, rest[:i]...)
		if end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			out = append(out, addr...)
		} else {
			out = append(out, id...)
		}
		rest = rest[end:]
	}
	if out == nil {
		return body
	}
	return append(out, rest...)
}

func bootstrapAddr(w *pd.Worker) string {
	if w.BootstrapPort == 0 {
		return ""
	}
	return w.BootstrapHost + ":" + string(intMember("", w.BootstrapPort).Raw)
}

// message finds an engine's words in its error body: nested under "error", a
// string there, flat, or the text itself.
func message(body []byte) string {
	var flat struct {
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &flat) != nil {
		return strings.ToValidUTF8(string(body[:min(len(body), 512)]), "")
	}
	var nested struct {
		Message string `json:"message"`
	}
	var text string
	switch {
	case json.Unmarshal(flat.Error, &nested) == nil && nested.Message != "":
		return nested.Message
	case json.Unmarshal(flat.Error, &text) == nil && text != "":
		return text
	default:
		return flat.Message
	}
}
