package patch

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const payloadText = `{"room":7,"text":"a long prompt", "n":1,"last":[true]}`

// newPayload returns a payload of several segments whose text is payloadText.
func newPayload(t *testing.T) *Payload {
	t.Helper()
	e := editOf(t, `{"text":"a long prompt", "room":0,"n":2,"last":[true]}`)
	require.True(t, e.Replace("n", []byte("1")))
	p := e.Payload(Member{"room", []byte("7")})
	require.Greater(t, len(p.segments), 4)
	require.Equal(t, payloadText, string(p.Bytes()))
	return p
}

func TestPayloadKnowsItsLength(t *testing.T) {
	assert.EqualValues(t, len(payloadText), newPayload(t).Len())
}

func TestPayloadSharesTheBody(t *testing.T) {
	body := []byte(`{"text":"a long prompt"}`)
	doc, err := Scan(body)
	require.NoError(t, err)
	one := doc.Edit().Payload(Member{"room", []byte("1")})
	two := doc.Edit().Payload(Member{"room", []byte("2")})
	assert.Same(t, &body[1], &one.segments[2][0])
	assert.Same(t, &body[1], &two.segments[2][0])
}

func TestReaderObeysTheContractOfReaders(t *testing.T) {
	assert.NoError(t, iotest.TestReader(newPayload(t).NewReader(), []byte(payloadText)))
}

func TestReaderWritesWhatIsLeft(t *testing.T) {
	p := newPayload(t)
	for read := range len(payloadText) + 1 {
		r := p.NewReader()
		head := make([]byte, read)
		_, err := io.ReadFull(r, head)
		require.NoError(t, err)
		var tail bytes.Buffer
		n, err := r.WriteTo(&tail)
		require.NoError(t, err)
		require.EqualValues(t, tail.Len(), n)
		require.Equal(t, payloadText, string(head)+tail.String())
		_, err = r.Read(head)
		require.Equal(t, io.EOF, err)
	}
}

// limitedWriter takes so many bytes, and then returns err.
type limitedWriter struct {
	bytes.Buffer
	room int
	err  error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if len(p) <= w.room {
		w.room -= len(p)
		return w.Buffer.Write(p)
	}
	n, _ := w.Buffer.Write(p[:w.room])
	w.room = 0
	return n, w.err
}

func TestReaderStopsWhereTheWriterFails(t *testing.T) {
	p := newPayload(t)
	broken := errors.New("connection reset")
	for room := range payloadText {
		for _, f := range []struct{ err, want error }{{broken, broken}, {nil, io.ErrShortWrite}} {
			r := p.NewReader()
			w := &limitedWriter{room: room, err: f.err}
			n, err := r.WriteTo(w)
			require.Equal(t, f.want, err)
			require.EqualValues(t, room, n)
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, payloadText, w.String()+string(rest))
		}
	}
}

func TestReadersAreIndependent(t *testing.T) {
	p := newPayload(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r := p.NewReader()
			text, err := io.ReadAll(iotest.OneByteReader(r))
			assert.NoError(t, err)
			assert.NoError(t, r.Close())
			assert.Equal(t, payloadText, string(text))
		})
	}
	wg.Wait()
}

func TestReaderMayBeClosedAtAnyTime(t *testing.T) {
	r := newPayload(t).NewReader()
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, r.Close()) })
	text, err := io.ReadAll(r)
	wg.Wait()
	assert.NoError(t, err)
	assert.Equal(t, payloadText, string(text))
}

func TestRawIsAnyText(t *testing.T) {
	for _, text := range []string{"", "{", "\x00\xff--part\r\n"} {
		p := Raw([]byte(text))
		assert.EqualValues(t, len(text), p.Len())
		got, err := io.ReadAll(p.NewReader())
		require.NoError(t, err)
		assert.Equal(t, text, string(got))
	}
}
