package router

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// engine is a worker that answers by path; unknown paths are 404.
func engine(t *testing.T, id pd.WorkerID, role pd.Role, answers map[string]string) *pd.Worker {
	t.Helper()
	return engineFunc(t, id, role, func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	})
}

func engineFunc(t *testing.T, id pd.WorkerID, role pd.Role, h http.HandlerFunc) *pd.Worker {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return &pd.Worker{ID: id, Role: role, URL: s.URL}
}

// dead is a worker that nobody listens for. Its port is the near end of a
// connection, so that no other server takes it.
func dead(t *testing.T, id pd.WorkerID, role pd.Role) *pd.Worker {
	t.Helper()
	far, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	near, err := net.Dial("tcp", far.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() })
	return &pd.Worker{ID: id, Role: role, URL: "http://" + near.LocalAddr().String()}
}

// fleet makes the Workers function of fixed workers.
func fleet(workers ...*pd.Worker) func() []*pd.Worker {
	return func() []*pd.Worker { return workers }
}

// hostOf is the address that an answer must not show.
func hostOf(w *pd.Worker) string { return strings.TrimPrefix(w.URL, "http://") }

func TestLivenessIsStatic(t *testing.T) {
	r := start(t, Config{})
	for _, path := range []string{"/health", "/liveness", "/ping"} {
		resp, body := r.do("GET", path, "")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, "OK", body)
		resp, body = r.do("HEAD", path, "")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Empty(t, body)
	}
}

func TestReadinessNeedsAWorkerInBothRoles(t *testing.T) {
	f := func(status int, want string, healthy string, workers ...*pd.Worker) {
		t.Helper()
		r := start(t, Config{
			Workers: fleet(workers...),
			Healthy: func(_ context.Context, w *pd.Worker) bool { return strings.Contains(healthy, string(w.ID)) },
		})
		resp, body := r.do("GET", "/readiness", "")
		assert.Equal(t, status, resp.StatusCode)
		assert.JSONEq(t, want, body)
	}
	p, d, d1 := pair()[0], pair()[1], &pd.Worker{ID: "d1", Role: pd.Decode}
	const not = `{"status":"not ready","reason":"insufficient healthy workers"}`
	f(200, `{"status":"ready","healthy_workers":2,"total_workers":2}`, "p0 d0", p, d)
	f(200, `{"status":"ready","healthy_workers":2,"total_workers":3}`, "p0 d1", p, d, d1)
	f(503, not, "p0 d0", p)
	f(503, not, "p0 d0", d)
	f(503, not, "p0", p, d)
	f(503, not, "")
}

func TestReadinessAsksWhetherWorkersTakeAConnection(t *testing.T) {
	f := func(status int, want string, workers ...*pd.Worker) {
		t.Helper()
		r := start(t, Config{Workers: fleet(workers...)})
		resp, body := r.do("GET", "/readiness", "")
		assert.Equal(t, status, resp.StatusCode)
		assert.JSONEq(t, want, body)
	}
	p0, d0 := engine(t, "p0", pd.Prefill, nil), engine(t, "d0", pd.Decode, nil)
	p1, d1 := dead(t, "p1", pd.Prefill), dead(t, "d1", pd.Decode)
	const not = `{"status":"not ready","reason":"insufficient healthy workers"}`
	f(200, `{"status":"ready","healthy_workers":2,"total_workers":4}`, p0, p1, d0, d1)
	f(503, not, p1, d0)
	f(503, not, p0, d1)
}

func TestHealthGenerateWantsEveryWorkerToProveItself(t *testing.T) {
	var probes atomic.Int32
	proves := func(id pd.WorkerID, role pd.Role) *pd.Worker {
		return engineFunc(t, id, role, func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "GET /health_generate", r.Method+" "+r.URL.String())
			probes.Add(1)
		})
	}
	p0, d0, d1 := proves("p0", pd.Prefill), proves("d0", pd.Decode), proves("d1", pd.Decode)
	gone, broken := dead(t, "d2", pd.Decode), engine(t, "d3", pd.Decode, nil)
	f := func(status, asked int, want string, workers ...*pd.Worker) {
		t.Helper()
		probes.Store(0)
		r := start(t, Config{Workers: fleet(workers...)})
		resp, body := r.do("GET", "/health_generate", "")
		assert.Equal(t, status, resp.StatusCode)
		assert.JSONEq(t, want, body)
		assert.EqualValues(t, asked, probes.Load(), "workers that were asked")
		assert.NotContains(t, body, hostOf(gone))
	}
	f(200, 3, `{"status":"healthy","workers":[
		{"worker":"p0","role":"prefill","status":200},
		{"worker":"d0","role":"decode","status":200},
		{"worker":"d1","role":"decode","status":200}]}`, p0, d0, d1)
	f(503, 2, `{"status":"unhealthy","workers":[
		{"worker":"p0","role":"prefill","status":200},
		{"worker":"d0","role":"decode","status":200},
		{"worker":"d2","role":"decode","error":"cannot be reached"},
		{"worker":"d3","role":"decode","status":404,"error":"answered with status 404"}]}`, p0, d0, gone, broken)
	f(503, 1, `{"status":"unhealthy","workers":[{"worker":"p0","role":"prefill","status":200}]}`, p0)
	f(503, 1, `{"status":"unhealthy","workers":[{"worker":"d0","role":"decode","status":200}]}`, d0)
	f(503, 0, `{"status":"unhealthy","workers":[]}`)
}

func TestReadinessNeedsAPairOfOneModel(t *testing.T) {
	f := func(name string, status int, workers ...*pd.Worker) {
		t.Helper()
		for i, w := range workers {
			w.ID = pd.WorkerID(rune('a' + i))
		}
		r := start(t, Config{Workers: fleet(workers...), Healthy: func(context.Context, *pd.Worker) bool { return true }})
		resp, body := r.do("GET", "/readiness", "")
		assert.Equal(t, status, resp.StatusCode, "%s: %s", name, body)
	}
	prefill := func(model string) *pd.Worker { return &pd.Worker{Role: pd.Prefill, Model: model} }
	decode := func(model string) *pd.Worker { return &pd.Worker{Role: pd.Decode, Model: model} }
	f("one of each, of two models", 503, prefill("x"), decode("y"))
	f("a pair, and half of another", 200, prefill("x"), decode("y"), decode("x"))
	f("of no known model", 200, prefill(""), decode(""))
	f("a prefill that serves any", 200, prefill(""), decode("y"))
	f("two prefills", 503, prefill("x"), prefill(""))
	f("nobody", 503)
}

func TestAnEngineIsAskedOnceForAllItsRanks(t *testing.T) {
	var asked atomic.Int64
	w := engineFunc(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`{"loads":[{"num_running_reqs":2},{"num_running_reqs":1}]}`))
	})
	var ranks []*pd.Worker
	for rank := range 4 {
		one := *w
		one.ID, one.Rank = w.ID+pd.WorkerID("@"+string(rune('0'+rank))), &rank
		ranks = append(ranks, &one)
	}
	r := start(t, Config{Workers: fleet(ranks...)})
	_, body := r.do("GET", "/get_loads", "")
	assert.JSONEq(t, `{"workers":[{"worker":"prefill-0","role":"prefill","load":3}]}`, body)
	assert.EqualValues(t, 1, asked.Load())
}
