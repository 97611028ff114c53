package router

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// engines serves streams that last until a test ends them, and counts how many
// there are.
type engines struct {
	bodies chan *fakeBody // each stream as it begins
	open   atomic.Int32
	most   atomic.Int32
}

func newEngines() *engines { return &engines{bodies: make(chan *fakeBody, 64)} }

// counted counts its stream as over when it is closed.
type counted struct {
	*fakeBody
	engines *engines
}

func (b counted) Close() error {
	b.engines.open.Add(-1)
	return b.fakeBody.Close()
}

func (e *engines) serve(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
	n := e.open.Add(1)
	for old := e.most.Load(); n > old && !e.most.CompareAndSwap(old, n); old = e.most.Load() {
	}
	body := newFakeBody(ctx)
	body.chunks <- "data: 1\n\n"
	e.bodies <- body
	return stream(counted{body, e}), nil
}

// loads waits until the App has so many requests under way and waiting.
func (r *rig) loads(underway, waiting int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return r.admission.load() == [2]int{underway, waiting}
	}, patience, time.Millisecond, "%d under way and %d waiting", underway, waiting)
}

const streaming = `{"text":"x","stream":true}`

func TestPlacesAreHeldToTheEndOfTheStreams(t *testing.T) {
	e := newEngines()
	server := serving(e.serve)
	r := start(t, Config{Server: server, MaxConcurrent: 4, QueueSize: 2})
	var running []*net.TCPConn
	var bodies []*fakeBody
	for range 4 {
		running = append(running, r.dial(post("/generate", streaming)))
		bodies = append(bodies, within(t, e.bodies, "a stream"))
	}
	var queued []*net.TCPConn
	for i := range 2 {
		queued = append(queued, r.dial(post("/generate", streaming)))
		r.loads(4, i+1)
	}
	for range 4 {
		resp, _ := r.do("POST", "/generate", streaming)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, "queue_full", resp.Header.Get("X-Tandem-Error"))
		assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	}

	left := time.Now()
	require.NoError(t, running[0].Close())
	bodies = append(bodies, within(t, e.bodies, "the place of the client that left"))
	assert.Less(t, time.Since(left), time.Second)
	r.loads(4, 1)

	close(bodies[1].chunks)
	_, got := answered(t, running[1])
	assert.Equal(t, "data: 1\n\n", got)
	bodies = append(bodies, within(t, e.bodies, "the place of the stream that ended"))
	r.loads(4, 0)
	for _, body := range bodies[2:] {
		close(body.chunks)
	}
	for _, c := range append(queued, running[2:]...) {
		_, got := answered(t, c)
		assert.Equal(t, "data: 1\n\n", got)
	}
	r.loads(0, 0)
	assert.EqualValues(t, 4, e.most.Load(), "what the engines saw at once")
	assert.EqualValues(t, 6, server.served.Load(), "what was refused reached none")
}

// busy is an App whose one place is taken, by the stream that it returns.
func busy(t *testing.T, cfg Config) (*rig, *engines, *fakeBody) {
	t.Helper()
	e := newEngines()
	cfg.Server, cfg.MaxConcurrent = serving(e.serve), 1
	r := start(t, cfg)
	r.dial(post("/generate", streaming))
	return r, e, within(t, e.bodies, "the stream")
}

func TestClientThatLeavesTheQueueReachesNoEngine(t *testing.T) {
	for name, leave := range departures {
		t.Run(name, func(t *testing.T) {
			r, e, body := busy(t, Config{QueueSize: 2})
			c := r.dial(post("/generate", streaming))
			r.loads(1, 1)
			stays := r.dial(post("/generate", streaming))
			r.loads(1, 2)
			left := time.Now()
			leave(c)
			r.loads(1, 1)
			assert.Less(t, time.Since(left), time.Second)
			close(body.chunks)
			close(within(t, e.bodies, "the next client's stream").chunks)
			_, got := answered(t, stays)
			assert.Equal(t, "data: 1\n\n", got)
			r.loads(0, 0)
			assert.Empty(t, e.bodies)
		})
	}
}

func TestQueueTimeCoversTheWaitAlone(t *testing.T) {
	bounds := make(chan string, 4)
	const wait = 100 * time.Millisecond
	r, e, body := busy(t, Config{QueueTimeout: wait, Bound: func(name string) { bounds <- name }})
	for path, want := range map[string]string{
		"/generate":            `{"error":{"message":"the router is busy: the request waited 100ms for its turn","type":"overloaded_error","code":503}}`,
		"/v1/chat/completions": `{"error":{"message":"the router is busy: the request waited 100ms for its turn","type":"overloaded_error","param":null,"code":"queue_timeout"}}`,
	} {
		resp, got := r.do("POST", path, streaming)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.Equal(t, "queue_timeout", resp.Header.Get("X-Tandem-Error"))
		assert.Equal(t, "1", resp.Header.Get("Retry-After"))
		assert.Equal(t, want, got)
		assert.Equal(t, "queue_timeout", within(t, bounds, "the bound"))
	}
	assert.Empty(t, e.bodies, "what waited too long reaches no engine")

	close(body.chunks)
	r.loads(0, 0)
	c := r.dial(post("/generate", streaming))
	body = within(t, e.bodies, "the stream")
	time.Sleep(2 * wait)
	close(body.chunks)
	resp, got := answered(t, c)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, "data: 1\n\n", got)
}

