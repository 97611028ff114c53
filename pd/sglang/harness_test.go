package sglang_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // the tests wait far more than they compute
	goleak.VerifyTestMain(m)
}

// engine is a scripted worker on a real loopback server.
type engine struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []map[string]any
	raw    []string
	aborts []string
	heads  []http.Header
	told   chan string // every rid of an abort
	handle http.HandlerFunc
	closed chan struct{} // one element for each call whose client went away
}

// rig is an orchestrator over one scripted pair.
type rig struct {
	t               *testing.T
	prefill, decode *engine
	orch            *pd.Orchestrator
	dialect         *sglang.Dialect
	rooms           *bootstrap.Rooms
	outcomes        chan [2]pd.Outcome
	reports         chan pd.Report
	pworker         *pd.Worker
	dworker         *pd.Worker

	mu       sync.Mutex
	heard    []string // by leases and plans, in order, but for progress
	progress map[pd.Role]int
	avoided  [][]pd.WorkerID // of each plan
}

func newEngine(t *testing.T, handle http.HandlerFunc) *engine {
	e := &engine{handle: handle, closed: make(chan struct{}, 100), told: make(chan string, 100)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var fields map[string]any
		_ = json.Unmarshal(body, &fields)
		if r.URL.Path == "/abort_request" {
			e.mu.Lock()
			e.aborts = append(e.aborts, fields["rid"].(string))
			e.mu.Unlock()
			e.told <- fields["rid"].(string)
			return
		}
		e.mu.Lock()
		e.bodies = append(e.bodies, fields)
		e.raw = append(e.raw, string(body))
		e.heads = append(e.heads, r.Header)
		e.mu.Unlock()
		e.handle(w, r)
		if r.Context().Err() != nil {
			e.closed <- struct{}{}
		}
	}))
	t.Cleanup(e.Server.Close)
	return e
}

func (e *engine) calls() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.bodies)
}

func (e *engine) body(i int) map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bodies[i]
}

// text is a call's body as it came.
func (e *engine) text(i int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.raw[i]
}

func (e *engine) head(i int) http.Header {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heads[i]
}

func (e *engine) aborted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.aborts...)
}

// wasTold waits for an abort of each rid.
func (e *engine) wasTold(t *testing.T, rids ...any) {
	t.Helper()
	for _, rid := range rids {
		assert.Eventually(t, func() bool { return slices.Contains(e.aborted(), rid.(string)) }, 3*time.Second, time.Millisecond, "abort of %v", rid)
	}
}

// wasClosed waits for one call's client to have gone.
func (e *engine) wasClosed(t *testing.T) {
	t.Helper()
	select {
	case <-e.closed:
	case <-time.After(3 * time.Second):
		t.Fatal("the leg was not closed")
	}
}

func newRig(t *testing.T, prefill, decode http.HandlerFunc) *rig {
	r := &rig{
		t: t, prefill: newEngine(t, prefill), decode: newEngine(t, decode),
		rooms: new(bootstrap.Rooms), outcomes: make(chan [2]pd.Outcome, 100), reports: make(chan pd.Report, 100),
		progress: make(map[pd.Role]int),
	}
	r.pworker = &pd.Worker{ID: "prefill-0", Role: pd.Prefill, URL: r.prefill.URL, BootstrapHost: "10.0.0.5", BootstrapPort: 8998}
	r.dworker = &pd.Worker{ID: "decode-0", Role: pd.Decode, URL: r.decode.URL}
	keep, fresh := pd.NewTransport(2*time.Second, true), pd.NewTransport(2*time.Second, false)
	dialect := &sglang.Dialect{Rooms: r.rooms, Aborts: &legs.Aborter{Transport: keep}}
	r.dialect = dialect
	r.orch = &pd.Orchestrator{
		Planner: r, Dialect: dialect,
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh},
		Hooks:    pd.Hooks{Done: func(_ *pd.Request, rep pd.Report) { r.reports <- rep }},
		Workers:  func() []*pd.Worker { return []*pd.Worker{r.pworker, r.dworker} },
	}
	t.Cleanup(func() {
		dialect.Wait()
		keep.CloseIdleConnections()
		assert.Zero(t, r.rooms.Live(), "rooms given back")
	})
	return r
}

