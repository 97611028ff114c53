package sglang_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// wire is a pair of engines at the other end of pipes: prefill answers well,
// decode with raw bytes, and both hang up. Whoever closes the near end of a pipe,
// as the transport does with each, ends the engine behind it.
type wire struct{ raw string }

func (w *wire) dial(_ context.Context, _, addr string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		r := bufio.NewReader(far)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		raw := w.raw
		if strings.HasPrefix(addr, "prefill") {
			raw = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + prefillOK
		}
		_, _ = io.WriteString(far, raw)
	}()
	return near, nil
}

// Plan makes the wire its own planner.
func (*wire) Plan(context.Context, *pd.Request, int, []pd.WorkerID) ([]*pd.Plan, error) {
	lease := func(r pd.Role) *pd.Lease {
		id := r.String() + "-0"
		return pd.NewLease(&pd.Worker{ID: pd.WorkerID(id), Role: r, URL: "http://" + id + ":1", CloseOnly: true}, nil, nil)
	}
	return []*pd.Plan{pd.NewPlan(lease(pd.Prefill), lease(pd.Decode), nil)}, nil
}

// wireAnswer is all that a client hears of raw.
type wireAnswer struct {
	status int
	header http.Header
	length int64
	body   []byte
	err    *pd.Error // before the commit, or behind the body; nil when the answer is whole
}

func overWire(t *testing.T, raw string, stream bool) wireAnswer {
	w := &wire{raw: raw}
	rt := pd.NewTransport(time.Second, false)
	rt.DialContext = w.dial
	d := &sglang.Dialect{Rooms: new(bootstrap.Rooms), Aborts: &legs.Aborter{Transport: rt}}
	d.Group.Panic = func(v any, stack []byte) { t.Errorf("panic: %v\n%s", v, stack) }
	o := &pd.Orchestrator{Planner: w, Dialect: d, Upstream: pd.Upstream{Transport: rt, Fresh: rt}}
	body := hi
	if stream {
		body = hiStream
	}
	req, err := pd.NewRequest(pd.Generate, []byte(body))
	require.NoError(t, err)
	defer func() {
		d.Wait()
		assert.Zero(t, d.Rooms.Live())
	}()
	resp, err := o.Serve(t.Context(), req)
	if err != nil {
		e := asError(t, err)
		return wireAnswer{status: e.Status, header: e.Header, body: e.Body, err: e}
	}
	defer resp.Body.Close()
	a := wireAnswer{status: resp.Status, header: resp.Header, length: resp.Length}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		a.err = asError(t, err)
	}
	return a
}

