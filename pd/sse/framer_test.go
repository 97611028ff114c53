package sse_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd/sse"
)

func TestFramerCutsEventsAtBlankLines(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		events       []string
		pending      string
	}{
		{"one event", "data: a\n\n", []string{"data: a\n\n"}, ""},
		{"several events in one write", "data: a\n\ndata: b\n\n", []string{"data: a\n\n", "data: b\n\n"}, ""},
		{"an unfinished event stays pending", "data: a\n\ndata: b\n", []string{"data: a\n\n"}, "data: b\n"},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"data: a\r\n\r\n", "data: b\r\n\r\n"}, ""},
		{"CR ends an event without waiting", "data: a\r\rdata: b\r\r", []string{"data: a\r\r", "data: b\r\r"}, ""},
		{"LF, then CRLF", "data: a\n\r\n", []string{"data: a\n\r\n"}, ""},
		{"CRLF, then LF", "data: a\r\n\n", []string{"data: a\r\n\n"}, ""},
		{"LF, then CR and more", "data: a\n\rdata: b", []string{"data: a\n\r"}, "data: b"},
		{"LF, then a CR that may be half of a CRLF", "data: a\n\r", nil, "data: a\n\r"},
		{"CR, then CRLF", "data: a\r\r\n", []string{"data: a\r\r", "\n"}, ""},
		{"several lines in one event", "id: 1\ndata: a\ndata: b\n\n", []string{"id: 1\ndata: a\ndata: b\n\n"}, ""},
		{"comments", ": ping\n\n: ping\n\n", []string{": ping\n\n", ": ping\n\n"}, ""},
		{"blank lines between events", "\n\r\ndata: a\n\n\n", []string{"\n", "\r\n", "data: a\n\n", "\n"}, ""},
		{"text that is not ASCII", "data: 你好\n\n", []string{"data: 你好\n\n"}, ""},
		{"escaped line ends are text", `data: "a\n\nb"` + "\n\n", []string{`data: "a\n\nb"` + "\n\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, cuts := range map[string][]int{"whole": nil, "in single bytes": everyByte(c.stream)} {
				events, pending := frame(t, []byte(c.stream), cuts)
				assert.Equal(t, c.events, events, name)
				assert.Equal(t, c.pending, pending, name)
			}
		})
	}
}

func TestFramerLeavesAnEventOfOneWriteWhereItIs(t *testing.T) {
	p := []byte("data: a\n\ndata: b\n\n")
	var f sse.Framer
	var at []*byte
	require.NoError(t, f.Push(p, func(event []byte) error {
		at = append(at, &event[0])
		return nil
	}))
	require.Len(t, at, 2)
	assert.Same(t, &p[0], at[0])
	assert.Same(t, &p[9], at[1])
}

func TestFramerBoundsTheUnfinishedEvent(t *testing.T) {
	t.Run("in one write", func(t *testing.T) {
		f := sse.Framer{Max: 8}
		err := f.Push([]byte("data: 123"), refuse(t))
		require.ErrorIs(t, err, sse.ErrTooLong)
		assert.Equal(t, "data: 123", string(f.Pending()))
	})
	t.Run("over several writes, and keeps every byte of the last one", func(t *testing.T) {
		f := sse.Framer{Max: 8}
		require.NoError(t, f.Push([]byte("data: 12"), refuse(t)))
		require.ErrorIs(t, f.Push([]byte("\n\ndata: b\n\n"), refuse(t)), sse.ErrTooLong)
		assert.Equal(t, "data: 12\n\ndata: b\n\n", string(f.Pending()))
	})
	t.Run("takes nothing more", func(t *testing.T) {
		f := sse.Framer{Max: 2}
		require.ErrorIs(t, f.Push([]byte("data"), refuse(t)), sse.ErrTooLong)
		require.ErrorIs(t, f.Push([]byte("\n\n"), refuse(t)), sse.ErrTooLong)
		assert.Equal(t, "data", string(f.Pending()))
	})
	t.Run("counts anew for each event", func(t *testing.T) {
		f := sse.Framer{Max: 9}
		events := 0
		for range 10 {
			require.NoError(t, f.Push([]byte("data: "), refuse(t)))
			require.NoError(t, f.Push([]byte("a\n\n"), func([]byte) error { events++; return nil }))
		}
		assert.Equal(t, 10, events)
	})
}

