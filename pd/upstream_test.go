package pd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd/patch"
)

// rawServer answers each connection by a function of the test, on a real
// listener. It counts the rooms that it was sent.
type rawServer struct {
	net.Listener
	t     *testing.T
	wg    sync.WaitGroup
	mu    sync.Mutex
	rooms map[string]int
	auth  []string
}

func newRawServer(t *testing.T, serve func(s *rawServer, conn net.Conn)) *rawServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &rawServer{Listener: l, t: t, rooms: make(map[string]int)}
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer conn.Close()
				serve(s, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.wg.Wait()
	})
	return s
}

// request reads one whole request and counts its room.
func (s *rawServer) request(r *bufio.Reader) error {
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rooms[string(body)]++
	s.auth = append(s.auth, req.Header["Authorization"]...)
	return nil
}

func (s *rawServer) worker() *Worker {
	return &Worker{ID: "decode-0", Role: Decode, URL: "http://" + s.Addr().String()}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

func upstream(t *testing.T) *Upstream {
	keep, fresh := NewTransport(time.Second, true), NewTransport(time.Second, false)
	t.Cleanup(func() {
		keep.CloseIdleConnections()
		fresh.CloseIdleConnections()
	})
	return &Upstream{Transport: keep, Fresh: fresh}
}

func newCall(t *testing.T, w *Worker, body string) *Call {
	doc, err := patch.Scan([]byte(body))
	require.NoError(t, err)
	return &Call{Worker: w, Method: "POST", Path: "/generate", Header: Outbound(nil), Body: doc.Edit().Payload()}
}

// do makes one call and reads its answer.
func do(ctx context.Context, u *Upstream, c *Call) *Error {
	resp, err := u.Do(ctx, c)
	if err != nil {
		return AsError(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		return c.ReadError(ctx, err)
	}
	return nil
}

func TestUpstreamFailures(t *testing.T) {
	closed := func() *Worker {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		return &Worker{ID: "decode-0", Role: Decode, URL: "http://" + l.Addr().String()}
	}()
	reset := func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) }
	answer := func(text string) func(*rawServer, net.Conn) {
		return func(s *rawServer, conn net.Conn) {
			if s.request(bufio.NewReader(conn)) == nil {
				_, _ = io.WriteString(conn, text)
			}
		}
	}
	f := func(name string, serve func(*rawServer, net.Conn), body string, kind Kind, status int, code string, reached bool) {
		t.Run(name, func(t *testing.T) {
			w := closed
			if serve != nil {
				w = newRawServer(t, serve).worker()
			}
			c := newCall(t, w, body)
			e := do(t.Context(), upstream(t), c)
			require.NotNil(t, e)
			assert.Equal(t, kind, e.Kind, e.Error())
			assert.Equal(t, status, e.Status)
			assert.Equal(t, code, e.Code)
			assert.Equal(t, StageDecode, e.Stage)
			assert.Equal(t, WorkerID("decode-0"), e.Worker)
			assert.Equal(t, reached, c.Reached())
			assert.NotContains(t, e.Message, "127.0.0.1", "no address is shown to a client")
			assert.NotContains(t, e.Error(), "secret")
		})
	}
	small := `{"text":"secret"}`
	large := `{"text":"` + strings.Repeat("secret ", 2<<20) + `"}`
	f("nobody listens", nil, small, Unavailable, 503, "decode_unavailable", false)
	f("reset before the body is in", func(_ *rawServer, conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 1000))
		reset(conn)
	}, large, Lost, 502, "decode_connection_lost", true)
	f("closed after the body", answer(""), small, Lost, 502, "decode_connection_lost", true)
	f("reset after the body", func(s *rawServer, conn net.Conn) {
		_ = s.request(bufio.NewReader(conn))
		reset(conn)
	}, small, Lost, 502, "decode_connection_lost", true)
	f("garbage", answer("SSH-2.0-OpenSSH\r\n\r\n"), small, Broken, 502, "decode_bad_response", true)
	for name, text := range map[string]string{
		"the request instead of an answer": small + "\r\n\r\n",
		"a status that is a prompt":        "HTTP/1.1 secret OK\r\n\r\n",
		"a length that is a prompt":        "HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
		"a header that is a prompt":        "HTTP/1.1 200 OK\r\n" + small + "\r\n\r\n",
		"a first header that is a prompt":  "HTTP/1.1 200 OK\r\n " + small + "\r\n\r\n",
	} {
		f(name, answer(text), small, Broken, 502, "decode_bad_response", true)
	}
	f("a trailer that is a prompt", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nsecret\r\n\r\n"),
		small, Lost, 502, "decode_connection_lost", true)
	f("half a head", answer("HTTP/1.1 200 OK\r\nContent-Le"), small, Broken, 502, "decode_bad_response", true)
	f("half a body", answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"), small, Lost, 502, "decode_connection_lost", true)
	f("an endless head", answer("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 2<<20)), small, Broken, 502, "decode_bad_response", true)
}

func TestUpstreamReturnsTheCauseOfACancelledContext(t *testing.T) {
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		_ = s.request(bufio.NewReader(conn))
		_, _ = io.Copy(io.Discard, conn)
	})
	why := ErrDeadline(StageDecode, "decode-0", WaitAnswer, time.Second)
	for name, want := range map[string]*Error{"an error of ours": why, "the client left": nil} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			c := newCall(t, s.worker(), `{}`)
			time.AfterFunc(50*time.Millisecond, func() {
				if want != nil {
					cancel(want)
					return
				}
				cancel(errors.New("any"))
			})
			e := do(ctx, upstream(t), c)
			if want != nil {
				assert.Same(t, want, e)
				return
			}
			assert.Equal(t, Cancelled, e.Kind)
		})
	}
}

