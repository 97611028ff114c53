package legs

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// The times and bounds of an abort.
const (
	// closeAfter is how long a dropped leg's socket stays open for the engine
	// to hear of the abort first: some engines forget a request whose socket
	// has closed, without stopping it.
	closeAfter = 50 * time.Millisecond
	// overtakeWindow is how long after a body's last byte an abort may have
	// overtaken the request it is meant for; it is then repeated once.
	overtakeWindow = 500 * time.Millisecond
	abortLife      = 2 * time.Second
	ridsAtOnce     = 8

	defaultMaxAborts = 1024
)

// Aborter frees the engines of dropped legs. Transport must be set.
type Aborter struct {
	Transport http.RoundTripper
	// Max bounds the aborts under way, 1024 when 0. Beyond it a leg is closed
	// without an abort, and Bound hears "aborts".
	Max   int
	Bound func(name string)
	Group Group

	pending atomic.Int64
}

// Pending is the number of aborts under way.
func (a *Aborter) Pending() int { return int(a.pending.Load()) }

// Drop gives a leg up: the engine is told by an abort for each of its rids, and
// the socket closes when that is answered, or after 50 ms. A worker that was
// never reached, or knows no rid, is not told. It does not block. A leg that has
// ended already, or was dropped, is left alone.
func (a *Aborter) Drop(l *Leg, o pd.Outcome, cause *pd.Error) {
	if !l.drop(o, cause) {
		return
	}
	switch {
	case l.Call.Worker.CloseOnly || len(l.Rids) == 0:
		l.close(cause)
	case l.Call.Reached():
		a.start(l, cause, func() { a.run(l, cause) })
	default:
		// A connection may be found, and the call sent on it, before the closing
		// gets there.
		l.whenOver(func() {
			if l.Call.Reached() {
				a.start(l, cause, func() { a.tell(l) })
			}
		})
		l.close(cause)
	}
}

// start runs how in the background, within the bound; beyond it the leg is just
// closed.
func (a *Aborter) start(l *Leg, cause *pd.Error, how func()) {
	limit := int64(a.Max)
	if limit == 0 {
		limit = defaultMaxAborts
	}
	if a.pending.Add(1) > limit {
		a.pending.Add(-1)
		if a.Bound != nil {
			a.Bound("aborts")
		}
		l.close(cause)
		return
	}
	a.Group.Go(func() {
		defer a.pending.Add(-1)
		how()
	}, func() { l.close(cause) })
}

// tell tells the engine of a leg that is closed already, and again when it may
// not have had the call yet.
func (a *Aborter) tell(l *Leg) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), abortLife)
	defer cancel()
	a.post(ctx, l)
	a.repeat(ctx, l)
}

// repeat posts once more, after the time in which an abort may have overtaken its
// call.
func (a *Aborter) repeat(ctx context.Context, l *Leg) {
	later := time.NewTimer(overtakeWindow)
	defer later.Stop()
	select {
	case <-later.C:
		a.post(ctx, l)
	case <-ctx.Done():
	}
}

func (a *Aborter) run(l *Leg, cause *pd.Error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), abortLife)
	defer cancel()
	wrote := l.Call.WroteAt()
	early := wrote.IsZero() || time.Since(wrote) <= overtakeWindow
	force := time.AfterFunc(closeAfter, func() { l.close(cause) })
	a.post(ctx, l)
	answered := force.Stop() && l.over() // by the engine, not by the closed socket
	l.close(cause)
	// A batch is answered when one of its items ends: the aborts of the others may
	// still have come too early.
	if early && (!answered || len(l.Rids) > 1) {
		a.repeat(ctx, l)
	}
}

// post sends one abort for each rid that no other live request would feel.
// What the engine answers does not matter: the socket closes either way.
func (a *Aborter) post(ctx context.Context, l *Leg) {
	if len(l.Rids) == 1 {
		a.one(ctx, l, l.Rids[0])
		return
	}
	each := Group{Panic: a.Group.Panic}
	slots := make(chan struct{}, ridsAtOnce)
	for _, rid := range l.Rids {
		slots <- struct{}{}
		each.Go(func() {
			defer func() { <-slots }()
			a.one(ctx, l, rid)
		}, nil)
	}
	each.Wait()
}

func (a *Aborter) one(ctx context.Context, l *Leg, rid string) {
	if ctx.Err() != nil || !l.hold.MayAbort(rid) {
		return
	}
	_, _ = pd.SendAbort(ctx, a.Transport, l.Call.Worker, l.Call.Header, rid, false) // best effort, see post
}
