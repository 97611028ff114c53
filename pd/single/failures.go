package single

import (
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// refusal is the failure of an answer whose status is not 2xx.
func (x *exchange) refusal(resp *http.Response) *legs.Failure {
	e, fail := x.leg.Refusal(resp, x.hideAddress)
	if fail != nil {
		return fail
	}
	if f, ok := sglang.BodyFailure(e.Body); ok {
		return x.judge(e, f.Message)
	}
	return x.judge(e, "")
}

// frame is the failure that the engine wrote into the first event of a stream.
// The other items of a batch go on.
func (x *exchange) frame(f *sglang.Failure) *legs.Failure {
	e := x.leg.Refused(f.Status)
	e.Body, e.ContentType = x.hideAddress(f.Body), "application/json"
	fail := x.judge(e, f.Message)
	fail.Running = x.req.Items > 1
	return fail
}

// judge decides by the words of a refusal what it says of the worker, where its
// status does not.
func (x *exchange) judge(e *pd.Error, words string) *legs.Failure {
	if x.req.Aborted() {
		e.Kind = pd.Aborted
	}
	if e.Status == http.StatusBadRequest && sglang.Classify(words) == sglang.DuplicateRid {
		e.Code = pd.CodeDuplicateRid
	}
	return legs.NewFailure(e)
}

// hideAddress puts the worker's id in the place of its address in the engine's
// words.
func (x *exchange) hideAddress(words []byte) []byte {
	w := x.leg.Call.Worker
	return legs.HideAddr(words, w.Addr(), w.ID)
}

// errorEvent is the event that ends a stream which cannot go on, as clients of its
// API expect it.
func errorEvent(req *pd.Request, e *pd.Error) []byte {
	if req.Endpoint == pd.Other && strings.HasPrefix(req.Target, "/v1/messages") {
		return slices.Concat([]byte("event: error\ndata: "), e.AnthropicJSON(), []byte("\n\n"))
	}
	return e.Event(req.Endpoint)
}
