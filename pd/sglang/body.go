package sglang

import (
	"bytes"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sse"
)

// body is decode's answer on its way to the client. It owns the exchange:
// reading it to its end or closing it ends both legs.
type body struct {
	x       *exchange
	src     io.ReadCloser
	stream  bool
	observe *observer
	out     []byte      // to be handed out before src is read again
	queue   [][]byte    // whole events that wait to be spliced
	framer  *sse.Framer // nil when nothing is spliced
	buf     []byte      // of fill
	last    error       // how src ended, while events are still to be spliced
	end     error       // what Read returns once out is empty

	begun   bool         // a byte has come
	ended   atomic.Bool  // decode's answer is over, so that closing drops nothing
	unwatch atomic.Bool  // the idle deadline is over
	opened  time.Time    // what waiting counts from: a clock that is set must cut no stream
	waiting atomic.Int64 // nanoseconds from there to when src began to be read, 0 while it is not
	idle    *time.Timer  // nil for the answer of a plain call, which has a deadline as a whole
	once    sync.Once
}

// newBody is a plain answer. To a call that asked for a stream it is one
// without a deadline, so its reads have theirs.
func newBody(x *exchange, src io.ReadCloser) *body {
	b := &body{x: x, src: src, observe: newObserver(x, false), opened: time.Now()}
	if x.req.Stream {
		b.watchIdle()
	}
	return b
}

func newStreamBody(x *exchange, src io.ReadCloser, held []byte) *body {
	b := &body{x: x, src: src, stream: true, observe: newObserver(x, true), opened: time.Now()}
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
func (b *body) watchIdle() {
	b.idle = time.AfterFunc(math.MaxInt64, b.checkIdle)
	b.idle.Reset(b.x.up.Deadlines.Idle)
}

// checkIdle ends a stream whose worker has been silent for too long. It keeps
// time only while the worker is being waited for: a client that reads slowly
// holds up nobody but itself.
func (b *body) checkIdle() {
	if b.unwatch.Load() {
		return
	}
	limit := b.x.up.Deadlines.Idle
	silent := time.Duration(0)
	if since := b.waiting.Load(); since != 0 {
		silent = time.Since(b.opened) - time.Duration(since)
	}
	if silent >= limit && b.observe.done.Load() {
		_ = b.src.Close() // nothing is missing but the end of the connection
		return
	}
	if silent >= limit {
		b.x.pair.Expire(b.x.pair.Decode, false, pd.WaitNextEvent, limit)
		return
	}
	b.idle.Reset(limit - min(silent, limit-1))
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
	n, err := b.read(p)
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
	b.observe.see(p)
	if b.observe.outcome == pd.Success {
		b.x.pair.Decode.Progress()
	}
}

func (b *body) read(p []byte) (int, error) {
	b.waiting.Store(max(1, int64(time.Since(b.opened))))
	n, err := b.src.Read(p)
	b.waiting.Store(0)
	return n, err
}

// fill reads decode into the queue of events to be spliced.
func (b *body) fill() {
	if b.buf == nil {
		b.buf = make([]byte, readSize)
	}
	n, err := b.read(b.buf)
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
	if err == io.EOF && b.observe.cut() {
		f := b.x.broken(b.x.pair.Decode, "a stream without an end", nil)
		b.x.pair.DecodeLost(f)
		b.fail(f.Err)
		return
	}
	if err == io.EOF || b.observe.done.Load() {
		b.ended.Store(true)
		b.stopIdle()
		b.once.Do(func() {
			_ = b.src.Close()
			b.x.pair.DecodeDone(b.observe.finish())
		})
		b.endWith(io.EOF)
		return
	}
	f := b.x.lost(b.x.pair.Decode.ReadError(err))
	b.x.pair.DecodeLost(f)
	b.fail(f.Err)
}

// fail ends the answer with an error: an event of the endpoint's own kind in a
// stream, behind what is on its way out, and a broken end in any case. A stream
// that has said that it is over lacks nothing any more.
func (b *body) fail(err *pd.Error) {
	b.release()
	b.queue = nil
	if b.stream && b.observe.done.Load() {
		b.observe.report()
		b.endWith(io.EOF)
		return
	}
	if b.end == nil {
		b.observe.report()
	}
	if b.stream && err.Kind != pd.Cancelled {
		if !b.observe.boundary() {
			b.out = append(b.out, "\n\n"...)
		}
		b.out = append(b.out, err.Event(b.x.req.Endpoint)...)
	}
	b.endWith(err)
}

func (b *body) endWith(err error) {
	if b.end == nil {
		b.end = err
	}
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

func (b *body) stopIdle() {
	b.unwatch.Store(true)
	if b.idle != nil {
		b.idle.Stop()
	}
}

// release closes decode's answer once the leg has been told.
func (b *body) release() {
	b.stopIdle()
	b.once.Do(func() {
		leg := b.x.pair.Decode
		b.x.d.Group.Go(func() {
			<-leg.Context().Done() // the abort goes first
			_ = b.src.Close()
			leg.End(pd.Echo, nil)
		}, nil)
	})
}
