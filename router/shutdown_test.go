package router

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// pair is one worker of each role.
func pair() []*pd.Worker {
	return []*pd.Worker{{ID: "p0", Role: pd.Prefill}, {ID: "d0", Role: pd.Decode}}
}

// opened serves streams and hands out their bodies.
func opened(bodies chan *fakeBody) *fakeServer {
	return serving(func(ctx context.Context, req *pd.Request) (*pd.Response, error) {
		if !req.Stream {
			<-ctx.Done()
			return nil, pd.ErrCancelled(pd.StagePlan)
		}
		b := newFakeBody(ctx)
		b.chunks <- "data: 1\n\n"
		bodies <- b
		return stream(b), nil
	})
}

// becomes waits for a phase of the App.
func (r *rig) becomes(phase int32) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.phase.Load() == phase }, patience, time.Millisecond)
}

// refuses waits until the listener is closed.
func (r *rig) refuses() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		late, err := net.Dial("tcp", r.addr)
		if err == nil {
			_ = late.Close()
		}
		return err != nil
	}, patience, 5*time.Millisecond, "the listener closes")
}

// shutdown runs Shutdown beside the test.
func (r *rig) shutdown(now bool) <-chan Report {
	out := make(chan Report, 1)
	go func() { out <- r.Shutdown(context.Background(), now) }()
	return out
}

func TestSettlingIsNotReadyAndStillServes(t *testing.T) {
	workers := fleet(engine(t, "p0", pd.Prefill, nil), engine(t, "d0", pd.Decode, nil))
	r := start(t, Config{Workers: workers, Settle: time.Minute, Server: serving(sizes)})
	resp, body := r.do("GET", "/readiness", "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.JSONEq(t, `{"status":"ready","healthy_workers":2,"total_workers":2}`, body)

	report := r.shutdown(false)
	require.Eventually(t, func() bool {
		resp, body = r.do("GET", "/readiness", "")
		return resp.StatusCode == 503
	}, patience, 5*time.Millisecond)
	assert.JSONEq(t, `{"status":"not ready","reason":"draining"}`, body)
	c := r.dial(post("/generate", text(11)))
	resp, _ = answered(t, c)
	assert.Equal(t, 200, resp.StatusCode, "new requests are still served")
	assert.False(t, resp.Close)

	r.shutdown(false) // the second signal
	assert.Zero(t, within(t, report, "the shutdown").Requests)
}

func TestSettlingEndsByItself(t *testing.T) {
	r := start(t, Config{Settle: 50 * time.Millisecond, Server: serving(sizes)})
	report := within(t, r.shutdown(false), "the shutdown")
	assert.GreaterOrEqual(t, report.Elapsed, 50*time.Millisecond)
	_, err := net.Dial("tcp", r.addr)
	assert.Error(t, err, "the listener is closed")
}

func TestDrainingLetsStreamsFinish(t *testing.T) {
	bodies := make(chan *fakeBody, 1)
	r := start(t, Config{Grace: time.Minute, Server: opened(bodies)})
	c := r.dial(post("/generate", `{"stream":true}`))
	body := within(t, bodies, "the stream")
	report := r.shutdown(true)
	r.refuses()
	body.chunks <- "data: 2\n\n"
	close(body.chunks)
	_, got := answered(t, c)
	assert.Equal(t, "data: 1\n\ndata: 2\n\n", got)
	_, err := c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, io.EOF, "the connection does not live on")
	cut := within(t, report, "the shutdown")
	assert.Zero(t, cut.Requests)
	assert.Zero(t, cut.Connections)
}

func TestAnswersWhileDrainingSayConnectionClose(t *testing.T) {
	serve := make(chan struct{})
	entered := make(chan struct{})
	r := start(t, Config{Grace: time.Minute, Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		close(entered)
		<-serve
		return whole("ok"), nil
	})})
	c := r.dial(post("/generate", `{}`))
	within(t, entered, "the request")
	report := r.shutdown(true)
	r.refuses() // the server closes its listener when it has begun to drain
	close(serve)
	resp, body := answered(t, c)
	assert.Equal(t, "ok", body)
	assert.True(t, resp.Close)
	within(t, report, "the shutdown")
}

func TestSilentConnectionsDoNotHoldTheShutdown(t *testing.T) {
	r := start(t, Config{Grace: time.Minute, Server: serving(sizes)})
	silent := r.dial("")
	idle := r.dial(post("/generate", text(11)))
	_, _ = answered(t, idle)
	require.Eventually(t, func() bool { return r.connections() == 2 }, patience, time.Millisecond)
	report := within(t, r.shutdown(true), "the shutdown")
	assert.Less(t, report.Elapsed, 3*time.Second, "the server alone would wait 5 s for the silent one")
	for _, c := range []net.Conn{silent, idle} {
		_, err := c.Read(make([]byte, 1))
		assert.Error(t, err)
	}
}

