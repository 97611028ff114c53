package router

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds on a connection that is closed while its client may still be sending.
const lingerTime = 500 * time.Millisecond

// The phases of a connection, for the claim that closes a silent one.
const (
	connFresh   int32 = iota // not a byte has come
	connSpoken               // the client has sent something
	connClaimed              // the shutdown is closing it
)

// conn is a client's connection. It knows when the client has left, also while
// nobody reads from it, and puts a deadline on each read and each write: one
// deadline over a whole body or answer would cut what makes progress.
type conn struct {
	net.Conn
	forget func() // ends the watch over the connection; called once
	ahead  ahead  // what a watch by reading has read before its time
	sealed bool   // what comes in are records of TLS, see session

	phase  atomic.Int32
	closed atomic.Bool
	broken atomic.Bool // a read has failed
	linger atomic.Bool // the client may still be sending: see Close

	mu     sync.Mutex
	gone   bool
	leave  func() // cancels the request being served
	reads  wait
	writes wait
}

// wait is how long one read or one write may take. Moving a deadline is
// dear, so it is moved only when a sixteenth of the time before it is spent:
// that much less is what a wait may get.
type wait struct {
	limit time.Duration // 0 for ever
	moved time.Time     // when the deadline was last set
}

// due returns the deadline to be set before a wait, false when the one that is
// set will do.
func (w *wait) due() (time.Time, bool) {
	now := time.Now()
	if w.limit == 0 || now.Sub(w.moved) < w.limit/16 {
		return time.Time{}, false
	}
	w.moved = now
	return now.Add(w.limit), true
}

// connOf finds the watched connection under c, which may be wrapped in TLS; nil
// when there is none.
func connOf(c net.Conn) *conn {
	for {
		switch inner := c.(type) {
		case *conn:
			return inner
		case interface{ NetConn() net.Conn }:
			c = inner.NetConn()
		default:
			return nil
		}
	}
}

// hangup notes that the client has left and cancels what runs for it.
func (c *conn) hangup() {
	c.mu.Lock()
	c.gone = true
	leave := c.leave
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
}

// attend has leave called as soon as the client leaves, until release. It
// reports false, and does nothing, when the client has left already. Nobody may
// read from the connection in between.
func (c *conn) attend(leave func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.closed.Load() {
		return false
	}
	c.leave = leave
	c.startWatch()
	return true
}

// release ends what attend began.
func (c *conn) release() {
	c.stopWatch()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leave = nil
}

// left reports whether the client has left.
func (c *conn) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone || c.broken.Load()
}

// patience sets how long a read may wait for a byte.
func (c *conn) patience(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads.limit != d {
		c.reads = wait{limit: d}
	}
}

// stall sets how long a write may wait for the client, also one that waits now.
func (c *conn) stall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = wait{limit: d, moved: time.Now()}
	_ = c.Conn.SetWriteDeadline(c.writes.moved.Add(d)) // fails on a closed connection only
}

func (c *conn) Read(p []byte) (int, error) {
	if n := c.ahead.take(p); n > 0 {
		return n, nil
	}
	c.mu.Lock()
	if deadline, due := c.reads.due(); due {
		_ = c.Conn.SetReadDeadline(deadline) // the read reports a closed connection
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	if c.sealed {
		return n, err
	}
	return c.noted(n, err)
}

// noted is the result of a read of what the client says, once the connection
// knows of it. Nothing is read any more where the shutdown is closing.
func (c *conn) noted(n int, err error) (int, error) {
	if err != nil {
		c.broken.Store(true)
	}
	if n > 0 && c.phase.Load() != connSpoken && !c.phase.CompareAndSwap(connFresh, connSpoken) {
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if deadline, due := c.writes.due(); due {
		_ = c.Conn.SetWriteDeadline(deadline) // the write reports a closed connection
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// Close closes the connection. When the answer came before the client had sent
// its whole body, it first takes what still comes for a short while: closing
// over unread bytes resets the connection and may destroy the answer.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	defer c.forget()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.linger.Load() && half.CloseWrite() == nil {
		_ = c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.Copy(io.Discard, c.Conn)
	}
	return c.Conn.Close()
}

// drop closes the socket under whatever is going on, and cancels that. The
// server still calls Close when it notices.
func (c *conn) drop() {
	_ = c.Conn.Close()
	c.hangup()
}

// reset is drop with a reset, which a client cannot take for an end.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.drop()
}

// closeFresh closes the connection if its client has not sent a byte yet.
func (c *conn) closeFresh() {
	if c.phase.CompareAndSwap(connFresh, connClaimed) {
		c.drop()
	}
}
