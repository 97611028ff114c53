package patch

import "io"

// Payload is the text of an edited object, as segments over the scanned text and the values written into it. It does
// not change, and is safe for concurrent use.
type Payload struct {
	segments [][]byte
	size     int64
}

// Raw is a payload of text as it is, JSON or not. It keeps text, which must not change any more.
func Raw(text []byte) *Payload {
	p := new(Payload)
	p.add(text)
	return p
}

func (p *Payload) add(segment []byte) {
	if len(segment) > 0 {
		p.segments = append(p.segments, segment)
		p.size += int64(len(segment))
	}
}

// Len is the length of the text in bytes.
func (p *Payload) Len() int64 { return p.size }

// Bytes returns a copy of the text in one piece, for small bodies and tests.
func (p *Payload) Bytes() []byte {
	b := make([]byte, 0, p.size)
	for _, segment := range p.segments {
		b = append(b, segment...)
	}
	return b
}

// NewReader returns a reader of the text from its start. There may be any number of them at a time.
func (p *Payload) NewReader() *Reader { return &Reader{rest: p.segments} }

// Reader reads the text of a [Payload] once. It is an [io.ReadCloser] and an [io.WriterTo], for one goroutine.
type Reader struct {
	rest [][]byte // the segments from the one being read on; shared with the payload
	pos  int      // how much of rest[0] has been read
}

// Read fills p across segments. Its only error is [io.EOF].
func (r *Reader) Read(p []byte) (n int, err error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	for len(r.rest) > 0 && n < len(p) {
		c := copy(p[n:], r.rest[0][r.pos:])
		n += c
		r.advance(c)
	}
	return n, nil
}

// WriteTo writes what is left, one segment at a time and without copying: some are short, so w should be buffered. Its
// only error is one of w.
func (r *Reader) WriteTo(w io.Writer) (n int64, err error) {
	for len(r.rest) > 0 {
		segment := r.rest[0][r.pos:]
		c, err := w.Write(segment)
		n += int64(c)
		r.advance(c)
		if err != nil {
			return n, err
		}
		if c < len(segment) {
			return n, io.ErrShortWrite
		}
	}
	return n, nil
}

// advance passes over n bytes of the present segment.
func (r *Reader) advance(n int) {
	if r.pos += n; r.pos == len(r.rest[0]) {
		r.rest, r.pos = r.rest[1:], 0
	}
}

// Close does nothing, and never fails: a reader holds nothing of its own. HTTP clients may call it at any time, even
// while a Read is going on.
func (r *Reader) Close() error { return nil }