func TestFullQueueIsToldInTheEndpointsDialect(t *testing.T) {
	bounds := make(chan string, 4)
	r, _, _ := busy(t, Config{QueueSize: -1, Bound: func(name string) { bounds <- name }})
	for path, want := range map[string]string{
		"/generate":            `{"error":{"message":"the router is busy and its queue is full","type":"rate_limit_error","code":429}}`,
		"/v1/chat/completions": `{"error":{"message":"the router is busy and its queue is full","type":"rate_limit_error","param":null,"code":"queue_full"}}`,
		"/v1/completions":      `{"error":{"message":"the router is busy and its queue is full","type":"rate_limit_error","param":null,"code":"queue_full"}}`,
	} {
		resp, got := r.do("POST", path, streaming)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, want, got)
		assert.Equal(t, "queue_size", within(t, bounds, "the bound"))
	}
}

func TestRateOfRequestsIsBounded(t *testing.T) {
	r := start(t, Config{RatePerSecond: 1, QueueSize: -1, Server: serving(sizes)})
	status := make(map[int]int)
	for range 4 { // in far less than the three seconds that four tokens take
		resp, _ := r.do("POST", "/generate", text(20))
		status[resp.StatusCode]++
	}
	assert.NotZero(t, status[http.StatusOK])
	assert.NotZero(t, status[http.StatusTooManyRequests])
	assert.Len(t, status, 2)
}

func TestOnlyDataRequestsWait(t *testing.T) {
	r, e, _ := busy(t, Config{
		QueueSize: 1, Workers: fleet(engine(t, "p0", pd.Prefill, nil), engine(t, "d0", pd.Decode, nil)),
	})
	r.dial(post("/generate", streaming))
	r.loads(1, 1)
	f := func(method, path, body string, want int) {
		t.Helper()
		resp, _ := r.do(method, path, body)
		assert.Equal(t, want, resp.StatusCode, path)
	}
	f("GET", "/health", "", 200)
	f("GET", "/liveness", "", 200)
	f("GET", "/readiness", "", 200)
	f("GET", "/get_loads", "", 200)
	f("POST", "/v1/embeddings", "{}", 501)
	f("POST", "/generate", "not JSON", 400)
	f("POST", "/v1/chat/completions", `{"stream":1}`, 400)
	f("POST", "/generate", streaming, 429)
	r.loads(1, 1)
	assert.Empty(t, e.bodies)
}

func TestPlacesComeBackFromEveryEnd(t *testing.T) {
	for name, serve := range map[string]func(context.Context, *pd.Request) (*pd.Response, error){
		"an answer": func(context.Context, *pd.Request) (*pd.Response, error) { return whole("x"), nil },
		"an error": func(context.Context, *pd.Request) (*pd.Response, error) {
			return nil, &pd.Error{Kind: pd.NoWorker, Status: 503, Code: "no_worker"}
		},
		"a panic": func(context.Context, *pd.Request) (*pd.Response, error) { panic("serve") },
		"a panic in the answer": func(context.Context, *pd.Request) (*pd.Response, error) {
			return stream(panicking{make(chan struct{})}), nil
		},
		"a cut answer": func(context.Context, *pd.Request) (*pd.Response, error) {
			return stream(io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{MaxConcurrent: 1, QueueSize: -1, Server: serving(serve)})
			for range 3 {
				c := r.dial(post("/generate", "{}"))
				head := make([]byte, 12)
				_, err := io.ReadFull(c, head)
				require.NoError(t, err)
				assert.NotEqual(t, "HTTP/1.1 429", string(head))
				_ = c.Close()
				r.loads(0, 0)
			}
		})
	}
}

func TestShutdownEndsTheQueue(t *testing.T) {
	r, e, _ := busy(t, Config{Grace: -1})
	c := r.dial(post("/v1/completions", streaming))
	r.loads(1, 1)
	report := within(t, r.shutdown(true), "the shutdown")
	assert.Equal(t, 2, report.Requests)
	resp, _ := answered(t, c)
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "shutting_down", resp.Header.Get("X-Tandem-Error"))
	assert.Empty(t, e.bodies)
}

func TestQueueIsServedWhileDraining(t *testing.T) {
	r, e, body := busy(t, Config{Grace: time.Minute})
	c := r.dial(post("/generate", streaming))
	r.loads(1, 1)
	report := r.shutdown(true)
	r.refuses()
	close(body.chunks)
	close(within(t, e.bodies, "the request that waited").chunks)
	resp, _ := answered(t, c)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Zero(t, within(t, report, "the shutdown").Requests)
}

// No engine has a request that waits, so an abort of it ends here.
func TestAnAbortEndsAWait(t *testing.T) {
	for name, abort := range map[string]string{"by rid": `{"rid":"mine"}`, "of all": `{"abort_all":true}`} {
		t.Run(name, func(t *testing.T) {
			r, _, body := busy(t, Config{})
			waiting := r.dial(post("/generate", `{"text":["x","y"],"rid":["other","mine"]}`))
			r.loads(1, 1)
			resp, _ := r.do("POST", "/abort_request", `{"rid":"nobody's"}`)
			assert.NotZero(t, resp.StatusCode)
			r.loads(1, 1)
			r.do("POST", "/abort_request", abort)
			got, answer := answered(t, waiting)
			assert.Equal(t, http.StatusServiceUnavailable, got.StatusCode)
			assert.Equal(t, "request_aborted", got.Header.Get("X-Tandem-Error"))
			assert.Contains(t, answer, "aborted")
			r.loads(1, 0)
			close(body.chunks)
			r.loads(0, 0)
		})
	}
}
