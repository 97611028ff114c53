package single_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/single"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 10 * time.Second

// engine is a scripted worker on a real loopback server.
type engine struct {
	*httptest.Server
	worker *pd.Worker

	mu     sync.Mutex
	calls  []call
	aborts []string
	left   chan struct{} // one element for each call whose client went away
}

type call struct {
	method, target, body string
	header               http.Header
}

func newEngine(t *testing.T, id pd.WorkerID, handle http.HandlerFunc) *engine {
	e := &engine{left: make(chan struct{}, 100)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.URL.Path == "/abort_request" {
			var ask struct{ Rid string }
			_ = json.Unmarshal(body, &ask)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.aborts = append(e.aborts, ask.Rid)
			return
		}
		e.mu.Lock()
		e.calls = append(e.calls, call{r.Method, r.RequestURI, string(body), r.Header})
		e.mu.Unlock()
		handle(w, r)
		if r.Context().Err() != nil {
			e.left <- struct{}{}
		}
	}))
	t.Cleanup(e.Close)
	e.worker = &pd.Worker{ID: id, Role: pd.Regular, URL: e.URL}
	return e
}

func (e *engine) got() []call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *engine) aborted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.aborts)
}

// rig is an orchestrator over scripted engines, which take turns.
type rig struct {
	t       *testing.T
	engines []*engine
	dialect *single.Dialect
	orch    *pd.Orchestrator
	reports chan pd.Report

	mu       sync.Mutex
	planned  int
	open     int
	outcomes []pd.Outcome
	progress int
}

func newRig(t *testing.T, handles ...http.HandlerFunc) *rig {
	r := &rig{t: t, reports: make(chan pd.Report, 100)}
	for i, handle := range handles {
		r.engines = append(r.engines, newEngine(t, pd.WorkerID("regular-"+string(rune('0'+i))), handle))
	}
	keep, fresh := pd.NewTransport(2*time.Second, true), pd.NewTransport(2*time.Second, false)
	panicked := func(v any, _ []byte) { assert.Fail(t, "panic", "%v", v) }
	r.dialect = &single.Dialect{Aborts: &legs.Aborter{Transport: keep}, Group: legs.Group{Panic: panicked}}
	r.orch = &pd.Orchestrator{
		Planner: r, Dialect: r.dialect, Upstream: pd.Upstream{Transport: keep, Fresh: fresh},
		Retry: pd.Retry{MaxAttempts: 5, InitialBackoff: time.Millisecond},
		Hooks: pd.Hooks{Done: func(_ *pd.Request, rep pd.Report) { r.reports <- rep }},
		Others: func(_ *pd.Request, role pd.Role, avoid []pd.WorkerID) bool {
			return role == pd.Regular && slices.ContainsFunc(r.engines, func(e *engine) bool { return !slices.Contains(avoid, e.worker.ID) })
		},
		Workers: func() (all []*pd.Worker) {
			for _, e := range r.engines {
				all = append(all, e.worker)
			}
			return all
		},
	}
	t.Cleanup(func() {
		r.dialect.Wait()
		keep.CloseIdleConnections()
		r.mu.Lock()
		defer r.mu.Unlock()
		assert.Zero(t, r.open, "every lease is given back")
	})
	return r
}

// Plan makes the rig its own planner: the first engine that is not to be avoided.
func (r *rig) Plan(_ context.Context, _ *pd.Request, n int, avoid []pd.WorkerID) ([]*pd.Plan, error) {
	assert.Equal(r.t, 1, n, "an engine handles n itself")
	at := slices.IndexFunc(r.engines, func(e *engine) bool { return !slices.Contains(avoid, e.worker.ID) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.planned++
	r.open++
	lease := pd.NewLease(r.engines[max(at, 0)].worker, func(o pd.Outcome) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
		r.outcomes = append(r.outcomes, o)
	}, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.progress++
	})
	return []*pd.Plan{pd.NewPlan(nil, lease, nil)}, nil
}

// ended waits for all leases and returns how they ended.
func (r *rig) ended() []pd.Outcome {
	r.t.Helper()
	require.Eventually(r.t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.open == 0 }, patience, time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.outcomes)
}

func request(t *testing.T, ep pd.Endpoint, target, body string) *pd.Request {
	t.Helper()
	req, err := pd.NewSingle(ep, []byte(body))
	require.NoError(t, err)
	req.Target = target
	req.Header = pd.Outbound(http.Header{"Content-Type": {"application/json"}})
	return req
}

// serve runs a request to its end.
func (r *rig) serve(ep pd.Endpoint, body string) (resp *pd.Response, answer string, err error) {
	r.t.Helper()
	return r.run(request(r.t, ep, "", body))
}

func (r *rig) run(req *pd.Request) (resp *pd.Response, answer string, err error) {
	r.t.Helper()
	resp, err = r.orch.Serve(r.t.Context(), req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

func (r *rig) report() pd.Report {
	r.t.Helper()
	select {
	case rep := <-r.reports:
		return rep
	case <-time.After(patience):
		require.FailNow(r.t, "no report")
		panic("unreachable")
	}
}

// gone waits until a call's client has left the engine.
func (e *engine) gone(t *testing.T) {
	t.Helper()
	select {
	case <-e.left:
	case <-time.After(patience):
		require.FailNow(t, "the engine is not freed")
	}
}

// The scripts.

func answers(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Engine", "e")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// streams sends the parts, each flushed; then end, if any, takes over.
func streams(end http.HandlerFunc, parts ...string) http.HandlerFunc {
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

// silent says nothing more until its client leaves.
func silent(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// reset breaks the connection.
func reset(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// begun is a plain answer that never ends.
func begun(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"text"`)
	w.(http.Flusher).Flush()
	silent(w, r)
}
