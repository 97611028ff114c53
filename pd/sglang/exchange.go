package sglang

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sse"
)

// readSize is the buffer for reading a leg's stream, in bytes.
const readSize = 16 << 10

// exchange is the two legs of one sample.
type exchange struct {
	d    *Dialect
	up   *pd.Upstream
	req  *pd.Request
	want splices
	rank int // that decode's answer must come from, -1 for any
	pair *legs.Pair

	prompts *prompts     // set when something is spliced
	answer  *pd.Response // set before the pair is ready
	items   items        // that decode's stream has shown an event of

	mu     sync.Mutex
	timers []*time.Timer
	over   bool
}

// arm starts the deadline of prefill's answer and of a whole plain call.
func (x *exchange) arm() {
	if x.want.any {
		x.prompts = newPrompts()
	}
	limit := x.up.Deadlines.Request
	x.after(limit, func() {
		x.pair.Expire(x.pair.Prefill, false, pd.WaitAnswer, limit)
		if !x.req.Stream {
			x.pair.Expire(x.pair.Decode, false, pd.WaitAnswer, limit)
		}
	})
}

// after runs f unless the exchange ends before.
func (x *exchange) after(d time.Duration, f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.timers = append(x.timers, time.AfterFunc(d, f))
	}
}

func (x *exchange) disarm() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	for _, t := range x.timers {
		t.Stop()
	}
}

func (x *exchange) prefillPanicked() {
	x.pair.PrefillFailed(legs.NewFailure(pd.AsError(errors.New("panic in prefill's leg"))))
	x.prompts.end()
}

func (x *exchange) decodePanicked() {
	x.pair.DecodeFailed(legs.NewFailure(pd.AsError(errors.New("panic in decode's leg"))))
}

// handedOver reports whether a prefill connection that breaks after the commit
// takes nothing from the client: every item has shown that decode has its KV
// cache, and nothing is left to be spliced.
func (x *exchange) handedOver() bool {
	if x.prompts != nil && !x.prompts.complete(x.req.Items, x.want.late) {
		return false
	}
	return !x.answer.Stream || x.items.all()
}

// runPrefill makes prefill's call and reads its answer to the end.
func (x *exchange) runPrefill() {
	leg := x.pair.Prefill
	resp, err := leg.Send(x.up)
	var fail *legs.Failure
	if err != nil {
		fail = leg.Lost(err)
	} else {
		defer resp.Body.Close()
		fail = x.readPrefill(resp)
	}
	// Decode's leg, which may wait for the prompts, hears the verdict first.
	defer x.prompts.end()
	if fail != nil {
		x.pair.PrefillFailed(fail)
		return
	}
	x.pair.PrefillDone()
	if limit := x.up.Deadlines.FirstEvent; x.req.Stream {
		x.after(limit, func() { x.pair.Expire(x.pair.Decode, true, pd.WaitFirstEvent, limit) })
	}
}

func (x *exchange) readPrefill(resp *http.Response) *legs.Failure {
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return x.refusal(x.pair.Prefill, resp)
	case legs.IsStream(resp):
		return x.readPrefillStream(resp.Body)
	default:
		return x.readPrefillBody(resp.Body)
	}
}

