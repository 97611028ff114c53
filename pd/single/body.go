package single

import (
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
)

// body is the engine's answer on its way to the client. It owns the exchange:
// reading it to its end or closing it gives everything back.
type body struct {
	x       *exchange
	src     io.ReadCloser
	stream  bool
	observe *observer
	out     []byte // to be handed out before src is read again
	end     error  // what Read returns once out is empty

	ended   atomic.Bool // the answer is over, so that closing drops nothing
	once    sync.Once   // of closing src
	silence *silence    // nil for the answer of a plain call, which has a deadline as a whole
}

// newBody is an answer of which held has been read.
func newBody(x *exchange, src io.ReadCloser, held []byte, stream bool) *body {
	b := &body{x: x, src: src, stream: stream, observe: newObserver(x.req, stream), out: held}
	b.see(held)
	if stream || x.req.Stream {
		b.silence = newSilence(x.up.Deadlines.Idle, b.silent)
	}
	return b
}

// silent is called when the engine has said nothing for too long. One that has
// said that it is over owes nothing but the end of the connection.
func (b *body) silent(limit time.Duration) {
	if b.observe.done.Load() {
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
	n, err := b.silence.read(b.src, p)
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
	if len(p) == 0 {
		return
	}
	b.observe.see(p)
	if b.observe.outcome == pd.Success {
		b.x.leg.Progress()
	}
}

// finish ends the leg at the end of the answer. A stream that has said [DONE] is
// whole, however its connection ends; one that ends well but has said nothing of
// an end is not.
func (b *body) finish(err error) {
	var f *legs.Failure
	switch {
	case b.observe.done.Load():
	case err != io.EOF:
		f = b.x.lost(b.x.leg.ReadError(err))
	case b.observe.cut():
		f = b.x.broken("a stream without an end", nil)
	}
	if f == nil {
		b.ended.Store(true)
		b.silence.stop()
		b.once.Do(func() {
			_ = b.src.Close()
			b.x.leg.End(b.observe.finish(), nil)
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

// fail ends the answer with an error: an event of the endpoint's own kind in a
// stream, behind what is on its way out, and a broken end in any case. A stream
// that has said that it is over lacks nothing any more.
func (b *body) fail(err *pd.Error) {
	b.release()
	b.observe.report()
	if b.stream && b.observe.done.Load() {
		b.end = io.EOF
		return
	}
	if b.stream && err.Kind != pd.Cancelled {
		if !b.observe.boundary() {
			b.out = append(b.out, "\n\n"...)
		}
		b.out = append(b.out, errorEvent(b.x.req, err)...)
	}
	b.end = err
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
	b.silence.stop()
	b.once.Do(func() {
		leg := b.x.leg
		b.x.d.Group.Go(func() {
			<-leg.Context().Done() // the abort goes first
			_ = b.src.Close()
			leg.End(pd.Left, nil)
		}, nil)
	})
}

// silence is the deadline of each read of a stream. It keeps time only while the
// worker is being waited for: a client that reads slowly holds up nobody but
// itself. A nil one has no deadline.
type silence struct {
	limit  time.Duration
	over   func(limit time.Duration)
	timer  *time.Timer
	opened time.Time    // what since counts from: a clock that is set must cut no stream
	since  atomic.Int64 // nanoseconds from there to when a read began, 0 while none waits
	ended  atomic.Bool
}

func newSilence(limit time.Duration, over func(limit time.Duration)) *silence {
	s := &silence{limit: limit, over: over, opened: time.Now()}
	s.timer = time.AfterFunc(math.MaxInt64, s.check)
	s.timer.Reset(limit)
	return s
}

func (s *silence) check() {
	if s.ended.Load() {
		return
	}
	silent := time.Duration(0)
	if since := s.since.Load(); since != 0 {
		silent = time.Since(s.opened) - time.Duration(since)
	}
	if silent >= s.limit {
		s.over(s.limit)
		return
	}
	s.timer.Reset(s.limit - silent)
}

func (s *silence) read(src io.Reader, p []byte) (int, error) {
	if s == nil {
		return src.Read(p)
	}
	s.since.Store(max(1, int64(time.Since(s.opened))))
	defer s.since.Store(0)
	return src.Read(p)
}

func (s *silence) stop() {
	if s != nil {
		s.ended.Store(true)
		s.timer.Stop()
	}
}