// An engine that closes an idle connection just as it is used again: the room
// arrives once or not at all, and never a second time.
func TestStaleConnectionIsNeverReplayed(t *testing.T) {
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		r := bufio.NewReader(conn)
		if s.request(r) == nil {
			_, _ = io.WriteString(conn, okAnswer)
			_ = s.request(r) // and closes on the second
		}
	})
	u := upstream(t)
	stale := 0
	for i := range 50 {
		require.Nil(t, do(t.Context(), u, newCall(t, s.worker(), fmt.Sprintf(`{"room":"first-%d"}`, i))))
		e := do(t.Context(), u, newCall(t, s.worker(), fmt.Sprintf(`{"room":"second-%d"}`, i)))
		require.NotNil(t, e)
		require.Contains(t, []Kind{Stale, Lost}, e.Kind, e.Error()) // Lost if this machine slept for 50 ms
		if e.Kind == Stale {
			stale++
		}
	}
	assert.NotZero(t, stale)
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Len(t, s.rooms, 100)
	for room, times := range s.rooms {
		assert.Equal(t, 1, times, room)
	}
}

func TestConnectionClosedWhileIdleIsStaleOrNotUsed(t *testing.T) {
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		if s.request(bufio.NewReader(conn)) == nil {
			_, _ = io.WriteString(conn, okAnswer)
		}
	})
	u := upstream(t)
	for i := range 50 {
		e := do(t.Context(), u, newCall(t, s.worker(), fmt.Sprintf(`{"room":%d}`, i)))
		if e != nil {
			require.Equal(t, Stale, e.Kind, e.Error())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for room, times := range s.rooms {
		assert.Equal(t, 1, times, room)
	}
}

func TestFreshTransportOpensAConnectionForEachCall(t *testing.T) {
	var mu sync.Mutex
	conns := 0
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		mu.Lock()
		conns++
		mu.Unlock()
		r := bufio.NewReader(conn)
		for s.request(r) == nil {
			_, _ = io.WriteString(conn, okAnswer)
		}
	})
	u := upstream(t)
	for range 3 {
		require.Nil(t, do(t.Context(), u, newCall(t, s.worker(), `{}`)))
	}
	mu.Lock()
	assert.Equal(t, 1, conns, "kept")
	mu.Unlock()
	u.fresh = true
	for range 3 {
		require.Nil(t, do(t.Context(), u, newCall(t, s.worker(), `{}`)))
	}
	mu.Lock()
	assert.Equal(t, 4, conns)
	mu.Unlock()
}

// Chunks are how a body of unknown length begins, which not every engine takes for
// none.
func TestNoBodyIsSentAsNone(t *testing.T) {
	heads := make(chan string, 1)
	s := newRawServer(t, func(_ *rawServer, conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			var head strings.Builder
			for line := ""; line != "\r\n"; {
				var err error
				if line, err = r.ReadString('\n'); err != nil {
					return
				}
				head.WriteString(line)
			}
			heads <- head.String()
			_, _ = io.WriteString(conn, okAnswer)
		}
	})
	u := upstream(t)
	for method, lengths := range map[string]int{"POST": 1, "PUT": 1, "PATCH": 1, "GET": 0, "DELETE": 0} {
		c := newCall(t, s.worker(), `{}`)
		c.Method, c.Body = method, patch.Raw(nil)
		require.Nil(t, do(t.Context(), u, c))
		head := <-heads
		assert.NotContains(t, head, "Transfer-Encoding", method)
		assert.Equal(t, lengths, strings.Count(head, "Content-Length: 0\r\n"), method)
		assert.False(t, c.WroteAt().IsZero())
	}
}

func TestWorkerKeyReplacesTheClientsOnItsOwnCallAlone(t *testing.T) {
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		r := bufio.NewReader(conn)
		for s.request(r) == nil {
			_, _ = io.WriteString(conn, okAnswer)
		}
	})
	u := upstream(t)
	header := Outbound(http.Header{"Authorization": {"Bearer client", "Bearer twice"}})
	before := header.Clone()
	keyed := s.worker()
	keyed.APIKey = "worker-key"
	for _, w := range []*Worker{keyed, s.worker()} {
		c := newCall(t, w, `{}`)
		c.Header = header
		require.Nil(t, do(t.Context(), u, c))
	}
	assert.Equal(t, []string{"Bearer worker-key", "Bearer client", "Bearer twice"}, s.auth)
	assert.Equal(t, before, header, "the header that both legs share")

	c := newCall(t, keyed, `{}`)
	c.Header = nil
	require.Nil(t, do(t.Context(), u, c), "a call without headers")
}

func TestCallKnowsWhenItsBodyWasWritten(t *testing.T) {
	s := newRawServer(t, func(s *rawServer, conn net.Conn) {
		if s.request(bufio.NewReader(conn)) == nil {
			_, _ = io.WriteString(conn, okAnswer)
		}
	})
	c := newCall(t, s.worker(), `{}`)
	assert.True(t, c.WroteAt().IsZero())
	before := time.Now()
	require.Nil(t, do(t.Context(), upstream(t), c))
	assert.WithinRange(t, c.WroteAt(), before.Add(-time.Millisecond), time.Now())
}

func TestDeadlineDefaults(t *testing.T) {
	assert.Equal(t, Deadlines{Request: 1800 * time.Second, FirstEvent: time.Minute, Idle: 5 * time.Minute}, Deadlines{}.WithDefaults())
	own := Deadlines{Request: 1, FirstEvent: 2, Idle: 3}
	assert.Equal(t, own, own.WithDefaults())
}
