package single

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

// holdSize is the buffer for the beginning of a stream, in bytes.
const holdSize = 16 << 10

// exchange is the one leg of a request and what may end it: the client, a
// deadline, or what the engine does. The first of them counts.
type exchange struct {
	d     *Dialect
	up    *pd.Upstream
	req   *pd.Request
	leg   *legs.Leg
	stop  func() bool // unhooks the client's context
	limit *time.Timer // of a plain call as a whole, of a stream up to its commit

	mu        sync.Mutex
	streaming bool      // it has committed as a stream
	failure   *pd.Error // what ended it, nil while nothing has
}

// run makes the call and returns at its commit, or when all is given back.
func (x *exchange) run() (*pd.Response, *pd.Error) {
	resp, err := x.leg.Send(x.up)
	if err != nil {
		return nil, x.end(nil, x.leg.Lost(err))
	}
	answer, fail := x.open(resp)
	if fail != nil {
		return nil, x.end(resp.Body, fail)
	}
	if err := x.commit(answer.Stream || x.req.Stream); err != nil {
		_ = answer.Body.Close()
		return nil, err
	}
	return answer, nil
}

// end gives everything back before the commit, and returns the failure that
// counts.
func (x *exchange) end(src io.Closer, f *legs.Failure) *pd.Error {
	first := x.fails(f.Err)
	if first && f.Running {
		x.d.Aborts.Drop(x.leg, f.Outcome, f.Err)
	}
	if !first || f.Running {
		<-x.leg.Context().Done() // the abort goes first
	}
	if src != nil {
		_ = src.Close()
	}
	x.leg.End(f.Outcome, f.Err)
	return x.failed()
}

// commit reports nil when the answer may go to the client, else what was faster.
func (x *exchange) commit(streaming bool) *pd.Error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure == nil && streaming {
		x.streaming = true
		x.limit.Stop()
	}
	return x.failure
}

// fails makes err what ended the exchange; false when something else was.
func (x *exchange) fails(err *pd.Error) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failure != nil {
		return false
	}
	x.failure = err
	return true
}

// failed is what ended the exchange, nil while nothing has.
func (x *exchange) failed() *pd.Error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failure
}

// drop ends the exchange from outside of it: whoever reads the answer closes it
// when the engine has been told.
func (x *exchange) drop(err *pd.Error, o pd.Outcome) {
	if x.fails(err) {
		x.d.Aborts.Drop(x.leg, o, err)
	}
}

// expire ends the exchange because a deadline has passed; with whole, that of the
// limit, which a stream that has committed has left behind.
func (x *exchange) expire(whole bool, after time.Duration) {
	w, wait := x.leg.Call.Worker, pd.WaitNextEvent
	switch {
	case whole && x.req.Stream:
		wait = pd.WaitFirstEvent
	case whole:
		wait = pd.WaitAnswer
	}
	f := legs.NewFailure(pd.ErrDeadline(pd.StageOf(w.Role), w.ID, wait, after))
	x.mu.Lock()
	if x.failure != nil || whole && x.streaming {
		x.mu.Unlock()
		return
	}
	x.failure = f.Err
	x.mu.Unlock()
	x.d.Aborts.Drop(x.leg, f.Outcome, f.Err)
}

// open holds the answer back until it shows that it is one.
func (x *exchange) open(resp *http.Response) (*pd.Response, *legs.Failure) {
	answer := &pd.Response{Status: resp.StatusCode, Header: pd.Inbound(resp.Header), Length: resp.ContentLength}
	var fail *legs.Failure
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, x.refusal(resp)
	case legs.IsStream(resp):
		answer.Length, answer.Stream = -1, true
		answer.Body, fail = x.openStream(resp.Body)
	default:
		answer.Body, fail = x.openPlain(resp.Body)
	}
	if fail != nil {
		return nil, fail
	}
	return answer, nil
}

// openStream waits for the first event, which must be no error.
func (x *exchange) openStream(src io.ReadCloser) (*body, *legs.Failure) {
	held, event, err := legs.Hold(src, make([]byte, holdSize))
	if err != nil && (err != io.EOF || event == nil) {
		return nil, x.leg.Lost(x.leg.ReadError(err))
	}
	x.leg.First()
	if f, ok := sglang.EventFailure(sse.Data(event)); ok && !f.Aborted {
		return nil, x.frame(f)
	}
	return newBody(x, src, held, true), nil
}

// openPlain waits for the first bytes. An empty answer is over with that.
func (x *exchange) openPlain(src io.ReadCloser) (*body, *legs.Failure) {
	held, err := legs.HoldPlain(src)
	if err != nil && err != io.EOF {
		return nil, x.leg.Lost(x.leg.ReadError(err))
	}
	x.leg.First()
	b := newBody(x, src, held, false)
	if err == io.EOF {
		b.finish(io.EOF)
	}
	return b, nil
}
