package integration

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/integration/simengine"
	routers "github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/router"
)

// atOnce is how many tests run at a time: more than there are processors, since
// they wait most of the time, as for the second abort behind an early one.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// fasthttp's pool cleaner sleeps up to 10 s after its server has ended,
		// and its clock runs for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

const (
	// patience is how long a test waits for what must happen.
	patience = 20 * time.Second
	// soon is within what a leg must be free once the other one has failed or
	// the client has left. Half of it is promised; the other half is for a busy
	// machine. The engines' own timeouts are beyond it.
	soon = 2 * time.Second
)

// setup is what a test wants to be different from one ordinary pair.
type setup struct {
	prefills, decodes int // simulated engines; -1 for none, 1 if 0
	prefill, decode   func(*simengine.Config)
	scripts           []*script // workers beside the simulated ones

	policy       string // round_robin if empty
	workers      func([]*pd.Worker)
	pools        func(*pools.Options)
	health       func(*health.Options) // nil looks at no worker
	router       func(*router.Config)
	orchestrator func(*pd.Orchestrator)
	transport    func(*http.Transport)
	maxEvent     int

	mayDie bool // an engine may crash
}

// stack is a running router over engines: the object graph of the command.
type stack struct {
	t                 *testing.T
	url               string
	prefills, decodes []*simengine.Engine
	p, d              *simengine.Engine // the first of each, nil if there is none
	workers           []*pd.Worker

	app          *router.App
	set          *pools.Set
	rooms        *bootstrap.Rooms
	dialect      *sglang.Dialect
	orchestrator *pd.Orchestrator
	client       *http.Client

	mu      sync.Mutex
	reports []pd.Report
	legs    []pd.LegReport
	bounds  map[string]int
}

// newStack starts a stack and, at the end of the test, requires that nothing is
// left of its requests anywhere.
func newStack(t *testing.T, want setup) *stack {
	t.Helper()
	s := &stack{t: t, client: &http.Client{Transport: &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: patience}).DialContext,
	}}}
	s.startEngines(want)
	if want.workers != nil {
		want.workers(s.workers)
	}
	router, err := routers.Start(routers.Options{
		Workers: s.workers, Policy: want.policy, MaxEvent: want.maxEvent,
		Hooks: pd.Hooks{
			Done: s.done, Leg: s.leg, Bound: s.bound,
			Panic: func(value any, stack []byte) { assert.Fail(t, "panic", "%v\n%s", value, stack) },
		},
		Pools: want.pools, Health: want.health, Orchestrator: want.orchestrator, Router: want.router, Transport: want.transport,
	})
	require.NoError(t, err)
	s.url, s.app, s.set, s.rooms = router.URL, router.App, router.Set, router.Rooms
	s.dialect, s.orchestrator = router.Dialect, router.Orchestrator
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.requireNothingLeft(want)
		assert.NoError(t, router.Close())
		for _, e := range s.engines() {
			assert.NoError(t, e.Close())
		}
	})
	return s
}

func (s *stack) startEngines(want setup) {
	s.t.Helper()
	start := func(role simengine.Role, n int, change func(*simengine.Config)) (engines []*simengine.Engine) {
		if n == 0 {
			n = 1
		}
		for i := range max(n, 0) {
			// The engines' 300 s are 3 s.
			cfg := simengine.Config{Role: role, ID: fmt.Sprintf("%s-%d", role, i), TimeScale: 0.01, HealthDelay: -1}
			if change != nil {
				change(&cfg)
			}
			e, err := simengine.Start(cfg)
			require.NoError(s.t, err)
			engines = append(engines, e)
		}
		return engines
	}
	s.prefills = start(simengine.Prefill, want.prefills, want.prefill)
	s.decodes = start(simengine.Decode, want.decodes, want.decode)
	for i, e := range s.prefills {
		s.workers = append(s.workers, routers.Worker(pd.WorkerID(fmt.Sprintf("prefill-%d", i)), e))
	}
	for i, e := range s.decodes {
		s.workers = append(s.workers, routers.Worker(pd.WorkerID(fmt.Sprintf("decode-%d", i)), e))
	}
	for _, script := range want.scripts {
		s.workers = append(s.workers, script.worker)
	}
	if len(s.prefills) > 0 {
		s.p = s.prefills[0]
	}
	if len(s.decodes) > 0 {
		s.d = s.decodes[0]
	}
}

func (s *stack) done(_ *pd.Request, r pd.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, r)
}

func (s *stack) leg(_ *pd.Request, r pd.LegReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.legs = append(s.legs, r)
}

func (s *stack) bound(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bounds == nil {
		s.bounds = make(map[string]int)
	}
	s.bounds[name]++
}

// hit is how often a named bound was hit.
func (s *stack) hit(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bounds[name]
}

// report waits for the report of the n-th request that ended, from 0.
func (s *stack) report(n int) pd.Report {
	s.t.Helper()
	s.eventually(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.reports) > n }, "request %d has ended", n)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports[n]
}

// outcomes waits for n legs to have ended and says how, by worker.
func (s *stack) outcomes(n int) map[pd.WorkerID][]pd.Outcome {
	s.t.Helper()
	s.eventually(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.legs) >= n }, "%d legs have ended", n)
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[pd.WorkerID][]pd.Outcome{}
	for _, l := range s.legs {
		out[l.Worker] = append(out[l.Worker], l.Outcome)
	}
	return out
}

func (s *stack) engines() []*simengine.Engine {
	return append(append([]*simengine.Engine(nil), s.prefills...), s.decodes...)
}

// eventually waits until ok holds.
func (s *stack) eventually(ok func() bool, what string, args ...any) {
	s.t.Helper()
	require.Eventually(s.t, ok, patience, 2*time.Millisecond, append([]any{what}, args...)...)
}

// idle waits until no request holds anything: no room, no lease, no engine.
func (s *stack) idle() {
	s.t.Helper()
	s.eventually(func() bool { return s.rooms.Live() == 0 }, "every room is given back")
	for _, w := range s.set.Status().Workers {
		s.eventually(func() bool { return s.inFlight(w.ID) == 0 }, "every lease on %s is given back", w.ID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, e := range s.engines() {
		require.NoError(s.t, e.WaitIdle(ctx), "%s has nothing to do: %+v", e.ID(), e.Loads())
	}
}

func (s *stack) inFlight(id pd.WorkerID) int64 {
	for _, w := range s.set.Status().Workers {
		if w.ID == id {
			return w.InFlight
		}
	}
	return -1
}

func (s *stack) requireNothingLeft(want setup) {
	s.t.Helper()
	s.idle()
	for _, e := range s.engines() {
		if !want.mayDie {
			assert.NoError(s.t, e.Fatal(), "%s lives", e.ID())
		}
		l := e.Loads()
		assert.Zero(s.t, l.Running+l.Waiting+l.Inflight+l.UsedTokens, "%s: %+v", e.ID(), l)
	}
	assert.Zero(s.t, s.rooms.Live(), "no room is live")
	for _, w := range s.set.Status().Workers {
		assert.Zero(s.t, w.InFlight, "no lease is held on %s", w.ID)
	}
}
