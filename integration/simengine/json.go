package simengine

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// jsonBuilder writes one JSON text, keys in the order they are given: engines
// have a fixed order, and optional keys in the middle of it.
type jsonBuilder struct {
	b []byte
}

func (j *jsonBuilder) sep() {
	if n := len(j.b); n > 0 && j.b[n-1] != '{' && j.b[n-1] != '[' && j.b[n-1] != ':' {
		j.b = append(j.b, ',')
	}
}

func (j *jsonBuilder) open(c byte)  { j.sep(); j.b = append(j.b, c) }
func (j *jsonBuilder) close(c byte) { j.b = append(j.b, c) }

func (j *jsonBuilder) key(k string) {
	j.sep()
	j.b = append(j.b, '"')
	j.b = append(j.b, k...)
	j.b = append(j.b, '"', ':')
}

func (j *jsonBuilder) raw(s string)  { j.sep(); j.b = append(j.b, s...) }
func (j *jsonBuilder) tail(s string) { j.b = append(j.b, s...) }
func (j *jsonBuilder) null()         { j.raw("null") }
func (j *jsonBuilder) int(n int64)   { j.sep(); j.b = strconv.AppendInt(j.b, n, 10) }
func (j *jsonBuilder) str(s string)  { j.sep(); j.b = appendString(j.b, s) }

// float always has a fraction, as Python's floats do.
func (j *jsonBuilder) float(f float64) {
	j.sep()
	start := len(j.b)
	j.b = strconv.AppendFloat(j.b, f, 'f', -1, 64)
	if bytes.IndexByte(j.b[start:], '.') < 0 {
		j.b = append(j.b, ".0"...)
	}
}

func (j *jsonBuilder) ints(ns []int) {
	j.open('[')
	for _, n := range ns {
		j.int(int64(n))
	}
	j.close(']')
}

// The rest write a key and its value.

func (j *jsonBuilder) kstr(k, s string)           { j.key(k); j.str(s) }
func (j *jsonBuilder) kint(k string, n int64)     { j.key(k); j.int(n) }
func (j *jsonBuilder) kfloat(k string, f float64) { j.key(k); j.float(f) }
func (j *jsonBuilder) kraw(k, s string)           { j.key(k); j.raw(s) }

// appendString appends s as a JSON string; most need no escapes.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			return appendEscaped(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendEscaped(b []byte, s string) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return append(b, `""`...)
	}
	return append(b, bytes.TrimRight(out.Bytes(), "\n")...)
}

// mustJSON is v as JSON; v is one of this package's own types, which cannot fail.
func mustJSON(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}
