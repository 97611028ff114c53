package sglang

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sse"
)

// body is decode's answer on its way to the client. It owns the exchange:
// reading it to its end or closing it ends both legs.
type body struct {
	x       *exchange
	src     io.ReadCloser
	observe *Observer
	out     []byte      // to be handed out before src is read again
	queue   [][]byte    // whole events that wait to be spliced
	framer  *sse.Framer // nil when nothing is spliced
	buf     []byte      // of fill
	last    error       // how src ended, while events are still to be spliced
	end     error       // what Read returns once out is empty

	begun bool        // a byte has come
	ended atomic.Bool // decode's answer is over, so that closing drops nothing
	once  sync.Once   // of closing src
	idle  *legs.Idle  // nil for the answer of a plain call, which has a deadline as a whole
}

// newBody is a plain answer. To a call that asked for a stream it is one
// without a deadline, so its reads have theirs.
func newBody(x *exchange, src io.ReadCloser) *body {
	b := &body{x: x, src: src, observe: NewObserver(x.req, false)}
	if x.req.Stream {
		b.watchIdle()
	}
	return b
}

func newStreamBody(x *exchange, src io.ReadCloser, held []byte) *body {
	b := &body{x: x, src: src, observe: NewObserver(x.req, true)}
	b.observe.items = &x.items
	if x.prompts == nil {
		b.out = held
		b.see(held)
	} else {
		b.framer = &sse.Framer{Max: x.d.maxEvent()}
		b.take(held)
	}
	b.watchIdle()
	return b
}

// watchIdle starts the deadline of each read.
func (b *body) watchIdle() { b.idle = legs.WatchIdle(b.x.up.Deadlines.Idle, b.silent) }

// silent is called when decode has said nothing for too long. One that has said
// that it is over owes nothing but the end of the connection.
func (b *body) silent(limit time.Duration) {
	if b.observe.Done() {
		_ = b.src.Close()
		return
	}
	b.x.pair.Expire(b.x.pair.Decode, false, pd.WaitNextEvent, limit)
}

// Read hands out decode's bytes as they come, one read of decode at most.
func (b *body) Read(p []byte) (int, error) {
	if b.end == nil && b.x.pair.Failed() != nil {
		b.fail(b.x.pair.Failed())
	}
	for len(b.out) == 0 && b.end == nil {
		switch {
		case len(b.queue) > 0:
			b.spliceNext()
		case b.last != nil:
			b.finish(b.last)
		case b.framer == nil:
			return b.pass(p)
		default:
			b.fill()
		}
	}
	if len(b.out) > 0 {
		n := copy(p, b.out)
		if b.out = b.out[n:]; len(b.out) == 0 {
			b.out = nil // a held 64 KiB must not live as long as the stream
		}
		return n, nil
	}
	return 0, b.end
}

// pass reads decode straight into p.
func (b *body) pass(p []byte) (int, error) {
	n, err := b.idle.Read(b.src, p)
	if fail := b.x.pair.Failed(); fail != nil {
		b.fail(fail) // what decode still says is no answer any more
		return b.Read(p)
	}
	if n > 0 {
		if !b.begun {
			b.begun = true
			b.x.pair.Decode.First()
		}
		b.see(p[:n])
	}
	if err != nil {
		b.finish(err)
		if n == 0 {
			return b.Read(p)
		}
	}
	return n, nil
}

// see looks at what decode has sent: it is at work unless it has said otherwise.
func (b *body) see(p []byte) {
	if b.observe.See(p) {
		b.x.pair.Decode.Progress()
	}
}

// fill reads decode into the queue of events to be spliced.
func (b *body) fill() {
	if b.buf == nil {
		b.buf = make([]byte, readSize)
	}
	n, err := b.idle.Read(b.src, b.buf)
	if fail := b.x.pair.Failed(); fail != nil {
		b.fail(fail)
		return
	}
	if !b.take(b.buf[:n]) || err == nil {
		return
	}
	if rest := b.framer.Pending(); err == io.EOF && len(rest) > 0 {
		b.queue = append(b.queue, bytes.Clone(rest))
	}
	b.last = err
}

// take queues the events that data completes; false when one is too large.
func (b *body) take(data []byte) bool {
	err := b.framer.Push(data, func(event []byte) error {
		b.queue = append(b.queue, bytes.Clone(event))
		return nil
	})
	if err != nil {
		f := b.x.tooLarge(b.x.pair.Decode)
		b.x.pair.DecodeLost(f)
		b.fail(f.Err)
		return false
	}
	return true
}

// spliceNext puts prefill's data into the next event, and waits for it.
func (b *body) spliceNext() {
	event := b.queue[0]
	b.queue = b.queue[1:]
	b.see(event)
	leg := b.x.pair.Decode
	data := sse.Data(event)
	index := EventIndex(b.x.req.Endpoint, data)
	if needs := index >= 0 || bytes.Contains(data, []byte(`"sglext"`)); needs && !b.x.prompts.wait(leg.Context(), index) {
		if fail := b.x.pair.Failed(); fail != nil {
			b.fail(fail)
			return
		}
		f := b.x.noPrompt(leg)
		b.x.pair.DecodeLost(f)
		b.fail(f.Err)
		return
	}
	spliced, err := b.x.prompts.event(b.x.req.Endpoint, event)
	if err != nil {
		spliced = event // not JSON: decode's own business, passed as it came
	}
	b.out = spliced
}

// finish ends the legs at the end of decode's answer. A stream that has said
// [DONE] is whole, however its connection ends; one that ends well but has said
// nothing of an end is not.
func (b *body) finish(err error) {
	if err == io.EOF && b.observe.Cut() {
		f := b.x.pair.Decode.Broken("a stream without an end", nil)
		b.x.pair.DecodeLost(f)
		b.fail(f.Err)
		return
	}
	if err == io.EOF || b.observe.Done() {
		b.ended.Store(true)
		b.idle.Stop()
		b.once.Do(func() {
			_ = b.src.Close()
			b.x.pair.DecodeDone(b.observe.Finish())
		})
		b.end = io.EOF
		return
	}
	f := b.x.pair.Decode.Lost(b.x.pair.Decode.ReadError(err))
	b.x.pair.DecodeLost(f)
	b.fail(f.Err)
}

// fail ends the answer with an error, behind what is on its way out.
func (b *body) fail(err *pd.Error) {
	b.release()
	b.queue = nil
	b.out, b.end = b.observe.Break(b.out, err, err.Event(b.x.req.Endpoint))
}

// Close gives everything back; it may be called while Read waits. An answer that
// was not read to its end is dropped on both engines.
func (b *body) Close() error {
	if !b.ended.Load() {
		b.x.pair.Leave()
		b.release()
	}
	return nil
}

// release closes decode's answer once the leg has been told.
func (b *body) release() {
	b.idle.Stop()
	b.once.Do(func() { b.x.pair.Decode.EndDropped(&b.x.d.Group, b.src, pd.Echo) })
}