func TestFramerReturnsTheErrorOfEmitAtOnce(t *testing.T) {
	stop := errors.New("stop")
	var f sse.Framer
	events := 0
	err := f.Push([]byte("data: a\n\ndata: b\n\n"), func([]byte) error { events++; return stop })
	require.ErrorIs(t, err, stop)
	assert.Equal(t, 1, events)
}

// FuzzFramer holds the Framer to two references: a regular expression for the
// bytes of each event, and the definition of SSE, which knows lines only, for the
// payloads. No cut of the stream may change either.
func FuzzFramer(f *testing.F) {
	for _, s := range []string{
		"data: a\n\ndata: b\n\n", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\rdata: b\r\r", "data: a\n\r", "data: a\r\r\n",
		"data:a\ndata\ndata: \r\rid: 3\n\n: c\n\n\n\n", "data: [DONE]\n\n", "data: 你好\r\n\r\n",
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		want, rest := referenceEvents(stream)
		r := rand.New(rand.NewPCG(seed, 0))
		var random []int
		for range min(len(stream), 16) {
			random = append(random, r.IntN(len(stream)+1))
		}
		for _, cuts := range [][]int{nil, everyByte(string(stream)), random} {
			events, pending := frame(t, stream, cuts)
			require.Equal(t, want, events)
			require.Equal(t, rest, pending)
			require.Equal(t, string(stream), strings.Join(events, "")+pending)
			require.Equal(t, referenceData(strings.Join(events, "")), payloads(events))
		}
	})
}

var (
	eventPattern = regexp.MustCompile(`^(?:(?:[^\r\n]+(?:\r\n|\n|\r))*[^\r\n]+(?:\r\r|(?:\r\n|\n)(?:\r\n|\n|\r))|(?:\r\n|\n|\r))`)
	lineEnds     = strings.NewReplacer("\r\n", "\n", "\r", "\n")
)

func referenceEvents(stream []byte) (events []string, rest string) {
	// Bytes are matched as Latin-1: the expression's "any character" means a byte.
	runes := make([]rune, len(stream))
	for i, b := range stream {
		runes[i] = rune(b)
	}
	s := string(runes)
	latin := func(s string) string {
		var b []byte
		for _, r := range s {
			b = append(b, byte(r))
		}
		return string(b)
	}
	for {
		end := eventPattern.FindStringIndex(s)
		openCR := end != nil && end[1] == len(s) && s[len(s)-1] == '\r' && (len(s) < 2 || s[len(s)-2] != '\r')
		if end == nil || openCR {
			return events, latin(s)
		}
		events = append(events, latin(s[:end[1]]))
		s = s[end[1]:]
	}
}

func referenceData(stream string) (data []string) {
	var lines []string
	for line := range strings.SplitSeq(lineEnds.Replace(stream), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case line == "" && lines != nil:
			data, lines = append(data, strings.Join(lines, "\n")), nil
		case name == "data":
			lines = append(lines, strings.TrimPrefix(value, " "))
		}
	}
	return data
}

func payloads(events []string) (data []string) {
	for _, event := range events {
		if d := sse.Data([]byte(event)); d != nil {
			data = append(data, string(d))
		}
	}
	return data
}

// frame pushes stream cut at the given offsets, in any order, and returns what
// was emitted and what is pending.
func frame(t *testing.T, stream []byte, cuts []int) (events []string, pending string) {
	t.Helper()
	at := make([]bool, len(stream)+1)
	for _, c := range cuts {
		at[c] = true
	}
	var f sse.Framer
	from := 0
	for i := range len(stream) + 1 {
		if !at[i] && i < len(stream) {
			continue
		}
		require.NoError(t, f.Push(bytes.Clone(stream[from:i]), func(event []byte) error {
			events = append(events, string(event))
			return nil
		}))
		from = i
	}
	return events, string(f.Pending())
}

func everyByte(stream string) []int {
	cuts := make([]int, len(stream))
	for i := range cuts {
		cuts[i] = i
	}
	return cuts
}

func refuse(t *testing.T) func([]byte) error {
	return func(event []byte) error {
		assert.Fail(t, "no event was expected", "%q", event)
		return nil
	}
}
