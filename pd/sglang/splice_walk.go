package sglang

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// errNotJSON says that an engine's payload could not be read. It carries nothing
// of the payload, which may hold prompt text.
var errNotJSON = errors.New("sglang: engine answer is not valid JSON")

// span is a raw JSON value and where it starts in the payload. raw is nil when
// the value is absent.
type span struct {
	at  int
	raw []byte
}

func (s span) end() int { return s.at + len(s.raw) }

// isKind reports whether the value is there and starts with c: '[', '{' or '"'.
func (s span) isKind(c byte) bool { return len(s.raw) > 0 && s.raw[0] == c }

// walk reads one JSON payload from front to back in a single pass. Callers
// descend where they have business and leave the rest, which is read over as one
// raw value. Values alias the payload.
type walk struct {
	dec *jsontext.Decoder
}

func newWalk(payload []byte) walk {
	// Duplicate names and broken UTF-8 are no reason to refuse what an engine said.
	return walk{jsontext.NewDecoder(bytes.NewBuffer(payload),
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))}
}

// document runs read on the payload's one value and checks that nothing follows.
func (w walk) document(read func() error) error {
	if err := w.take(read); err != nil {
		return errNotJSON
	}
	if _, err := w.dec.ReadToken(); err != io.EOF {
		return errNotJSON
	}
	return nil
}

// kind is the kind of the next value.
func (w walk) kind() jsontext.Kind { return w.dec.PeekKind() }

// value reads the next value whole.
func (w walk) value() (span, error) {
	raw, err := w.dec.ReadValue()
	return span{int(w.dec.InputOffset()) - len(raw), raw}, err
}

// object calls member with the name of each member of the next value; member may
// read the member's value, or leave it to be read over. A next value that is no
// object is not read at all.
func (w walk) object(member func(name []byte) error) error {
	if w.kind() != '{' {
		return nil
	}
	return w.composite('}', func() error {
		name, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		if bytes.IndexByte(name, '\\') < 0 {
			name = name[1 : len(name)-1]
		} else if name, err = jsontext.AppendUnquote(nil, name); err != nil {
			name = nil // a lone surrogate: no name that anybody looks for
		}
		return w.take(func() error { return member(name) })
	})
}

// array calls element before each element, as object does.
func (w walk) array(element func(i int) error) error {
	if w.kind() != '[' {
		return nil
	}
	i := -1
	return w.composite(']', func() error {
		i++
		return w.take(func() error { return element(i) })
	})
}

func (w walk) composite(closing jsontext.Kind, next func() error) error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for w.kind() != closing {
		if err := next(); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

// take runs read, and reads over the next value when read left it alone.
func (w walk) take(read func() error) error {
	before := w.dec.InputOffset()
	if err := read(); err != nil {
		return err
	}
	if w.dec.InputOffset() != before {
		return nil
	}
	_, err := w.dec.ReadValue()
	return err
}

// unquote returns the text of a raw JSON string, and false for any other value.
func unquote(raw []byte) ([]byte, bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return nil, false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], true
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	// A lone surrogate becomes U+FFFD and an error; the rest of the text is good.
	return text, err == nil || len(text) > 0
}
