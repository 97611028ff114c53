package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// first picks the first member offered.
type first struct{}

func (first) Pick(_ *pd.Request, members []*pools.Member) *pools.Member { return members[0] }

// newSet is a set of pairs whose health is looked at by the test alone.
func newSet(t *testing.T) *pools.Set {
	t.Helper()
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{}), Suspect: func() {}})
	require.NoError(t, err)
	return set
}

func newRegistry(t *testing.T, set *pools.Set, opt Options) *Registry {
	t.Helper()
	r, err := New(set, opt)
	require.NoError(t, err)
	return r
}

// pair is a prefill and a decode.
func pair() []Spec {
	return []Spec{
		{URL: "http://p:1", Role: pd.Prefill, Bootstrap: "8998", Priority: DefaultPriority, Cost: DefaultCost},
		{URL: "http://d:1", Role: pd.Decode, Priority: DefaultPriority, Cost: DefaultCost},
	}
}

// The ids of that pair.
var (
	prefillID = IDOf("http://p:1")
	decodeID  = IDOf("http://d:1")
)

// urls lists the URLs of the set's workers and their states.
func urls(set *pools.Set) map[string]pools.State {
	out := map[string]pools.State{}
	for _, w := range set.Status().Workers {
		out[w.Worker.URL] = w.State
	}
	return out
}

// states lists the ids of the set's workers and their states.
func states(set *pools.Set) map[pd.WorkerID]pools.State {
	out := map[pd.WorkerID]pools.State{}
	for _, w := range set.Status().Workers {
		out[w.ID] = w.State
	}
	return out
}

// allUp has every member serve.
func allUp(set *pools.Set) {
	for _, m := range set.Members() {
		m.Up()
	}
}

// plan takes a pair.
func plan(t *testing.T, set *pools.Set) *pd.Plan {
	t.Helper()
	plans, err := set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)
	return plans[0]
}

// view is a worker as operators see it.
func view(t *testing.T, r *Registry, id pd.WorkerID) View {
	t.Helper()
	for _, v := range r.Status().Workers {
		if v.ID == id {
			return v
		}
	}
	require.Fail(t, "no such worker", "%s", id)
	return View{}
}

// runs runs f until the test ends, which waits for it.
func runs(t *testing.T, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// answer is what an engine answers: a status and a text.
type answer struct {
	status int
	text   string
}

// engine is an engine that is well, and answers by script.
type engine struct {
	mu      sync.Mutex
	answers map[string]answer // by path; 404 for what is not there
	hold    map[string]chan struct{}
	cut     map[string]bool // the connection breaks instead of an answer
	keys    map[string]string
	bodies  []string // that were posted
}

// newEngine is an engine of a mode, and says so.
func newEngine(mode string) *engine {
	e := &engine{
		answers: map[string]answer{"/health": {200, ""}},
		hold:    map[string]chan struct{}{}, cut: map[string]bool{}, keys: map[string]string{},
	}
	e.is(mode)
	return e
}

// is has the engine say that it is of a mode now, though it was launched as
// another.
func (e *engine) is(mode string) {
	e.says("/server_info", 200, fmt.Sprintf(
		`{"served_model_name":"m","dp_size":1,"disaggregation_mode":"launch","internal_states":[{"disaggregation_mode":%q}]}`, mode))
}

func (e *engine) says(path string, status int, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[path] = answer{status, text}
}

func (e *engine) breaks(path string, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cut[path] = on
}

// waits has the engine wait with an answer until the channel is closed.
func (e *engine) waits(path string) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	gate := make(chan struct{})
	e.hold[path] = gate
	return gate
}

// posted are the bodies that the engine was sent.
func (e *engine) posted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.bodies...)
}

// key is the Authorization with which a path was last asked for.
func (e *engine) key(path string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keys[path]
}

func (e *engine) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := readAll(req.Body)
	e.mu.Lock()
	e.keys[req.URL.Path] = req.Header.Get("Authorization")
	if req.Method == http.MethodPost {
		e.bodies = append(e.bodies, body)
	}
	gate := e.hold[req.URL.Path]
	e.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-req.Context().Done():
		}
	}
	e.mu.Lock()
	a, known := e.answers[req.URL.Path]
	cut := e.cut[req.URL.Path]
	e.mu.Unlock()
	switch {
	case cut:
		panic(http.ErrAbortHandler)
	case !known:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(a.text))
	}
}

// serve is the URL of an engine on loopback.
func (e *engine) serve(t *testing.T) string {
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	return server.URL
}

// transport makes calls over loopback.
func transport(t *testing.T) *http.Transport {
	rt := pd.NewTransport(5*time.Second, true)
	t.Cleanup(rt.CloseIdleConnections)
	return rt
}

// fleet is a registry, with a monitor that looks at its workers and everything at
// work.
type fleet struct {
	*Registry
	set     *pools.Set
	monitor *health.Monitor
}

func newFleet(t *testing.T, opt Options) *fleet {
	t.Helper()
	f := &fleet{}
	f.monitor = health.New(health.Options{
		Transport: opt.Transport, Interval: 2 * time.Second, Failures: 1, Successes: 1,
		Meet: func(ctx context.Context, w *pd.Worker) func() error { return f.Meet(ctx, w) },
	})
	var err error
	f.set, err = pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{}), Suspect: f.monitor.Suspect})
	require.NoError(t, err)
	f.Registry = newRegistry(t, f.set, opt)
	runs(t, f.Run)
	runs(t, func(ctx context.Context) { f.monitor.Run(ctx, f.set) })
	return f
}

// soon waits until something holds.
func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 20*time.Second, 10*time.Millisecond, what)
}

// ready waits until a worker of a role serves.
func (f *fleet) ready(t *testing.T, id pd.WorkerID, role pd.Role) {
	t.Helper()
	soon(t, fmt.Sprintf("%s serves as %s", id, role), func() bool {
		f.monitor.Suspect() // rather than wait for it to look
		m := f.set.Find(id)
		return m != nil && m.Serves() && m.Worker.Role == role
	})
}

func readAll(r io.Reader) string {
	text, _ := io.ReadAll(r)
	return string(text)
}
