package simengine

import (
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// out writes the answer of one call and applies the faults that concern bytes.
// The items of a batch share it.
type out struct {
	c *call
	w http.ResponseWriter

	mu      sync.Mutex
	started bool
	over    bool   // nothing more is written
	aborted bool   // the handler must leave the body unfinished
	wrote   bool   // the head
	held    []byte // events kept back by Fault.Merge
	heldN   int
}

// unfinished reports whether the answer must look cut. One of which nothing was
// written would be an empty 200 else.
func (o *out) unfinished() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.aborted || !o.wrote
}

// head sends the status line and headers, once.
func (o *out) headLocked(status int, contentType string, length int) bool {
	if o.started || o.over {
		return !o.over
	}
	o.started = true
	if d := o.c.fault.HeadDelay; d > 0 && !sleep(o.c.r.Context(), d) {
		o.over = true
		return false
	}
	if !o.c.l.pass() {
		o.over = true
		return false
	}
	h := o.w.Header()
	h.Set("Content-Type", contentType)
	if length >= 0 {
		h.Set("Content-Length", strconv.Itoa(length))
	}
	o.w.WriteHeader(status)
	o.wrote = true
	o.c.rec.update(func(r *Record) { r.FirstByte, r.Status = time.Now(), status })
	return true
}

// plain sends a whole answer.
func (o *out) plain(status int, contentType string, body []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.headLocked(status, contentType, len(body)) {
		o.w.Write(body)
		o.flush()
		o.over = true
	}
}

func (o *out) json(status int, body []byte) { o.plain(status, "application/json", body) }

// stream sends the head of a stream.
func (o *out) stream() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.started && o.headLocked(http.StatusOK, "text/event-stream; charset=utf-8", -1) {
		o.flush()
	}
}

// event sends one event, with the head if it is the first.
func (o *out) event(data []byte) { o.named("", data) }

// named is event with the name of the event, if it is to have one.
func (o *out) named(name string, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.headLocked(http.StatusOK, "text/event-stream; charset=utf-8", -1) {
		return
	}
	if !o.c.l.pass() {
		o.over = true
		return
	}
	f := o.c.fault
	n := 0
	o.c.rec.update(func(r *Record) { r.Events++; n = r.Events })
	if n == f.ErrorAt {
		data = []byte(f.ErrorEvent)
	}
	block := frame(pad(data, f.Pad))
	if name != "" && n != f.ErrorAt {
		block = append([]byte("event: "+name+"\n"), block...)
	}
	o.writeLocked(block)
	switch n {
	case f.ErrorAt:
		o.writeLocked(frame([]byte("[DONE]")))
		o.releaseLocked()
		o.over = true
	case f.ResetAfter:
		o.releaseLocked()
		time.Sleep(resetGrace)
		o.resetLocked()
	case f.CutAfter:
		o.releaseLocked()
		o.over, o.aborted = true, true
	case f.TruncateAfter:
		o.releaseLocked()
		o.over = true
	}
}

// resetGrace lets the peer read what a reset would otherwise overtake.
const resetGrace = 20 * time.Millisecond

func frame(data []byte) []byte {
	b := make([]byte, 0, len(data)+8)
	b = append(b, "data: "...)
	b = append(b, data...)
	return append(b, "\n\n"...)
}

// done ends a stream well.
func (o *out) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.headLocked(http.StatusOK, "text/event-stream; charset=utf-8", -1) {
		o.writeLocked(frame([]byte("[DONE]")))
		o.releaseLocked()
		o.over = true
	}
}

// finish ends a stream that has no [DONE].
func (o *out) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked()
	o.over = true
}

// cut closes the connection within the body.
func (o *out) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over, o.aborted = true, true
}

// reset resets the connection.
func (o *out) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.resetLocked()
}

func (o *out) resetLocked() {
	o.over, o.aborted = true, true
	if c, ok := o.c.r.Context().Value(connKey{}).(net.Conn); ok {
		resetConn(c)
	}
}

// writeLocked sends one frame: alone, held back for the next, or in pieces.
func (o *out) writeLocked(b []byte) {
	f := o.c.fault
	switch {
	case f.Merge > 1:
		o.held = append(o.held, b...)
		if o.heldN++; o.heldN >= f.Merge {
			o.releaseLocked()
		}
	case f.Split > 0:
		for len(b) > 0 {
			n := min(f.Split, len(b))
			o.w.Write(b[:n])
			o.flush()
			time.Sleep(time.Millisecond)
			b = b[n:]
		}
	default:
		o.w.Write(b)
		o.flush()
	}
}

func (o *out) releaseLocked() {
	if len(o.held) > 0 {
		o.w.Write(o.held)
		o.flush()
	}
	o.held, o.heldN = nil, 0
}

func (o *out) flush() {
	if f, ok := o.w.(http.Flusher); ok {
		f.Flush()
	}
}
