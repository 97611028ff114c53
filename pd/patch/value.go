package patch

import (
	"bytes"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Value is one JSON value of a scanned text. It comes from a [Doc] or another Value, and its Raw is therefore valid.
type Value struct {
	Raw    []byte // a part of the scanned text, not a copy; without white space around it
	Offset int    // place of Raw in the outermost text, in bytes
}

// Kind is the type of the value: one of '"' '{' '[' 't' 'f' 'n', and '0' for any number.
func (v Value) Kind() byte {
	if len(v.Raw) == 0 {
		return 0
	}
	if c := v.Raw[0]; c != '-' && (c < '0' || c > '9') {
		return c
	}
	return '0'
}

// Bool returns the value of true or false; ok is false for anything else.
func (v Value) Bool() (value, ok bool) {
	kind := v.Kind()
	return kind == 't', kind == 't' || kind == 'f'
}

// Int returns the value of an integer that is spelled as one; ok is false for anything else: a fraction, an exponent,
// a string, an integer outside of int64.
func (v Value) Int() (value int64, ok bool) {
	const longest = len("-9223372036854775808") // saves a copy of a number of a million digits
	if v.Kind() != '0' || len(v.Raw) > longest {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.Raw), 10, 64)
	return n, err == nil
}

// Text returns the characters of a string, with each lone surrogate as U+FFFD; ok is false for anything else.
func (v Value) Text() (text string, ok bool) {
	if v.Kind() != '"' {
		return "", false
	}
	return unquote(v.Raw), true
}

// AppendText appends the characters of a string to dst, as Text has them; ok is false for anything else.
func (v Value) AppendText(dst []byte) (_ []byte, ok bool) {
	if v.Kind() != '"' {
		return dst, false
	}
	if bytes.IndexByte(v.Raw, '\\') < 0 {
		return append(dst, v.Raw[1:len(v.Raw)-1]...), true
	}
	dst, _ = jsontext.AppendUnquote(dst, v.Raw) // see unquote
	return dst, true
}

// unquote returns the characters of a valid JSON string.
func unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(bytes.Trim(quoted, `"`))
	}
	// On a valid string the only possible error is about a lone surrogate, which is replaced like in any JSON reader.
	text, _ := jsontext.AppendUnquote(nil, quoted)
	return string(text)
}

// Len is the number of elements of an array, and 0 for anything else.
func (v Value) Len() int {
	if v.Kind() != '[' {
		return 0
	}
	return countElements(v.Raw)
}

// First returns the first element of an array; ok is false for an empty array and for anything else.
func (v Value) First() (first Value, ok bool) {
	for _, element := range v.All() {
		return element, true
	}
	return Value{}, false
}

// All yields the elements of an array with their indexes, and nothing for anything else.
func (v Value) All() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != '[' {
			return
		}
		i, pos := 0, 1
		for {
			pos = skipSeparators(v.Raw, pos)
			end := skipValue(v.Raw, pos)
			if end == pos { // the closing bracket
				return
			}
			if !yield(i, Value{Raw: v.Raw[pos:end:end], Offset: v.Offset + pos}) {
				return
			}
			i, pos = i+1, end
		}
	}
}

// Object scans an object. The values of the result carry their place in the outermost text; an [Edit] of the result is
// one of this object's text alone. The error is a [*SyntaxError]: the value is no object, or has too many members.
func (v Value) Object() (*Doc, error) {
	if v.Kind() != '{' {
		return nil, &SyntaxError{v.Offset, "not a JSON object"}
	}
	return scan(v.Raw, v.Offset)
}