// Plan makes the rig its own planner.
func (r *rig) Plan(_ context.Context, _ *pd.Request, n int, avoid []pd.WorkerID) ([]*pd.Plan, error) {
	r.mu.Lock()
	r.avoided = append(r.avoided, slices.Clone(avoid))
	r.mu.Unlock()
	plans := make([]*pd.Plan, n)
	for i := range plans {
		plans[i] = pd.NewPlan(r.lease(r.pworker), r.lease(r.dworker), func(p, d pd.Outcome) {
			r.hear("plan " + p.String() + " " + d.String())
			r.outcomes <- [2]pd.Outcome{p, d}
		})
	}
	return plans, nil
}

func (r *rig) lease(w *pd.Worker) *pd.Lease {
	end := func(o pd.Outcome) { r.hear(w.Role.String() + " " + o.String()) }
	return pd.NewLease(w, end, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.progress[w.Role]++
	})
}

func (r *rig) hear(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, what)
}

func (r *rig) progressed(role pd.Role) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress[role]
}

func (r *rig) request(ep pd.Endpoint, body string) *pd.Request {
	r.t.Helper()
	req, err := pd.NewRequest(ep, []byte(body))
	require.NoError(r.t, err)
	req.Header = pd.Outbound(http.Header{"Content-Type": {"application/json"}})
	return req
}

// serve runs a request to its end.
func (r *rig) serve(ctx context.Context, ep pd.Endpoint, body string) (status int, answer string, err error) {
	r.t.Helper()
	resp, err := r.orch.Serve(ctx, r.request(ep, body))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.Status, string(b), err
}

// ended waits for both legs' outcomes.
func (r *rig) ended() (prefill, decode pd.Outcome) {
	r.t.Helper()
	select {
	case o := <-r.outcomes:
		return o[0], o[1]
	case <-time.After(3 * time.Second):
		r.t.Fatal("the plan was not ended")
		return 0, 0
	}
}

// called waits until both engines have a call each.
func (r *rig) called() {
	r.t.Helper()
	assert.Eventually(r.t, func() bool { return r.prefill.calls() > 0 && r.decode.calls() > 0 }, 3*time.Second, time.Millisecond)
}

func asError(t *testing.T, err error) *pd.Error {
	t.Helper()
	var e *pd.Error
	require.Error(t, err)
	require.True(t, errors.As(err, &e), "%v", err)
	return e
}

// The scripts.

func answers(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func jsonAnswer(status int, body string) http.HandlerFunc {
	return answers(status, "application/json", body)
}

func after(d time.Duration, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
			h(w, r)
		case <-r.Context().Done():
		}
	}
}

// together holds both scripts back until both engines have their call.
func together(prefill, decode http.HandlerFunc) (_, _ http.HandlerFunc) {
	var both sync.WaitGroup
	both.Add(2)
	hold := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			both.Done()
			both.Wait()
			h(w, r)
		}
	}
	return hold(prefill), hold(decode)
}

// silent accepts the call and answers nothing until its client leaves.
func silent(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// sends streams the parts, each flushed; then end, if any, takes over.
func sends(end http.HandlerFunc, parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range parts {
			_, _ = io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
		if end != nil {
			end(w, r)
		}
	}
}

// unending begins a plain answer and goes on when its client has left.
func unending(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"text"`)
		w.(http.Flusher).Flush()
		silent(w, r)
	}
}

// upgrade takes the connection for another protocol, in which it says nothing.
func upgrade(w http.ResponseWriter, _ *http.Request) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
	_ = buf.Flush()
	_, _ = buf.ReadByte() // until its client leaves
}

// reset breaks the connection.
func reset(_ http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }

// halfRefusal answers 500 with a body that never ends.
func halfRefusal(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = io.WriteString(w, `{"error":`)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}
