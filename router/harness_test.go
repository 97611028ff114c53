package router

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's pool cleaner sleeps up to 10 s after its server has ended,
		// and its clock runs for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// fakeServer is a Server made of two functions.
type fakeServer struct {
	serve  func(context.Context, *pd.Request) (*pd.Response, error)
	abort  func(context.Context, pd.AbortRequest) (*pd.AbortResult, error)
	served atomic.Int32
}

func (s *fakeServer) Serve(ctx context.Context, req *pd.Request) (*pd.Response, error) {
	s.served.Add(1)
	return s.serve(ctx, req)
}

func (s *fakeServer) Abort(ctx context.Context, a pd.AbortRequest) (*pd.AbortResult, error) {
	return s.abort(ctx, a)
}

// serving makes a fakeServer of one function.
func serving(serve func(context.Context, *pd.Request) (*pd.Response, error)) *fakeServer {
	return &fakeServer{serve: serve}
}

// whole is an answer of known length.
func whole(body string) *pd.Response {
	return &pd.Response{
		Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Length: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}
}

// stream is an event stream over body.
func stream(body io.ReadCloser) *pd.Response {
	return &pd.Response{
		Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Length: -1, Stream: true, Body: body,
	}
}

// fakeBody is a body that a test feeds, and whose reads end with its context.
type fakeBody struct {
	ctx    context.Context
	chunks chan string // closed for a clean end
	rest   []byte
	closed atomic.Int32
	once   sync.Once
	gone   chan struct{} // closed by Close
}

func newFakeBody(ctx context.Context) *fakeBody {
	return &fakeBody{ctx: ctx, chunks: make(chan string, 64), gone: make(chan struct{})}
}

func (b *fakeBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 {
		select {
		case chunk, ok := <-b.chunks:
			if !ok {
				return 0, io.EOF
			}
			b.rest = []byte(chunk)
		case <-b.ctx.Done():
			return 0, pd.ErrCancelled(pd.StageClient)
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *fakeBody) Close() error {
	b.closed.Add(1)
	b.once.Do(func() { close(b.gone) })
	return nil
}

// rig is an App on a loopback listener.
type rig struct {
	*App
	t    *testing.T
	addr string
}

// start runs an App until the end of the test.
func start(t *testing.T, cfg Config) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return startOn(t, ln, cfg)
}

// startOn runs an App on ln until the end of the test.
func startOn(t *testing.T, ln net.Listener, cfg Config) *rig {
	t.Helper()
	if cfg.Workers == nil {
		cfg.Workers = func() []*pd.Worker { return nil }
	}
	if cfg.Transport == nil {
		transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
		t.Cleanup(transport.CloseIdleConnections)
		cfg.Transport = transport
	}
	r := &rig{App: New(cfg), t: t, addr: ln.Addr().String()}
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r.Shutdown(ctx, true)
		assert.NoError(t, <-ended)
		assert.Equal(t, [2]int{}, r.admission.load(), "every place is given back, the queue is empty")
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Empty(t, r.visits, "no request is left")
		assert.Empty(t, r.conns, "no connection is left")
		assert.Zero(t, r.memory.used, "all body memory is given back")
	})
	return r
}

// do sends one request over a connection of its own and reads the answer whole.
func (r *rig) do(method, path, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	resp := r.open(method, path, body, header...)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp, string(got)
}

// open sends one request and leaves the answer's body to the caller.
func (r *rig) open(method, path, body string, header ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.addr+path, strings.NewReader(body))
	require.NoError(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	r.t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(req)
	require.NoError(r.t, err)
	return resp
}

// dial opens a raw connection and sends text on it.
func (r *rig) dial(text string) *net.TCPConn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	require.NoError(r.t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, text)
	require.NoError(r.t, err)
	return c.(*net.TCPConn)
}

// post is a raw POST with a Content-Length.
func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// answered reads one answer from a raw connection.
func answered(t *testing.T, c net.Conn) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

// within fails the test when ch does not deliver in time.
func within[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		require.FailNow(t, "timeout", "waiting for %s", what)
		panic("unreachable")
	}
}
