package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/load/engine"
)

func TestBodyIsJSONOfItsSizeInEitherFraming(t *testing.T) {
	f := func(b Body) {
		t.Helper()
		var wire bytes.Buffer
		require.NoError(t, b.write(&wire, "127.0.0.1:1"))
		req, err := http.ReadRequest(bufio.NewReader(&wire))
		require.NoError(t, err)
		body, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		assert.Equal(t, b.Path, req.URL.Path)
		assert.Equal(t, b.Chunked, req.ContentLength < 0)
		assert.Len(t, body, b.Bytes)
		var got struct{ Stream bool }
		require.NoError(t, json.Unmarshal(body, &got))
		assert.Equal(t, b.Stream, got.Stream)
	}
	for _, path := range []string{"/generate", "/v1/chat/completions", "/v1/completions"} {
		f(Body{Path: path, Bytes: 1 << 10})
		f(Body{Path: path, Bytes: 1 << 10, Stream: true, Chunked: true})
		f(Body{Path: path, Bytes: 1 << 20})
		f(Body{Path: path, Bytes: 1<<20 + 1, Chunked: true})
		f(Body{Path: path, Bytes: fillBlock})
	}
}

func TestEventsAreCountedWhereverTheStreamIsCut(t *testing.T) {
	const stream = "data: {\"a\":1}\n\ndata: x\ndata: y\n\n: ping\n\ndata: [DONE]\n\n"
	for size := 1; size <= len(stream); size++ {
		var c eventCounter
		for i := 0; i < len(stream); i += size {
			c.write([]byte(stream[i:min(i+size, len(stream))]))
		}
		assert.Equal(t, 4, c.events, "cut every %d bytes", size)
	}
}

func TestTimesRunFromTheFaultToTheLastLeg(t *testing.T) {
	left := time.Unix(0, 1000)
	f := func(left time.Time, freed, closed time.Duration, legs ...engine.Leg) {
		t.Helper()
		gotFreed, gotClosed, err := freeTimes(legs, left)
		require.NoError(t, err)
		assert.Equal(t, freed, gotFreed)
		assert.Equal(t, closed, gotClosed)
	}
	refusal := engine.Leg{Role: engine.Prefill, Answered: 500}
	f(time.Time{}, 100, 100, refusal, engine.Leg{Role: engine.Decode, Closed: 600})
	f(time.Time{}, 40, 100, refusal, engine.Leg{Role: engine.Decode, Closed: 600, Aborted: 540})
	f(time.Time{}, 40, 0, refusal, engine.Leg{Role: engine.Decode, Aborted: 540})
	f(left, 300, 300, engine.Leg{Closed: 1200}, engine.Leg{Closed: 1300})
	f(left, 200, 300, engine.Leg{Closed: 1200}, engine.Leg{Closed: 1300, Aborted: 1100})
	f(left, 70, 70, engine.Leg{Answered: 900}, engine.Leg{Closed: 1070})
}

func TestALegThatStaysIsAMiss(t *testing.T) {
	_, _, err := freeTimes([]engine.Leg{{Role: engine.Prefill, Answered: 1}, {Role: engine.Decode}}, time.Time{})
	assert.ErrorContains(t, err, "decode was not freed")
	_, _, err = freeTimes([]engine.Leg{{Role: engine.Prefill, Closed: 1}}, time.Time{})
	assert.ErrorContains(t, err, "1 legs came")
}
