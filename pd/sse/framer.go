// Package sse cuts a server-sent event stream into its events and finds the
// payload inside one.
//
// It owns framing only: where an event ends, which bytes of it are data, and
// whether it is the closing [DONE]. The legs and the dialects call it on engine
// streams. It never parses payloads, never re-encodes an event and never drops
// or adds a byte: what goes in comes out, in events and in what is pending.
package sse

import (
	"bytes"
	"errors"
)

// DefaultMax bounds one unfinished event, in bytes, when Framer.Max is zero. It
// leaves room for the prompt logprobs of a very long prompt in one event.
const DefaultMax = 64 << 20

// ErrTooLong is returned by Push when an unfinished event exceeds the bound.
var ErrTooLong = errors.New("sse: event exceeds the size bound")

// Framer cuts a byte stream into events. The zero value is ready for the first
// byte of a stream. A Framer is not safe for concurrent use.
//
// An event ends with a blank line. Lines end in LF, CRLF or CR, mixed as they
// like, and a stream may be cut anywhere: the events are the same for every cut.
// Two consequences follow from a CR that can always be half of a CRLF:
//   - A blank line that is a CR after an LF or CRLF ends its event only when the
//     next byte shows whether an LF belongs to it.
//   - A blank line that is a CR after a bare CR ends its event at once, so that
//     streams with CR line ends are not read one event late. Should an LF follow,
//     it forms an event of its own, without data.
//
// Blank lines between events are events without data too.
type Framer struct {
	// Max bounds one unfinished event in bytes; 0 means DefaultMax.
	Max int

	buf   []byte // the unfinished event
	state state
}

// state is where in a line the stream stands. The zero value is the start of a
// stream, which equals the start of a line.
type state uint8

const (
	lineStart state = iota // the last line ended in LF or CRLF, or there is none
	inLine                 // the current line holds at least one byte
	afterCR                // the last line ended in CR; an LF would belong to it
	blankCR                // a blank line ended in CR; an LF would belong to it
)

// Push takes the next bytes of the stream and calls emit for each event they
// complete, in order and byte for byte, blank line included. The event aliases p
// or the Framer's buffer and is valid during emit only; an event that lies whole
// in p is not copied.
//
// An error of emit is returned at once and the rest of p is not read: the Framer
// is of no use afterwards. ErrTooLong means that the unfinished event exceeds Max;
// Pending then holds all of it, p included, and no more bytes are taken.
func (f *Framer) Push(p []byte, emit func(event []byte) error) error {
	if len(f.buf) > f.limit() {
		return ErrTooLong
	}
	start := 0 // of the unfinished event in p
	for i := 0; i < len(p); {
		if f.state == inLine {
			n := lineEnd(p[i:])
			if n < 0 {
				break
			}
			i += n
		}
		end := f.step(p, i)
		i++
		if end < 0 {
			continue
		}
		if len(f.buf) > 0 && len(f.buf)+end-start > f.limit() {
			break
		}
		if err := f.finish(p[start:end], emit); err != nil {
			return err
		}
		start, i = end, end
	}
	f.buf = append(f.buf, p[start:]...)
	if len(f.buf) > f.limit() {
		return ErrTooLong
	}
	return nil
}

// step moves the state over p[i]. It returns the end of the event in p when one
// ends before or with this byte, else -1.
func (f *Framer) step(p []byte, i int) int {
	c, was := p[i], f.state
	switch {
	case was == blankCR:
		f.state = lineStart
		if c == '\n' {
			return i + 1
		}
		return i
	case c == '\n' && was == lineStart, c == '\r' && was == afterCR:
		f.state = lineStart
		return i + 1
	case c == '\n':
		f.state = lineStart
	case c == '\r' && was == lineStart:
		f.state = blankCR
	case c == '\r':
		f.state = afterCR
	default:
		f.state = inLine
	}
	return -1
}

// finish emits the buffered bytes and tail as one event.
func (f *Framer) finish(tail []byte, emit func([]byte) error) error {
	if len(f.buf) == 0 {
		return emit(tail)
	}
	f.buf = append(f.buf, tail...)
	err := emit(f.buf)
	f.buf = f.buf[:0]
	return err
}

// Pending returns the bytes of the unfinished event, for a caller that has to
// pass them on. They are valid until the next Push.
func (f *Framer) Pending() []byte { return f.buf }

func (f *Framer) limit() int {
	if f.Max > 0 {
		return f.Max
	}
	return DefaultMax
}

// lineEnd returns the index of the first CR or LF in b, or -1. It looks for both
// in windows that double, because a search for one of them alone would run over
// the whole of b again and again when lines end in the other.
func lineEnd(b []byte) int {
	for from, size := 0, 512; from < len(b); from, size = from+size, size*2 {
		window := b[from:min(from+size, len(b))]
		lf := bytes.IndexByte(window, '\n')
		if lf >= 0 {
			window = window[:lf]
		}
		if cr := bytes.IndexByte(window, '\r'); cr >= 0 {
			return from + cr
		}
		if lf >= 0 {
			return from + lf
		}
	}
	return -1
}
