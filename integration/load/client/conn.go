package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// bakeLimit is the largest request kept ready as bytes; larger ones are
// written piece by piece.
const bakeLimit = 4 << 20

// conn is one connection of a job. It dials when it has to and keeps the
// connection as long as the router does. Not for concurrent use.
type conn struct {
	job   Job
	baked []byte // the whole request, nil for a large one
	net   net.Conn
	br    *bufio.Reader
	buf   []byte
}

func newConn(job Job) *conn {
	c := &conn{job: job, buf: make([]byte, 16<<10)}
	if job.Body.Bytes <= bakeLimit {
		var b bytes.Buffer
		// A bytes.Buffer never fails.
		_ = job.Body.write(&b, job.Addr)
		c.baked = b.Bytes()
	}
	return c
}

func (c *conn) close() {
	if c.net != nil {
		c.net.Close()
		c.net = nil
	}
}

// do makes one call and checks its answer. It returns the events delivered.
func (c *conn) do(ctx context.Context) (events int, err error) {
	resp, err := c.send(ctx)
	if err == nil {
		events, err = c.read(resp)
	}
	if err != nil || resp.Close {
		c.close()
	}
	return events, err
}

// firstEvent opens a stream and returns once its first event is in.
func (c *conn) firstEvent(ctx context.Context) error {
	resp, err := c.send(ctx)
	if err != nil {
		c.close()
		return err
	}
	var count eventCounter
	for count.events == 0 {
		n, err := resp.Body.Read(c.buf)
		count.write(c.buf[:n])
		if err != nil {
			c.close()
			return fmt.Errorf("stream before its first event: %w", unexpected(err))
		}
	}
	// What is held may stay silent for longer than a call may take.
	return c.net.SetDeadline(time.Time{})
}

// dispatch dials if need be and writes the request.
func (c *conn) dispatch(ctx context.Context) error {
	if c.net == nil {
		d := net.Dialer{Timeout: c.job.Timeout}
		nc, err := d.DialContext(ctx, "tcp", c.job.Addr)
		if err != nil {
			return err
		}
		c.net = nc
		if c.br == nil {
			c.br = bufio.NewReaderSize(nc, 4<<10)
		}
		c.br.Reset(nc)
	}
	if err := c.net.SetDeadline(time.Now().Add(c.job.Timeout)); err != nil {
		return err
	}
	if err := c.write(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// send dispatches the request and returns the response, its status checked.
func (c *conn) send(ctx context.Context) (*http.Response, error) {
	if err := c.dispatch(ctx); err != nil {
		return nil, err
	}
	return c.receive()
}

// receive reads the head of the answer to what was dispatched.
func (c *conn) receive() (*http.Response, error) {
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return nil, fmt.Errorf("read: %w", unexpected(err))
	}
	if resp.StatusCode != http.StatusOK {
		head, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, fmt.Errorf("status %d: %s", resp.StatusCode, head)
	}
	return resp, nil
}

func (c *conn) write() error {
	if c.baked != nil {
		_, err := c.net.Write(c.baked)
		return err
	}
	w := bufio.NewWriterSize(c.net, 2*fillBlock)
	if err := c.job.Body.write(w, c.job.Addr); err != nil {
		return err
	}
	return w.Flush()
}

// read reads the answer to its end and checks that it is whole.
func (c *conn) read(resp *http.Response) (int, error) {
	var count eventCounter
	size := 0
	for {
		n, err := resp.Body.Read(c.buf)
		size += n
		if c.job.Events > 0 {
			count.write(c.buf[:n])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("read: %w", err)
		}
	}
	switch {
	case c.job.Events == 0 && size == 0:
		return 0, errors.New("empty answer")
	case c.job.Events > 0 && count.events != c.job.Events+1:
		return 0, fmt.Errorf("%d events of %d, [DONE] counted", count.events, c.job.Events+1)
	}
	return c.job.Events, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// eventCounter counts the ends of SSE events in a stream cut anywhere.
type eventCounter struct {
	events int
	nl     bool // the last byte was a line end
}

func (e *eventCounter) write(p []byte) {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			e.nl = false
			return
		}
		if i == 0 && e.nl {
			e.events++
			e.nl = false
		} else {
			e.nl = true
		}
		p = p[i+1:]
	}
}
