//go:build !linux || tandem_portable

package router

import (
	"errors"
	"os"
	"time"
)

// aheadBytes bounds what is read from a client whose request is being served: a
// pipelined request's beginning, or the few bytes by which TLS says goodbye.
// Behind more than that a departure is not seen.
const aheadBytes = 512

// ahead is what the watch has read and nobody has asked for yet. It is touched
// by the watch while one runs, and by the connection's reader otherwise.
type ahead struct {
	buf  [aheadBytes]byte
	n    int
	done chan struct{} // closed when the watch has ended
}

func (a *ahead) take(p []byte) int {
	n := copy(p, a.buf[:a.n])
	a.n = copy(a.buf[:], a.buf[n:a.n])
	return n
}

// startWatch reads ahead until the client leaves or stopWatch.
func (c *conn) startWatch() {
	done := make(chan struct{})
	c.ahead.done = done
	_ = c.Conn.SetReadDeadline(time.Time{})
	go func() {
		defer close(done)
		for c.ahead.n < aheadBytes {
			n, err := c.Conn.Read(c.ahead.buf[c.ahead.n:])
			c.ahead.n += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err != nil {
				c.hangup()
				return
			}
		}
	}()
}

// stopWatch interrupts the watch's read and waits for it. The deadline that was
// set before it is gone, so the next read sets its own.
func (c *conn) stopWatch() {
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	<-c.ahead.done
	_ = c.Conn.SetReadDeadline(time.Time{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads.moved = time.Time{}
}

// watcher has nothing to keep here: each connection watches itself.
type watcher struct{}

func newWatcher() (*watcher, error) { return &watcher{}, nil }

func (*watcher) add(c *conn) error {
	c.forget = func() {}
	return nil
}

func (*watcher) release() {}
