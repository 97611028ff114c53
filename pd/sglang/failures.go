package sglang

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
)

// refusal is the failure of an answer whose status is not 2xx.
func (x *exchange) refusal(leg *legs.Leg, resp *http.Response) *legs.Failure {
	e, fail := leg.Refusal(resp, x.hideAddresses)
	if fail != nil {
		return fail
	}
	if e.Body != nil {
		e.Message = message(e.Body)
	}
	return x.judge(leg, e)
}

// frame is the failure that an engine wrote into an answer with status 200.
func (x *exchange) frame(leg *legs.Leg, f *Failure) *legs.Failure {
	if f.Aborted {
		return aborted(leg.Call.Worker, f.Status)
	}
	e := leg.Refused(f.Status)
	e.Body, e.ContentType = x.hideAddresses(f.Body), "application/json"
	e.Message = string(x.hideAddresses([]byte(f.Message)))
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

// judge decides by the words of an engine's refusal what it says of the workers,
// where its status does not.
func (x *exchange) judge(leg *legs.Leg, e *pd.Error) *legs.Failure {
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

func (x *exchange) tooLarge(leg *legs.Leg) *legs.Failure {
	x.req.Bound("event")
	f := leg.Broken("more than can be held at once", nil)
	f.Running = true
	return f
}

// noPrompt is the failure of an answer for which prefill has nothing.
func (x *exchange) noPrompt(leg *legs.Leg) *legs.Failure {
	if err := leg.Context().Err(); err != nil {
		return legs.NewFailure(leg.ReadError(err))
	}
	f := x.pair.Prefill.Broken("no answer for a prompt that decode has answered", nil)
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
		body = legs.HideAddr(body, known.addr, known.id)
	}
	return body
}

// bootstrapAddr is empty where the worker has none.
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
