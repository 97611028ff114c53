package sglang

import (
	"bytes"
	"encoding/base64"
	"slices"
)

// edits collects what changes in src, and copies everything else. Positions in
// the payload start at base.
type edits struct {
	src  []byte
	base int
	list []edit
	grow int
}

type edit struct {
	at, end int // of src
	text    []byte
}

func (e *edits) replace(at, end int, text []byte) {
	e.list = append(e.list, edit{e.base + at, e.base + end, text})
	e.grow += len(text) - (end - at)
}

// apply returns src with the edits made, in one allocation; src itself when there
// are none.
func (e *edits) apply() []byte {
	if len(e.list) == 0 {
		return e.src
	}
	// Members come in the order the engine writes them. Edits at one place keep
	// the order they were made in.
	slices.SortStableFunc(e.list, func(a, b edit) int { return a.at - b.at })
	out := make([]byte, 0, len(e.src)+e.grow)
	from := 0
	for _, ed := range e.list {
		out = append(out, e.src[from:ed.at]...)
		out = append(out, ed.text...)
		from = ed.end
	}
	return append(out, e.src[from:]...)
}

// prepend puts raw entries to the front of a raw array.
func (e *edits) prepend(array span, entries []byte) {
	e.replace(array.at+1, array.at+1, entries)
	if !isEmpty(array.raw) {
		e.replace(array.at+1, array.at+1, []byte(","))
	}
}

func (e *edits) generate(item *generateItem, prompt promptItem) {
	for i, list := range item.inputs {
		if prompt.inputs[i] != nil && list.raw != nil {
			e.replace(list.at, list.end(), prompt.inputs[i])
		}
	}
	if prompt.firstID != nil {
		if at, end, ok := leadingNull(item.outputIDs); ok {
			e.replace(at, end, prompt.firstID)
		}
	}
	e.experts(item.experts, prompt.experts)
}

func (e *edits) choice(c *choice, prompt [len(choiceLists)][]byte) {
	if len(prompt[tokensList]) == 0 || beginsWithPrompt(c, prompt[tokensList]) {
		return
	}
	for i, list := range c.lists {
		if list.isKind('[') && len(prompt[i]) > 0 {
			e.prepend(list, prompt[i])
		}
	}
}

// beginsWithPrompt reports whether the choice's lists hold the prompt already.
func beginsWithPrompt(c *choice, tokens []byte) bool {
	list, logprobs := c.lists[tokensList], c.lists[logprobsList]
	return list.isKind('[') && bytes.HasPrefix(list.raw[1:], tokens) &&
		logprobs.isKind('[') && bytes.HasPrefix(logprobs.raw[1:], []byte("null"))
}

func (e *edits) experts(value span, prompt []byte) {
	rows, ok := decodeRows(value)
	if !ok || len(prompt) == 0 || len(prompt) > len(rows) {
		return
	}
	copy(rows, prompt)
	text := make([]byte, 0, base64.StdEncoding.EncodedLen(len(rows))+2)
	text = append(text, '"')
	text = base64.StdEncoding.AppendEncode(text, rows)
	e.replace(value.at, value.end(), append(text, '"'))
}

// leadingNull finds the null with which an array begins.
func leadingNull(array span) (at, end int, ok bool) {
	if !array.isKind('[') {
		return 0, 0, false
	}
	rest := bytes.TrimLeft(array.raw[1:], " \t\r\n")
	at = array.end() - len(rest)
	return at, at + len("null"), bytes.HasPrefix(rest, []byte("null"))
}

// isEmpty reports whether a raw JSON array has no entries.
func isEmpty(array []byte) bool {
	return len(bytes.TrimSpace(array[1:len(array)-1])) == 0
}
