// Package patch edits the top level of a client's JSON object without copying the object.
//
// It owns three steps: [Scan] reads the top level of a body once, an [Edit] records what has to change, and a [Payload]
// lays the result out as segments over the client's own bytes. Any number of readers may then send the same body, so
// that both legs, all samples and every retry of a request share one copy of it. The orchestrator and the engine
// dialects call it.
//
// It never changes, reformats or reorders a byte outside an edit, never judges a field's meaning, and never puts a
// word of a body into an error.
package patch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// maxMembers bounds the members of one scanned object, and with them the memory and the look-ups that a body of
// nothing but members could cost. Requests and answers have less than a hundred.
const maxMembers = 4096

// SyntaxError says why a text was refused. It is fit for a client's eyes: it names a place, and quotes nothing.
type SyntaxError struct {
	Offset int    // place in the outermost text, in bytes
	Reason string // a few words, from a fixed set
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset)
}

// Doc is the top level of one JSON object. It does not change once scanned, and is safe for concurrent use.
type Doc struct {
	src     []byte
	base    int // place of src in the outermost text
	open    int // place of '{' in src
	members []member
}

// member is the place in src of one member: its quoted name, and its value.
type member struct {
	name, nameEnd   int
	value, valueEnd int
	escaped         bool // the name is spelled with escapes
}

// Scan reads the top level of the one JSON object that src holds. It keeps src without changing or copying it, so the
// caller must not change it either. Every error is a [*SyntaxError].
//
// Accepted: white space around the object, duplicate names, escapes of lone surrogates, any valid number. Refused: what
// is no JSON (NaN, raw control bytes and data after the object included), invalid UTF-8, any other value than an object,
// nesting deeper than 10000, and more than 4096 members.
func Scan(src []byte) (*Doc, error) {
	if !utf8.Valid(src) {
		return nil, &SyntaxError{invalidUTF8(src), "invalid UTF-8"}
	}
	return scan(src, 0)
}

// scan reads the object in src, which is valid UTF-8 and lies at base in the outermost text.
func scan(src []byte, base int) (*Doc, error) {
	s := scanners.Get().(*scanner)
	d, err := s.scan(src)
	s.release()
	if err != nil {
		err.Offset += base
		return nil, err
	}
	d.base = base
	return d, nil
}

// invalidUTF8 returns the place of the first byte of b that is not UTF-8.
func invalidUTF8(b []byte) int {
	i := 0
	for i < len(b) {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		i += size
	}
	return i
}

// scanner holds what one scan needs and the next can use again.
type scanner struct {
	dec     *jsontext.Decoder
	options []jsontext.Options
	buf     bytes.Buffer
	members []member
}

// scanners is the one piece of shared state of this package. A decoder and its scratch space cost more to build than a
// scan of a small body takes, and nothing of a body stays in them.
var scanners = sync.Pool{New: func() any {
	return &scanner{
		dec:     new(jsontext.Decoder),
		options: []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)},
	}
}}

// release forgets the body, and gives the scanner to the next scan.
func (s *scanner) release() {
	const keep = 64 // members; more than that is rare, and not worth holding memory for
	s.buf = bytes.Buffer{}
	s.dec.Reset(&s.buf, s.options...)
	s.members = s.members[:0]
	if cap(s.members) > keep {
		s.members = nil
	}
	scanners.Put(s)
}

func (s *scanner) scan(src []byte) (*Doc, *SyntaxError) {
	s.buf = *bytes.NewBuffer(src) // the decoder reads in place from a bytes.Buffer
	s.dec.Reset(&s.buf, s.options...)
	brace, err := s.dec.ReadToken()
	if err != nil {
		return nil, syntaxError(src, err)
	}
	open := s.offset() - 1
	if brace.Kind() != '{' {
		return nil, &SyntaxError{leadingSpace(src), "not a JSON object"}
	}
	for s.dec.PeekKind() == '"' {
		if len(s.members) == maxMembers {
			return nil, &SyntaxError{s.offset(), "too many members"}
		}
		if err := s.scanMember(); err != nil {
			return nil, syntaxError(src, err)
		}
	}
	if _, err := s.dec.ReadToken(); err != nil { // anything but '}' is an error here
		return nil, syntaxError(src, err)
	}
	end := s.offset()
	if space := leadingSpace(src[end:]); end+space < len(src) {
		return nil, &SyntaxError{end + space, "data after the object"}
	}
	return &Doc{src: src, open: open, members: append([]member(nil), s.members...)}, nil
}

func (s *scanner) scanMember() error {
	name, err := s.dec.ReadValue()
	if err != nil {
		return err
	}
	m := member{nameEnd: s.offset(), escaped: bytes.IndexByte(name, '\\') >= 0}
	m.name = m.nameEnd - len(name)
	value, err := s.dec.ReadValue()
	if err != nil {
		return err
	}
	m.valueEnd = s.offset()
	m.value = m.valueEnd - len(value)
	s.members = append(s.members, m)
	return nil
}

// offset is the place after what was read last.
func (s *scanner) offset() int { return int(s.dec.InputOffset()) }

// leadingSpace is the number of bytes of white space that b starts with.
func leadingSpace(b []byte) int {
	return len(b) - len(bytes.TrimLeft(b, " \t\r\n"))
}

// syntaxError puts the decoder's error into words of our own: the decoder's quote the body and its member names.
func syntaxError(src []byte, err error) *SyntaxError {
	var syntactic *jsontext.SyntacticError
	if !errors.As(err, &syntactic) { // the decoder found nothing but white space
		return &SyntaxError{len(src), "no JSON object"}
	}
	at := min(int(syntactic.ByteOffset), len(src))
	return &SyntaxError{at, reason(src[at:], syntactic.Err)}
}

// reason names the kind of the decoder's error err, where rest is the text from its place on.
func reason(rest []byte, err error) string {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "unexpected end"
	case strings.Contains(err.Error(), "max depth"): // the decoder's error for it is not exported
		return "nested too deeply"
	case len(rest) > 0 && rest[0] < ' ':
		return "raw control character"
	case bytes.HasPrefix(rest, []byte("NaN")), bytes.HasPrefix(rest, []byte("Infinity")):
		return "NaN or Infinity"
	default:
		return "invalid JSON"
	}
}

// Bytes is the scanned text itself, not a copy: the object and the white space around it.
func (d *Doc) Bytes() []byte { return d.src }

// Get returns the value of the last member called name, in whatever spelling, as engines do when a name comes twice.
// A JSON null counts as absent.
func (d *Doc) Get(name string) (Value, bool) {
	for i := len(d.members) - 1; i >= 0; i-- {
		if d.named(i, name) {
			v := d.value(i)
			return v, v.Kind() != 'n'
		}
	}
	return Value{}, false
}

// named reports whether member i is called name.
func (d *Doc) named(i int, name string) bool {
	m := &d.members[i]
	quoted := d.src[m.name:m.nameEnd]
	if !m.escaped {
		return string(quoted[1:len(quoted)-1]) == name
	}
	const longest = len(`\u0000`) // spelling of one byte; a longer name need not be unescaped to be told apart
	if len(quoted) > longest*len(name)+2 {
		return false
	}
	return unquote(quoted) == name
}

// value is the value of member i.
func (d *Doc) value(i int) Value {
	m := &d.members[i]
	return Value{Raw: d.src[m.value:m.valueEnd:m.valueEnd], Offset: d.base + m.value}
}
