package single

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// body is the engine's answer on its way to the client. It owns the exchange:
// reading it to its end or closing it gives everything back.
type body struct {
	x       *exchange
	src     io.ReadCloser
	observe *sglang.Observer
	out     []byte // to be handed out before src is read again
	end     error  // what Read returns once out is empty

	ended atomic.Bool // the answer is over, so that closing drops nothing
	once  sync.Once   // of closing src
	idle  *legs.Idle  // nil for the answer of a plain call, which has a deadline as a whole
}

// newBody is an answer of which held has been read.
func newBody(x *exchange, src io.ReadCloser, held []byte, stream bool) *body {
	b := &body{x: x, src: src, observe: sglang.NewObserver(x.req, stream), out: held}
	b.see(held)
	if stream || x.req.Stream {
		b.idle = legs.WatchIdle(x.up.Deadlines.Idle, b.silent)
	}
	return b
}

// silent is called when the engine has said nothing for too long. One that has
// said that it is over owes nothing but the end of the connection.
func (b *body) silent(limit time.Duration) {
	if b.observe.Done() {
		_ = b.src.Close()
		return
	}
	b.x.expire(false, limit)
}

// Read hands out the engine's bytes as they come.
func (b *body) Read(p []byte) (int, error) {
	if b.end == nil {
		if err := b.x.failed(); err != nil {
			b.fail(err)
		}
	}
	if len(b.out) > 0 {
		n := copy(p, b.out)
		if b.out = b.out[n:]; len(b.out) == 0 {
			b.out = nil // a held 64 KiB must not live as long as the stream
		}
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	n, err := b.idle.Read(b.src, p)
	if failed := b.x.failed(); failed != nil {
		b.fail(failed) // what the engine still says is no answer any more
		return b.Read(p)
	}
	b.see(p[:n])
	if err != nil {
		b.finish(err)
		if n == 0 {
			return b.Read(p)
		}
	}
	return n, nil
}

// see looks at what the engine has sent: it is at work unless it says otherwise.
func (b *body) see(p []byte) {
	if b.observe.See(p) {
		b.x.leg.Progress()
	}
}

// finish ends the leg at the end of the answer. A stream that has said [DONE] is
// whole, however its connection ends; one that ends well but has said nothing of
// an end is not.
func (b *body) finish(err error) {
	var f *legs.Failure
	switch {
	case b.observe.Done():
	case err != io.EOF:
		f = b.x.leg.Lost(b.x.leg.ReadError(err))
	case b.observe.Cut():
		f = b.x.leg.Broken("a stream without an end", nil)
	}
	if f == nil {
		b.ended.Store(true)
		b.idle.Stop()
		b.once.Do(func() {
			_ = b.src.Close()
			b.x.leg.End(b.observe.Finish(), nil)
		})
		b.end = io.EOF
		return
	}
	if b.x.fails(f.Err) {
		b.once.Do(func() {
			_ = b.src.Close()
			b.x.leg.End(f.Outcome, f.Err)
		})
	}
	b.fail(b.x.failed())
}

// fail ends the answer with an error, behind what is on its way out.
func (b *body) fail(err *pd.Error) {
	b.release()
	b.out, b.end = b.observe.Break(b.out, err, errorEvent(b.x.req, err))
}

// Close gives everything back; it may be called while Read waits. An answer that
// was not read to its end is dropped on the engine.
func (b *body) Close() error {
	if !b.ended.Load() {
		b.x.drop(pd.ErrCancelled(pd.StageClient), pd.Left)
		b.release()
	}
	return nil
}

// release closes the answer of a dropped leg once the engine has been told.
func (b *body) release() {
	b.idle.Stop()
	b.once.Do(func() { b.x.leg.EndDropped(&b.x.d.Group, b.src, pd.Left) })
}
