package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// scriptedListener fails a few times and then has nothing more.
type scriptedListener struct {
	errs   []error
	closed chan struct{}
	once   sync.Once
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	if len(l.errs) == 0 {
		<-l.closed
		return nil, net.ErrClosed
	}
	err := l.errs[0]
	l.errs = l.errs[1:]
	return nil, err
}

func (l *scriptedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *scriptedListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestAcceptOutlivesAFullTable(t *testing.T) {
	inner := &scriptedListener{closed: make(chan struct{}), errs: []error{
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)},
		&net.OpError{Op: "accept", Err: syscall.ECONNABORTED},
		errors.New("broken"),
	}}
	ln := Watch(inner)
	_, err := ln.Accept()
	assert.EqualError(t, err, "broken", "the first two have passed")
	require.NoError(t, ln.Close())
	_, err = ln.Accept()
	assert.ErrorIs(t, err, net.ErrClosed)
}

// faltering is a listener that fails before each connection.
type faltering struct {
	net.Listener
	errs  []error
	tries int
}

func (l *faltering) Accept() (net.Conn, error) {
	l.tries++
	if i := l.tries % (len(l.errs) + 1); i > 0 {
		return nil, l.errs[i-1]
	}
	return l.Listener.Accept()
}

func TestServerOutlivesAFullTable(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	full := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	a := New(Config{Workers: pair, Server: serving(sizes)})
	ended := make(chan error, 1)
	go func() {
		ended <- a.Serve(Watch(&faltering{Listener: inner, errs: []error{full, full, full}}))
	}()
	for range 3 {
		c, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(c, post("/generate", text(20)))
		require.NoError(t, err)
		resp, _ := answered(t, c)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		require.NoError(t, c.Close())
	}
	a.Shutdown(t.Context(), true)
	require.NoError(t, within(t, ended, "the server's end"))
}

func TestClosingTheListenerEndsItsPause(t *testing.T) {
	errs := make([]error, 1000) // minutes of pauses
	for i := range errs {
		errs[i] = syscall.EMFILE
	}
	ln := Watch(&scriptedListener{closed: make(chan struct{}), errs: errs})
	ended := make(chan error, 1)
	go func() {
		_, err := ln.Accept()
		ended <- err
	}()
	require.NoError(t, ln.Close())
	assert.ErrorIs(t, within(t, ended, "the accept's end"), net.ErrClosed)
}

func TestConnectionsAreWatchedAfterTheListenerHasClosed(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ln := Watch(inner)
	const clients = 20
	var served, dialed []net.Conn
	for range clients {
		c, err := net.Dial("tcp", inner.Addr().String())
		require.NoError(t, err)
		s, err := ln.Accept()
		require.NoError(t, err)
		dialed, served = append(dialed, c), append(served, s)
	}
	require.NoError(t, ln.Close())
	for i, s := range served {
		left := make(chan struct{})
		require.True(t, connOf(s).attend(func() { close(left) }))
		require.NoError(t, dialed[i].Close())
		within(t, left, "the departure")
		assert.False(t, connOf(s).left() && connOf(s).attend(func() {}), "a client that left cannot be attended")
		connOf(s).release()
		require.NoError(t, s.Close())
	}
}

func TestUnixSocketsAreServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	entered, left := make(chan struct{}), make(chan struct{})
	a := New(Config{Workers: pair, Server: serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, pd.ErrCancelled(pd.StagePlan)
	})})
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ln) }()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	_, err = io.WriteString(c, post("/generate", "{}"))
	require.NoError(t, err)
	within(t, entered, "the request")
	require.NoError(t, c.Close())
	within(t, left, "the departure")
	a.Shutdown(t.Context(), true)
	require.NoError(t, within(t, ended, "the server's end"))
}

func TestUnwatchedConnectionsAreRefused(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := New(Config{Workers: pair, Server: serving(nil)})
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(struct{ net.Listener }{inner}) }()
	c, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	assert.NoError(t, err, "closed without an answer")
	require.NoError(t, c.Close())
	a.Shutdown(t.Context(), true)
	require.NoError(t, within(t, ended, "the server's end"))
}