// wireSeeds are heads and bodies that engines and what stands before them send,
// and what no HTTP allows.
var wireSeeds = []struct {
	name, raw string
	status    int
	kind      pd.Kind // of a failure
}{
	{"a plain answer", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", 200, 0},
	{"a stream", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + event1 + done, 200, 0},
	{"chunks and a trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n2\r\n{}\r\n0\r\nX-Late: 1\r\n\r\n", 200, 0},
	{"a refusal", "HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}", 429, pd.Overload},
	{"headers of one connection", "HTTP/1.1 200 OK\r\nConnection: close, X-Hop, x-Other\r\nX-Hop: 1\r\nX-Other: 2\r\nKeep-Alive: 5\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\n\r\n{}", 200, 0},
	{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, 0},
	{"nothing where something is to be", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 502, pd.Broken},
	{"HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\n{}", 200, 0},
	{"an early hint before it", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n{}", 200, 0},
	{"nothing behind an early hint", "HTTP/1.1 100 Continue\r\n\r\n", 502, pd.Broken},
	{"another protocol", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 502, pd.Broken},
	{"a redirect", "HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", 502, pd.Broken},
	{"a status of 000", "HTTP/1.1 000 None\r\n\r\n{}", 502, pd.Broken},
	{"a status of 099", "HTTP/1.1 099 None\r\n\r\n{}", 502, pd.Broken},
	{"a status of 600", "HTTP/1.1 600 Much\r\n\r\n{}", 502, pd.Broken},
	{"a status of 999", "HTTP/1.1 999 Much\r\n\r\n{}", 502, pd.Broken},
	{"a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n{}", 502, pd.Broken},
	{"a negative status", "HTTP/1.1 -20 OK\r\n\r\n{}", 502, pd.Broken},
	{"a return in a value", "HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\n\r\n{}", 502, pd.Broken},
	{"a zero byte in a value", "HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n{}", 502, pd.Broken},
	{"a space in a name", "HTTP/1.1 200 OK\r\nX A: b\r\n\r\n{}", 200, 0},
	{"a space behind a name", "HTTP/1.1 200 OK\r\nContent-Length : 1\r\ntransfer-encoding : chunked\r\n\r\n{}", 200, 0},
	{"a line without a colon", "HTTP/1.1 200 OK\r\nX\r\n\r\n{}", 502, pd.Broken},
	{"a folded line", "HTTP/1.1 200 OK\r\nX: a\r\n  b\r\n\r\n{}", 200, 0},
	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 502, pd.Broken},
	{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", 502, pd.Broken},
	{"a length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, 0},
	{"an unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}", 502, pd.Broken},
	{"half a head", "HTTP/1.1 200 OK\r\nContent-Le", 502, pd.Broken},
	{"half a body", "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", 200, pd.Lost},
	{"half a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}", 200, pd.Lost},
	{"another protocol's greeting", "SSH-2.0-OpenSSH\r\n\r\n", 502, pd.Broken},
	{"one byte", "H", 502, pd.Broken},
	{"nothing", "", 502, pd.Lost},
}

func TestAnswersOffTheWire(t *testing.T) {
	for _, tt := range wireSeeds {
		t.Run(tt.name, func(t *testing.T) {
			a := overWire(t, tt.raw, strings.Contains(tt.raw, "event-stream"))
			assert.Equal(t, tt.status, a.status)
			if tt.kind == 0 {
				assert.Nil(t, a.err)
			} else if assert.NotNil(t, a.err) {
				assert.Equal(t, tt.kind, a.err.Kind, a.err.Error())
			}
			checkWireAnswer(t, tt.raw, a)
		})
	}
}

// checkWireAnswer asserts what holds of every answer.
func checkWireAnswer(t *testing.T, raw string, a wireAnswer) {
	t.Helper()
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length"} {
		assert.NotContains(t, a.header, name)
	}
	lines := []string{}
	for name, values := range a.header {
		assert.NotEmpty(t, name)
		assert.False(t, strings.ContainsAny(name, " \t\r\n:\x00"), "name %q", name)
		lines = append(lines, values...)
	}
	if a.err != nil {
		lines = append(lines, a.err.RetryAfter, a.err.ContentType)
	}
	for _, line := range lines {
		assert.False(t, strings.ContainsAny(line, "\r\n\x00"), "value %q", line)
	}
	if a.err == nil {
		assert.True(t, a.status >= 200 && a.status <= 299, "status %d", a.status)
		assert.True(t, a.length == -1 || a.length == int64(len(a.body)), "length %d of %d", a.length, len(a.body))
	} else {
		assert.True(t, a.err.Status >= 400 && a.err.Status <= 599, "status %d", a.err.Status)
		assert.NotContains(t, []pd.Kind{pd.Invalid, pd.Unavailable, pd.Cancelled, pd.Internal, pd.Stale}, a.err.Kind, "the worker was there")
	}
	first, err := http.ReadResponse(bufio.NewReader(strings.NewReader(raw)), &http.Request{Method: http.MethodPost})
	if err != nil && raw != "" && assert.NotNil(t, a.err, "%v", err) {
		assert.Equal(t, pd.Broken, a.err.Kind)
	}
	if err != nil || first.StatusCode < 200 {
		return
	}
	for _, named := range first.Header["Connection"] {
		for name := range strings.SplitSeq(named, ",") {
			assert.NotContains(t, a.header, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	if body, err := io.ReadAll(first.Body); errors.Is(err, io.ErrUnexpectedEOF) && a.err == nil {
		assert.Fail(t, "a cut answer must look cut", "%q", body)
	} else if a.err == nil {
		assert.True(t, bytes.Equal(body, a.body), "the body is decode's: %q, not %q", a.body, body)
	}
}

func FuzzAnswerOffTheWire(f *testing.F) {
	for _, s := range wireSeeds {
		f.Add(s.raw, false)
		f.Add(s.raw, true)
	}
	f.Fuzz(func(t *testing.T, raw string, stream bool) {
		checkWireAnswer(t, raw, overWire(t, raw, stream))
	})
}