func TestGraceEndsStreamsWithAnEventOfTheirDialect(t *testing.T) {
	const v1 = `data: {"error":{"message":"the router is shutting down","type":"overloaded_error","param":null,"code":"shutting_down"}}` + "\n\n"
	const native = `data: {"error":{"message":"the router is shutting down","type":"overloaded_error","code":503}}` + "\n\n"
	for _, c := range []struct{ name, path, sent, want string }{
		{"/generate", "/generate", "", native},
		{"chat", "/v1/chat/completions", "", v1},
		{"completions", "/v1/completions", "", v1},
		{"in the middle of an event", "/generate", "data: {", "data: {\n\n" + native},
		{"behind one byte", "/generate", "d", "d\n\n" + native},
		{"behind an empty line", "/generate", "\n", "\n" + native},
	} {
		t.Run(c.name, func(t *testing.T) {
			bodies := make(chan *fakeBody, 1)
			r := start(t, Config{Grace: 50 * time.Millisecond, Server: opened(bodies)})
			resp := r.open("POST", c.path, `{"stream":true}`)
			defer resp.Body.Close()
			body := within(t, bodies, "the stream")
			if c.sent != "" {
				body.chunks <- c.sent
			}
			buf := make([]byte, len("data: 1\n\n")+len(c.sent))
			_, err := io.ReadFull(resp.Body, buf)
			require.NoError(t, err)

			report := r.shutdown(true)
			rest, err := io.ReadAll(resp.Body)
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "the end is broken")
			assert.Equal(t, strings.TrimPrefix(c.want, c.sent), string(rest))
			cut := within(t, report, "the shutdown")
			assert.Equal(t, 1, cut.Requests)
			assert.Zero(t, cut.Connections)
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
}

func TestGraceEndsWaitingRequestsWithAnError(t *testing.T) {
	r := start(t, Config{Grace: 50 * time.Millisecond, Server: opened(nil)})
	c := r.dial(post("/v1/completions", `{"prompt":"x"}`))
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.visits) == 1
	}, patience, time.Millisecond)
	report := r.shutdown(true)
	resp, _ := answered(t, c)
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "shutting_down", resp.Header.Get("X-Tandem-Error"))
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.True(t, resp.Close)
	assert.Equal(t, 1, within(t, report, "the shutdown").Requests)
}

func TestGraceEndsClientsThatTakeNothing(t *testing.T) {
	body := &endless{closed: make(chan struct{})}
	r := start(t, Config{
		Grace:  50 * time.Millisecond,
		Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) { return stream(body), nil }),
	})
	r.dial(post("/generate", `{"stream":true}`))
	require.Eventually(t, func() bool { return body.taken.Load() > 0 }, patience, time.Millisecond)
	report := within(t, r.shutdown(true), "the shutdown")
	assert.Equal(t, 1, report.Requests)
	within(t, body.closed, "the body's close")
}

func TestGraceEndsUploads(t *testing.T) {
	r := start(t, Config{Grace: 50 * time.Millisecond, Server: serving(nil)})
	r.dial("POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
	require.Eventually(t, func() bool {
		r.memory.mu.Lock()
		defer r.memory.mu.Unlock()
		return r.memory.used == 100
	}, patience, time.Millisecond)
	report := within(t, r.shutdown(true), "the shutdown")
	assert.Equal(t, Report{Requests: 0, Connections: 1, Elapsed: report.Elapsed}, report)
}

func TestRequestWhoseBodyOutlastsTheGraceDoesNotBegin(t *testing.T) {
	server := serving(nil)
	r := start(t, Config{Grace: 10 * time.Millisecond, Server: server})
	body := text(100)
	c := r.dial(strings.TrimSuffix(post("/generate", body), body[1:]))
	require.Eventually(t, func() bool {
		r.memory.mu.Lock()
		defer r.memory.mu.Unlock()
		return r.memory.used == 100
	}, patience, time.Millisecond)
	report := r.shutdown(true)
	r.becomes(cutting)
	_, err := io.WriteString(c, body[1:]) // within the second before the connection is closed
	require.NoError(t, err)
	resp, _ := answered(t, c)
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "shutting_down", resp.Header.Get("X-Tandem-Error"))
	assert.True(t, resp.Close)
	assert.Zero(t, server.served.Load())
	assert.Zero(t, within(t, report, "the shutdown").Requests)
}

func TestSecondCallEndsTheGrace(t *testing.T) {
	bodies := make(chan *fakeBody, 1)
	r := start(t, Config{Settle: time.Minute, Grace: time.Minute, Server: opened(bodies)})
	resp := r.open("POST", "/generate", `{"stream":true}`)
	defer resp.Body.Close()
	within(t, bodies, "the stream")
	first := r.shutdown(false)
	r.becomes(settling)
	second := within(t, r.shutdown(false), "the second call")
	assert.Equal(t, 1, second.Requests)
	assert.Equal(t, second, within(t, first, "the first call"), "both report the same")
}

func TestServeAfterShutdownDoesNotServe(t *testing.T) {
	a := New(Config{Workers: pair, Server: serving(nil)})
	a.Shutdown(t.Context(), true)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, a.Serve(ln))
	_, err = net.Dial("tcp", ln.Addr().String())
	assert.Error(t, err)
}
