package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

const (
	readBuffer  = 16 << 10 // per connection; longer header lines are refused
	keepForScan = 16 << 10 // bytes of a body kept when a mode records
)

// call is one parsed request: what the loop needs to answer it, no more.
type call struct {
	path      string
	length    int64 // -1 when the body is chunked
	expect    bool  // the client waits for 100 Continue
	keepAlive bool
	body      []byte // its head, only when the mode records or it is an abort
}

// serve answers the calls of one connection until it ends.
func (e *Engine) serve(c net.Conn, role Role) {
	br := bufio.NewReaderSize(c, readBuffer)
	for {
		req, err := readHead(br)
		if err != nil {
			return
		}
		if req.expect {
			if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		a := e.answers.Load()
		if err := req.readBody(br, a.mode.Record || req.path == abortPath); err != nil {
			return
		}
		if !e.answer(c, br, role, a, req) || !req.keepAlive {
			return
		}
	}
}

// answer writes the answer to one call and says whether the connection lives on.
func (e *Engine) answer(c net.Conn, br *bufio.Reader, role Role, a *answers, req call) bool {
	kind, isLeg := legPaths[req.path]
	if !isLeg {
		if req.path == abortPath {
			e.record.abort(role, ridOf(req.body), time.Now())
		}
		return write(c, a.probe(role, req.path))
	}
	e.counts[roleIndex(role)].Add(1)
	var l *leg
	if a.mode.Record {
		l = e.record.open(role, ridOf(req.body), time.Now())
	}
	action := a.mode.Decode
	if role == Prefill {
		action = a.mode.Prefill
	}
	switch action {
	case AnswerStream:
		if role == Decode {
			return a.stream(c, kind)
		}
		e.record.answered(l, time.Now())
		return write(c, a.prefillStream[kind])
	case Refuse:
		time.Sleep(refuseAfter)
		e.record.answered(l, time.Now())
		return write(c, a.refusal)
	case Stall:
		return write(c, a.stall[kind]) && e.silence(c, br, a, l)
	case Hold:
		return e.silence(c, br, a, l)
	default:
		return write(c, a.json[kind])
	}
}

// silence waits, without another byte, for the peer (or SetMode) to close c,
// which never carries another call.
func (e *Engine) silence(c net.Conn, br *bufio.Reader, a *answers, l *leg) bool {
	if e.hold(c, a) {
		if _, err := br.Peek(1); err != nil {
			e.record.closed(l, time.Now())
		}
	}
	return false
}

// stream writes decode's events, one write each, as an engine does.
func (a *answers) stream(c net.Conn, kind legKind) bool {
	if !write(c, []byte(streamHead)) {
		return false
	}
	start := time.Now()
	for i := range a.mode.Events {
		if a.mode.Gap > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(i) * a.mode.Gap)))
		}
		if !write(c, a.event[kind]) {
			return false
		}
	}
	return write(c, []byte(streamEnd))
}

func write(c net.Conn, b []byte) bool {
	_, err := c.Write(b)
	return err == nil
}

var errBadRequest = errors.New("engine: malformed request")

// readHead reads a request line and the headers.
func readHead(br *bufio.Reader) (call, error) {
	req := call{keepAlive: true}
	line, err := br.ReadSlice('\n')
	if err != nil {
		return req, err
	}
	parts := bytes.Fields(line)
	if len(parts) != 3 {
		return req, errBadRequest
	}
	path, _, _ := bytes.Cut(parts[1], []byte("?"))
	req.path = string(path)
	req.keepAlive = string(parts[2]) == "HTTP/1.1"
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return req, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return req, nil
		}
		if err := req.header(line); err != nil {
			return req, err
		}
	}
}

func (req *call) header(line []byte) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		return errBadRequest
	}
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%w: length %q", errBadRequest, value)
		}
		req.length = n
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		req.length = -1
	case bytes.EqualFold(name, []byte("Expect")):
		req.expect = true
	case bytes.EqualFold(name, []byte("Connection")):
		req.keepAlive = !bytes.EqualFold(value, []byte("close"))
	}
	return nil
}

// readBody reads the whole body and drops it, or keeps its head.
func (req *call) readBody(br *bufio.Reader, keep bool) error {
	body := io.LimitReader(br, req.length)
	if req.length < 0 {
		body = httputil.NewChunkedReader(br)
	}
	if keep {
		head, err := io.ReadAll(io.LimitReader(body, keepForScan))
		if err != nil {
			return err
		}
		req.body = head
	}
	n, err := io.Copy(io.Discard, body)
	switch {
	case err != nil:
		return err
	case req.length < 0:
		return endOfTrailers(br)
	case n+int64(len(req.body)) != req.length:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// endOfTrailers reads what follows the last chunk, up to the empty line.
func endOfTrailers(br *bufio.Reader) error {
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			return nil
		}
	}
}