// readPrefillBody looks for an abort in a plain answer. A single prompt's that
// is not spliced is drained unread when it is large: an abort is a small one.
func (x *exchange) readPrefillBody(r io.Reader) *legs.Failure {
	leg := x.pair.Prefill
	limit := legs.MaxErrorBody
	if x.prompts != nil || x.req.Items > 1 {
		limit = x.d.maxEvent()
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(body) > limit && x.prompts == nil {
		_, err = io.Copy(io.Discard, r)
		body = nil
	}
	switch {
	case err != nil:
		return leg.Lost(leg.ReadError(err))
	case len(body) > limit:
		return x.tooLarge(leg)
	}
	leg.First()
	if f, ok := BodyFailure(body); ok {
		return x.frame(leg, f)
	}
	if x.prompts != nil {
		if err := x.prompts.setBody(x.req.Endpoint, body); err != nil {
			return leg.Broken("an answer that is not JSON", err)
		}
	}
	leg.Progress()
	return nil
}

// readPrefillStream looks for failures in prefill's events, which come with a
// status of 200, and keeps what is to be spliced.
func (x *exchange) readPrefillStream(r io.Reader) *legs.Failure {
	leg := x.pair.Prefill
	framer := sse.Framer{Max: x.d.maxEvent()}
	var fail *legs.Failure
	errStop := errors.New("stop")
	emit := func(event []byte) error {
		data := sse.Data(event)
		if data == nil || sse.IsDone(event) {
			return nil
		}
		leg.First()
		if f, ok := EventFailure(data); ok {
			fail = x.eventFailure(leg, f)
			return errStop
		}
		if x.prompts != nil {
			if err := x.prompts.addEvent(x.req.Endpoint, data); err != nil {
				fail = leg.Broken("an event that is not JSON", err)
				fail.Running = true
				return errStop
			}
		}
		leg.Progress()
		return nil
	}
	buf := make([]byte, readSize)
	for {
		n, err := r.Read(buf)
		pushErr := framer.Push(buf[:n], emit)
		if pushErr == nil && err == io.EOF {
			pushErr = emit(framer.Pending()) // a last event may lack its blank line
		}
		if pushErr != nil {
			if fail == nil {
				fail = x.tooLarge(leg)
			}
			return fail
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return leg.Lost(leg.ReadError(err))
		}
	}
}

// runDecode makes decode's call and opens its answer: it returns when the pair
// has committed, and the answer's body owns the leg, or has failed.
func (x *exchange) runDecode() {
	leg := x.pair.Decode
	resp, err := leg.Send(x.up)
	if err != nil {
		x.pair.DecodeFailed(leg.Lost(err))
		return
	}
	var fail *legs.Failure
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		fail = x.refusal(leg, resp)
	case legs.IsStream(resp):
		fail = x.openStream(resp)
	case x.prompts != nil || x.checksRank():
		fail = x.openWhole(resp)
	default:
		fail = x.openPlain(resp)
	}
	if fail != nil {
		x.pair.DecodeFailed(fail)
		_ = resp.Body.Close()
		return
	}
	if !x.pair.Ready() {
		_ = x.answer.Body.Close()
	}
}

// openStream holds a stream back until its first event is in and is no error.
func (x *exchange) openStream(resp *http.Response) *legs.Failure {
	leg := x.pair.Decode
	held, event, err := legs.Hold(resp.Body, make([]byte, readSize))
	if err != nil && (err != io.EOF || event == nil) {
		return leg.Lost(leg.ReadError(err))
	}
	leg.First()
	data := sse.Data(event)
	if f, ok := EventFailure(data); ok && !f.Aborted {
		return x.eventFailure(leg, f)
	}
	if x.prompts != nil {
		if i := EventIndex(x.req.Endpoint, data); i >= 0 && !x.prompts.wait(leg.Context(), i) {
			return x.noPrompt(leg)
		}
	}
	x.answer = &pd.Response{
		Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: -1, Stream: true,
		Body: newStreamBody(x, resp.Body, held),
	}
	return nil
}

// openPlain holds a plain answer back until its first bytes are in.
func (x *exchange) openPlain(resp *http.Response) *legs.Failure {
	leg := x.pair.Decode
	held, err := legs.HoldPlain(resp.Body)
	switch {
	case err != nil && err != io.EOF:
		return leg.Lost(leg.ReadError(err))
	case len(held) == 0 && resp.StatusCode == http.StatusOK:
		return leg.Broken("an empty answer", nil)
	}
	leg.First()
	leg.Progress()
	body := newBody(x, resp.Body)
	body.out = held
	body.observe.See(held)
	x.answer = &pd.Response{
		Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: resp.ContentLength, Body: body,
	}
	return nil
}

// openWhole reads a plain answer whole, looks at its rank and puts prefill's data
// in.
func (x *exchange) openWhole(resp *http.Response) *legs.Failure {
	leg := x.pair.Decode
	limit := x.d.maxEvent()
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	switch {
	case err != nil:
		return leg.Lost(leg.ReadError(err))
	case len(body) > limit:
		return x.tooLarge(leg)
	}
	leg.First()
	if x.checksRank() {
		if fail := x.wrongRank(body); fail != nil {
			return fail
		}
	}
	if x.prompts != nil {
		if !x.prompts.wait(leg.Context(), -1) {
			return x.noPrompt(leg)
		}
		var spliceErr error
		if body, spliceErr = x.prompts.body(x.req.Endpoint, body); spliceErr != nil {
			return leg.Broken("an answer that is not JSON", spliceErr)
		}
	}
	_ = resp.Body.Close()
	x.answer = &pd.Response{
		Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: int64(len(body)),
		Body: newBody(x, io.NopCloser(bytes.NewReader(body))),
	}
	return nil
}
