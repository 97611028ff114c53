package legs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// MaxErrorBody bounds what is read of an engine's error answer, in bytes.
const MaxErrorBody = 1 << 20

// refusalWait bounds the wait for the body of an error answer.
const refusalWait = time.Second

// Leg is one call to one worker and everything it holds: its socket's context,
// its place among the live rids, its line in the request's report. It ends
// exactly once, by End.
type Leg struct {
	Call *pd.Call
	Rids []string // that the engine knows its items by; none where nobody has named them

	req    *pd.Request
	ctx    context.Context
	cancel context.CancelCauseFunc
	lease  *pd.Lease
	trace  *pd.LegTrace
	hold   *pd.Hold
	onEnd  func(pd.Outcome)

	mu      sync.Mutex
	dropped bool
	ended   bool
	outcome pd.Outcome // of a dropped leg
	cause   *pd.Error  // of a dropped leg
	after   func()     // called when the leg has ended; may be nil
}

// NewLeg prepares a leg on the lease's worker. Its context lives on when ctx is
// cancelled: a client that leaves makes the leg be dropped, which tells the
// engine first. Without rids there is nothing to tell it by, and the socket just
// closes. The lease ends with the leg; onEnd then hears the outcome once.
func NewLeg(ctx context.Context, req *pd.Request, lease *pd.Lease, call *pd.Call, rooms []uint64, rids []string, onEnd func(pd.Outcome)) *Leg {
	l := &Leg{Call: call, Rids: rids, req: req, lease: lease, onEnd: onEnd}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.hold = req.Hold(call.Worker, rids)
	first := ""
	if len(rids) > 0 {
		first = rids[0]
	}
	l.trace = req.Leg(call.Worker, rooms, first)
	return l
}

// OnCancel has f called when ctx ends, with why: its cause where that is an
// *pd.Error, else that the client has left. stop is as of [context.AfterFunc].
func OnCancel(ctx context.Context, f func(why *pd.Error)) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		why := pd.ErrCancelled(pd.StageClient)
		if cause, ok := errors.AsType[*pd.Error](context.Cause(ctx)); ok {
			why = cause
		}
		f(why)
	})
}

// Send makes the call and returns the answer's head.
func (l *Leg) Send(up *pd.Upstream) (*http.Response, *pd.Error) {
	resp, err := up.Do(l.ctx, l.Call)
	if err != nil {
		return nil, pd.AsError(err)
	}
	l.trace.Headers(resp.StatusCode)
	return resp, nil
}

// Context is cancelled when the leg's socket is to close. Its cause is an
// *pd.Error when the leg was dropped.
func (l *Leg) Context() context.Context { return l.ctx }

// First notes the first event or byte.
func (l *Leg) First() { l.trace.First() }

// Progress notes a good event or answer: the worker does its work.
func (l *Leg) Progress() { l.lease.Progress() }

// ReadError says what a failed read of the answer means.
func (l *Leg) ReadError(err error) *pd.Error { return l.Call.ReadError(l.ctx, err) }

// ReadAll reads an answer of at most limit bytes.
func (l *Leg) ReadAll(r io.Reader, limit int) ([]byte, *pd.Error) {
	body, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, l.ReadError(err)
	}
	if len(body) > limit {
		w := l.Call.Worker
		return nil, &pd.Error{
			Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Broken, Status: http.StatusBadGateway,
			Code: w.Role.String() + "_bad_response", Message: "the answer of worker " + string(w.ID) + " is too large to be processed",
		}
	}
	return body, nil
}

// readRefusal reads the body of a refusal, which is in by its status alone: one
// that does not come within a second is done without, and nil. The other leg
// waits for this one to be read.
func (l *Leg) readRefusal(r io.Reader) ([]byte, *pd.Error) {
	late := pd.ErrDeadline(pd.StageOf(l.Call.Worker.Role), l.Call.Worker.ID, pd.WaitRefusal, refusalWait)
	timer := time.AfterFunc(refusalWait, func() { l.close(late) })
	defer timer.Stop()
	body, err := l.ReadAll(r, MaxErrorBody)
	if err == late {
		return nil, nil
	}
	return body, err
}

// End ends the leg: it was answered, or its connection is gone. A leg that was
// dropped ends with the outcome it was dropped with. Calls after the first do
// nothing.
func (l *Leg) End(o pd.Outcome, err *pd.Error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	if l.dropped {
		o, err = l.outcome, l.cause
	}
	after := l.after
	l.mu.Unlock()
	if after != nil {
		defer after()
	}
	l.cancel(nil) // nobody is left to ask for a cause
	l.hold.Release()
	defer l.onEnd(o) // also when a hook behind the lease or the report panics
	l.lease.End(o)
	l.trace.End(o, err)
}

// EndDropped ends a dropped leg with its answer under way: the answer is closed in
// group once the engine has been told.
func (l *Leg) EndDropped(group *Group, answer io.Closer, o pd.Outcome) {
	group.Go(func() {
		<-l.ctx.Done()
		_ = answer.Close()
		l.End(o, nil)
	}, nil)
}

// drop marks the leg as dropped; false when it is over already.
func (l *Leg) drop(o pd.Outcome, cause *pd.Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.dropped {
		return false
	}
	l.dropped, l.outcome, l.cause = true, o, cause
	return true
}

// whenOver has f called when the leg has ended, now if it has.
func (l *Leg) whenOver(f func()) {
	l.mu.Lock()
	if l.ended {
		defer f()
	} else {
		l.after = f
	}
	l.mu.Unlock()
}

// over reports whether the leg has ended.
func (l *Leg) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// close closes the leg's socket.
func (l *Leg) close(cause *pd.Error) { l.cancel(cause) }
