package legs

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHold(t *testing.T) {
	big := strings.Repeat("x", holdLimit)
	f := func(name, stream, event string) {
		t.Run(name, func(t *testing.T) {
			for cut, r := range map[string]io.Reader{
				"whole": strings.NewReader(stream), "byte for byte": iotest.OneByteReader(strings.NewReader(stream)),
				"in halves": iotest.HalfReader(strings.NewReader(stream)), "end with data": iotest.DataErrReader(strings.NewReader(stream)),
			} {
				held, got, err := Hold(r, make([]byte, 4096))
				assert.Equal(t, event, string(got), cut)
				if event == "" && len(held) < holdLimit {
					require.ErrorIs(t, err, io.EOF, cut)
				}
				rest, err := io.ReadAll(r)
				require.NoError(t, err)
				assert.Equal(t, stream, string(held)+string(rest), "no byte is lost: %s", cut)
				assert.LessOrEqual(t, len(held), holdLimit+4096, cut)
			}
		})
	}
	f("one event", "data: a\n\n", "data: a\n\n")
	f("more than one", "data: a\n\ndata: b\n\n", "data: a\n\n")
	f("a comment is no event", ": ping\n\ndata: a\n\n", "data: a\n\n")
	f("blank lines are no event", "\n\n\ndata: a\n\n", "data: a\n\n")
	f("CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", "data: a\r\n\r\n")
	f("[DONE] is an event", "data: [DONE]\n\n", "data: [DONE]\n\n")
	f("an empty stream", "", "")
	f("the end comes before the event's", "data: a\n", "")
	f("comments alone", ": a\n\n: b\n\n", "")
	f("an event beyond the limit", "data: "+big+"\n\ndata: b\n\n", "")
	f("comments beyond the limit", strings.Repeat(": ping\n\n", holdLimit/8+10)+"data: a\n\n", "")
	f("an event behind many comments", strings.Repeat(": ping\n\n", 1000)+"data: a\n\n", "data: a\n\n")
}

func TestHoldReturnsWhatCameBeforeAnError(t *testing.T) {
	broken := errors.New("broken")
	held, event, err := Hold(io.MultiReader(strings.NewReader("data: a"), iotest.ErrReader(broken)), make([]byte, 16))
	assert.Equal(t, "data: a", string(held))
	assert.Nil(t, event)
	assert.ErrorIs(t, err, broken)
}

func TestHeldEventIsACopy(t *testing.T) {
	buf := make([]byte, 64)
	held, event, err := Hold(strings.NewReader("data: a\n\n"), buf)
	require.NoError(t, err)
	clear(buf)
	assert.Equal(t, "data: a\n\n", string(held))
	assert.Equal(t, "data: a\n\n", string(event))
}

func TestHoldPlain(t *testing.T) {
	f := func(name string, r io.Reader, want string, wantErr error) {
		t.Run(name, func(t *testing.T) {
			held, err := HoldPlain(r)
			assert.Equal(t, want, string(held))
			assert.Equal(t, wantErr, err)
		})
	}
	lost := io.ErrUnexpectedEOF
	f("the first bytes", iotest.OneByteReader(strings.NewReader("ab")), "a", nil)
	f("and those that come with them, up to a bound", strings.NewReader(strings.Repeat("x", firstSize+1)), strings.Repeat("x", firstSize), nil)
	f("after reads without any", io.MultiReader(&empties{3}, strings.NewReader("a")), "a", nil)
	f("an answer that is over with them", iotest.DataErrReader(strings.NewReader("a")), "a", io.EOF)
	f("an empty answer", strings.NewReader(""), "", io.EOF)
	f("one that is lost", iotest.ErrReader(lost), "", lost)
	f("one that is lost behind its first bytes", iotest.DataErrReader(io.MultiReader(strings.NewReader("a"), iotest.ErrReader(lost))), "a", nil)
}

// empties reads nothing for some times.
type empties struct{ times int }

func (e *empties) Read([]byte) (int, error) {
	if e.times--; e.times < 0 {
		return 0, io.EOF
	}
	return 0, nil
}

func TestIsStream(t *testing.T) {
	for kind, want := range map[string]bool{
		"text/event-stream": true, "text/event-stream; charset=utf-8": true, "Text/Event-Stream ;x": true,
		"application/json": false, "": false, "text/event-streams": false, "application/json; text/event-stream": false,
	} {
		assert.Equal(t, want, IsStream(&http.Response{Header: http.Header{"Content-Type": {kind}}}), kind)
	}
}
