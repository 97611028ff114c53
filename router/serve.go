package router

import (
	"errors"
	"io"
	"sync/atomic"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
)

// data serves one of the endpoints that generate. A request waits for its
// admission only when nothing but an engine can refuse it any more.
func (a *App) data(ep pd.Endpoint) handler {
	return func(v *visit) error {
		req, err := v.request(ep)
		if err != nil {
			return err
		}
		resp, err := v.serve(req)
		if err != nil {
			return err
		}
		v.send(resp)
		return nil
	}
}

// request reads the request, of which the whole body.
func (v *visit) request(ep pd.Endpoint) (*pd.Request, error) {
	body, err := v.body(v.app.cfg.MaxPayload)
	if err != nil {
		return nil, err
	}
	read := pd.NewRequest
	if v.app.cfg.Regular {
		read = pd.NewSingle
	}
	req, err := read(ep, body)
	if err != nil {
		return nil, err
	}
	req.ID, req.Start = v.id, v.start
	req.Method = string(v.c.Request().Header.Method())
	if v.app.cfg.Regular {
		if req.Target, err = v.target(ep); err != nil {
			return nil, err
		}
	}
	req.Header, err = v.header()
	return req, err
}

// serve runs the request, up to the moment when its answer may go to the client.
func (v *visit) serve(req *pd.Request) (*pd.Response, error) {
	if err := v.begin(); err != nil {
		return nil, err
	}
	if err := v.admit(req); err != nil {
		return nil, err
	}
	return v.app.cfg.Server.Serve(v.ctx, req)
}

// send answers with resp. From here on the answer's Close ends the visit.
func (v *visit) send(resp *pd.Response) {
	r := v.c.Response()
	r.SetStatusCode(resp.Status)
	v.addHeader(resp.Header)
	if resp.Stream {
		setAbsent(v.c, "X-Accel-Buffering", "no") // nginx would collect the events
		setAbsent(v.c, fiber.HeaderCacheControl, "no-cache")
	}
	v.status, v.handed = resp.Status, true
	body := &answer{visit: v, body: resp.Body, stream: resp.Stream}
	length := -1
	if resp.Length >= 0 {
		length = int(resp.Length)
	} else if !v.c.Request().Header.IsHTTP11() {
		v.sendToEnd(body)
		return
	}
	// In a stream each read is written and flushed on its own, so an event is
	// never held back, and the next one is not read before the client has taken
	// this one. A plain answer's head goes out with the first of its body: one
	// system call less.
	r.ImmediateHeaderFlush = resp.Stream
	r.SetBodyStream(body, length)
}

// sendToEnd answers a client of HTTP/1.0, which knows no chunks, with a body of
// unknown length: the end of the connection is the end of the body, and a reset
// is that of a cut one. The server knows no such answer; what it still writes
// goes nowhere.
func (v *visit) sendToEnd(body *answer) {
	defer body.Close()
	nc, header := v.c.Context().Conn(), &v.c.Response().Header
	header.SetConnectionClose()
	_, err := nc.Write(header.Header())
	if err == nil {
		_, err = io.CopyBuffer(nc, body, make([]byte, 4<<10))
	}
	if err != nil {
		v.conn.reset()
		return
	}
	_ = nc.Close()
}

func setAbsent(c *fiber.Ctx, name, value string) {
	if h := &c.Response().Header; len(h.Peek(name)) == 0 {
		h.Set(name, value)
	}
}

// answer is a response's body on its way to the client. Its reader is the
// connection's goroutine, which closes it at the end on every path.
type answer struct {
	visit  *visit
	body   io.ReadCloser
	stream bool

	last    [2]byte // of what has been passed on
	pending []byte  // the shutdown's event
	err     error   // how the body ended, once it has
	closed  atomic.Bool
}

// Read passes the body's bytes on. An error other than io.EOF makes the server
// break the connection, so that a cut answer looks cut.
func (b *answer) Read(p []byte) (n int, err error) {
	if b.err == nil {
		if n, err = b.next(p); err != nil {
			b.end(err)
		}
		if n > 0 {
			b.remember(p[:n])
			return n, nil
		}
	}
	if len(b.pending) > 0 {
		n = copy(p, b.pending)
		b.pending = b.pending[n:]
		return n, nil
	}
	return 0, b.err
}

// next reads from the body; a panic there ends this answer only.
func (b *answer) next(p []byte) (n int, err error) {
	defer func() {
		if value := recover(); value != nil {
			b.visit.app.panicked(b.visit.id, value)
			n, err = 0, errPanic()
		}
	}()
	return b.body.Read(p)
}

// end notes how the body ended. A stream that the shutdown ended says so, in an
// event of its own: a line that was cut short is closed first.
func (b *answer) end(err error) {
	b.err = err
	if errors.Is(err, io.EOF) {
		b.err = io.EOF
		return
	}
	b.visit.broken = true
	if !b.stream || !b.visit.severed.Load() {
		return
	}
	if b.last != [2]byte{} && b.last != [2]byte{'\n', '\n'} {
		b.pending = append(b.pending, "\n\n"...)
	}
	b.pending = append(b.pending, event(b.visit.shape, errShutdown())...)
}

func (b *answer) remember(p []byte) {
	if len(p) == 1 {
		b.last[0], b.last[1] = b.last[1], p[0]
		return
	}
	copy(b.last[:], p[len(p)-2:])
}

// Close gives back everything that the request has taken.
func (b *answer) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	defer b.visit.end()
	defer b.visit.app.recovered(b.visit.id)
	if !errors.Is(b.err, io.EOF) {
		b.visit.broken = true
	}
	return b.body.Close()
}
