package legs

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/tandem-pd/tandem/pd/sse"
)

// firstSize is the buffer for the beginning of a plain answer, in bytes.
const firstSize = 512

// holdLimit is how much of a stream is held back while it shows no complete
// event, in bytes.
const holdLimit = 64 << 10

// Hold reads the start of a stream: up to its first complete event, whatever
// else came with it, or 64 KiB. event is nil when the stream ended or the limit
// was reached without one; io.EOF is returned with what was read when the
// stream ended. buf is scratch space to read into.
func Hold(r io.Reader, buf []byte) (held, event []byte, err error) {
	framer := sse.Framer{Max: holdLimit}
	for len(held) < holdLimit {
		n, err := r.Read(buf)
		if n > 0 {
			pushErr := framer.Push(buf[:n], func(e []byte) error {
				if event == nil && sse.Data(e) != nil { // a comment is no event
					event = bytes.Clone(e)
				}
				return nil
			})
			held = append(held, buf[:n]...)
			if event != nil {
				return held, event, nil
			}
			if errors.Is(pushErr, sse.ErrTooLong) {
				return held, nil, nil
			}
		}
		if err != nil {
			return held, event, err
		}
	}
	return held, nil, nil
}

// HoldPlain reads the first bytes of a plain answer: until they are in, another
// worker can still give it. err is io.EOF when the answer is over with them, and
// any other only where there are none.
func HoldPlain(r io.Reader) (held []byte, err error) {
	held = make([]byte, firstSize)
	n := 0
	for n == 0 && err == nil {
		n, err = r.Read(held)
	}
	if n > 0 && err != io.EOF {
		err = nil // the next read meets it again
	}
	return held[:n], err
}

// IsStream reports whether an answer is a stream of events.
func IsStream(resp *http.Response) bool {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}
