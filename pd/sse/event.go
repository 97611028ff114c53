package sse

import "bytes"

// Data returns the payload of an event: the values of its data lines joined by
// LF, each without its one leading space. It aliases event when there is one data
// line, and is nil when there is none (comments, ids, blank lines).
func Data(event []byte) []byte {
	start, end, next := nextData(event, 0)
	if next < 0 {
		return nil
	}
	first := event[start:end:end]
	if start, end, next = nextData(event, next); next < 0 {
		return first
	}
	data := append(make([]byte, 0, len(event)), first...)
	for ; next >= 0; start, end, next = nextData(event, next) {
		data = append(data, '\n')
		data = append(data, event[start:end]...)
	}
	return data
}

// DataSpan returns where the payload lies in event, for a caller that replaces
// it. It reports false unless the event has exactly one data line, which is how
// every engine writes its events.
func DataSpan(event []byte) (start, end int, ok bool) {
	start, end, next := nextData(event, 0)
	if next < 0 {
		return 0, 0, false
	}
	if _, _, more := nextData(event, next); more >= 0 {
		return 0, 0, false
	}
	return start, end, true
}

// IsDone reports whether the event is the one that closes an engine's stream: its
// payload is [DONE] and nothing else. A payload that merely holds these
// characters, as generated text may, is not.
func IsDone(event []byte) bool {
	start, end, ok := DataSpan(event)
	return ok && string(event[start:end]) == "[DONE]"
}

// nextData returns the span of the first data value at or after the line that
// starts at from, and the start of the line behind it. next is -1 when there is
// no such line.
func nextData(event []byte, from int) (start, end, next int) {
	for from < len(event) {
		end, next = len(event), len(event)
		if n := lineEnd(event[from:]); n >= 0 {
			end, next = from+n, from+n+1
		}
		if value, ok := dataValue(event[from:end]); ok {
			return end - len(value), end, next
		}
		from = next // the LF of a CRLF reads as one more empty line, which says nothing
	}
	return 0, 0, -1
}

// dataValue returns the value of a data line, and false for any other line. A
// field name without a colon has the empty value.
func dataValue(line []byte) ([]byte, bool) {
	rest, ok := bytes.CutPrefix(line, []byte("data"))
	switch {
	case !ok:
		return nil, false
	case len(rest) == 0:
		return rest, true
	case rest[0] != ':':
		return nil, false
	}
	return bytes.TrimPrefix(rest[1:], []byte(" ")), true
}
