package router

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// departures are the ways in which a client leaves.
var departures = map[string]func(*net.TCPConn){
	"close":      func(c *net.TCPConn) { _ = c.Close() },
	"half close": func(c *net.TCPConn) { _ = c.CloseWrite() },
	"reset": func(c *net.TCPConn) {
		_ = c.SetLinger(0)
		_ = c.Close()
	},
	"close behind a pipelined request": func(c *net.TCPConn) {
		_, _ = io.WriteString(c, post("/generate", `{"text":"next"}`))
		_ = c.Close()
	},
}

func TestClientThatLeavesCancelsAWaitingRequest(t *testing.T) {
	for name, leave := range departures {
		t.Run(name, func(t *testing.T) {
			entered, cancelled := make(chan struct{}), make(chan error, 1)
			server := serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
				close(entered)
				<-ctx.Done()
				cancelled <- ctx.Err()
				return nil, pd.ErrCancelled(pd.StagePlan)
			})
			r := start(t, Config{Server: server})
			c := r.dial(post("/generate", `{"text":"x"}`))
			within(t, entered, "the dispatch")
			leave(c)
			assert.ErrorIs(t, within(t, cancelled, "the cancellation"), context.Canceled)
			if name == "half close" {
				rest, _ := io.ReadAll(c)
				assert.Empty(t, rest, "nothing is written to a client that left")
			}
			assert.EqualValues(t, 1, server.served.Load(), "a request behind the departure is not dispatched")
		})
	}
}

func TestClientThatLeavesEndsItsStream(t *testing.T) {
	for name, leave := range departures {
		t.Run(name, func(t *testing.T) {
			bodies := make(chan *fakeBody, 1)
			server := serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
				b := newFakeBody(ctx)
				bodies <- b
				return stream(b), nil
			})
			r := start(t, Config{Server: server})
			c := r.dial(post("/generate", `{"text":"x","stream":true}`))
			body := within(t, bodies, "the body")
			body.chunks <- "data: 1\n\n"
			buf := make([]byte, 4<<10)
			for n := 0; !bytes.Contains(buf[:n], []byte("data: 1")); {
				k, err := c.Read(buf[n:])
				require.NoError(t, err)
				n += k
			}
			leave(c) // the stream is stalled: no write can notice
			within(t, body.gone, "the body's close")
			assert.EqualValues(t, 1, body.closed.Load())
			assert.EqualValues(t, 1, server.served.Load())
		})
	}
}

func TestClientThatLeavesWhileItsWriteIsBlocked(t *testing.T) {
	closed := make(chan struct{})
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		return stream(&endless{closed: closed}), nil
	})})
	c := r.dial(post("/generate", `{"stream":true}`))
	require.NoError(t, c.SetLinger(0))
	time.Sleep(200 * time.Millisecond) // the buffers fill; leaving earlier is right as well
	require.NoError(t, c.Close())
	within(t, closed, "the body's close")
}

func TestClientThatLeavesDuringUploadIsNotServed(t *testing.T) {
	for kind, head := range map[string]string{
		"sized":   "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n",
		"chunked": "POST /generate HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n",
	} {
		for name, leave := range departures {
			if name == "close behind a pipelined request" {
				continue // these bytes are the body's here
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				log := newLogLines()
				server := serving(nil)
				r := start(t, Config{Server: server, Log: zerolog.New(log)})
				c := r.dial(head + fmt.Sprintf("%20000d", 1))
				leave(c)
				assert.Contains(t, log.next(t), `"status":499`)
				assert.Zero(t, server.served.Load())
			})
		}
	}
}

func TestClientThatStaysIsNotCancelled(t *testing.T) {
	served := make(chan struct{})
	r := start(t, Config{Server: serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
		select {
		case <-ctx.Done():
			return nil, pd.ErrCancelled(pd.StagePlan)
		case <-served:
			return whole("ok"), nil
		}
	})})
	c := r.dial(post("/generate", `{"text":"x"}`))
	_, err := io.WriteString(c, post("/health", "")) // bytes, not a departure
	require.NoError(t, err)
	time.Sleep(100 * time.Millisecond)
	close(served)
	_, body := answered(t, c)
	assert.Equal(t, "ok", body)
}

func TestSlowReaderHoldsTheBodyBack(t *testing.T) {
	body := &endless{closed: make(chan struct{})}
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) { return stream(body), nil })})
	c := r.dial(post("/generate", `{"stream":true}`))
	var taken int64
	require.Eventually(t, func() bool { // until nothing is taken for a while
		before := taken
		taken = body.taken.Load()
		return taken > 0 && taken == before
	}, patience, 300*time.Millisecond)
	assert.Less(t, taken, int64(32<<20), "no more than the sockets' buffers is taken")
	require.NoError(t, c.Close())
	within(t, body.closed, "the body's close")
}

func TestClientThatTakesNothingIsCutOff(t *testing.T) {
	body := &endless{closed: make(chan struct{})}
	r := start(t, Config{
		WriteStall: 200 * time.Millisecond,
		Server:     serving(func(context.Context, *pd.Request) (*pd.Response, error) { return stream(body), nil }),
	})
	r.dial(post("/generate", `{"stream":true}`))
	within(t, body.closed, "the body's close")
}

// endless is a body without an end.
type endless struct {
	taken  atomic.Int64
	closed chan struct{}
}

func (b *endless) Read(p []byte) (int, error) {
	b.taken.Add(int64(len(p)))
	return len(p), nil
}

func (b *endless) Close() error {
	close(b.closed)
	return nil
}

// logLines is a log's writer that hands out its lines.
type logLines struct{ lines chan string }

func newLogLines() *logLines { return &logLines{lines: make(chan string, 64)} }

func (l *logLines) Write(p []byte) (int, error) {
	l.lines <- string(p)
	return len(p), nil
}

func (l *logLines) next(t *testing.T) string {
	t.Helper()
	return within(t, l.lines, "a log line")
}
