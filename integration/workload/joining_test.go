package workload

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/registry"
)

// newcomer is a prefill that is not well, and how that must show.
type newcomer struct {
	name  string
	start func(f *fleet) (*simengine.Engine, registry.Spec)
	// isolated reports whether what GET /workers shows of it says that it is given
	// no work, or not for long, and why.
	isolated func(w workerShown) bool
}

// workerShown is what is read of a worker in GET /workers.
type workerShown struct {
	ID, State, Reason, Breaker, Bootstrap string
	LastError                             struct{ Code string } `json:"last_error"`

	pairs int // of it that are avoided
}

// hasty has a decode look for a bootstrap server for a second instead of 15. None
// gives up another for being slow.
func hasty(c *simengine.Config) {
	c.TimeScale, c.Timers.HeartbeatInterval, c.Timers.HeartbeatMaxFailure = 0.05, time.Minute, 20
}

// comer starts a prefill and says where it is.
func comer(f *fleet, cfg simengine.Config, change func(e *simengine.Engine, spec *registry.Spec)) (*simengine.Engine, registry.Spec) {
	cfg.Role = simengine.Prefill
	e := f.start(hasty, cfg)
	spec := registry.Spec{URL: e.URL(), Role: pd.Prefill, Bootstrap: strconv.Itoa(e.BootstrapPort())}
	if change != nil {
		change(e, &spec)
	}
	return e, spec
}

// f64Decodes is the number of decodes in these tests.
const f64Decodes = 4

func newcomers() []newcomer {
	failing := func(simengine.Record) *simengine.Fault {
		return &simengine.Fault{Status: 500, Body: []byte(`{"message":"out of luck"}`)}
	}
	return []newcomer{
		{
			name: "is slow to load",
			start: func(f *fleet) (*simengine.Engine, registry.Spec) {
				return comer(f, simengine.Config{WarmUp: time.Hour}, nil)
			},
			isolated: func(w workerShown) bool { return w.State == "starting" && w.Reason == "health check: status 503" },
		},
		{
			name: "answers 500 to everything",
			start: func(f *fleet) (*simengine.Engine, registry.Spec) {
				return comer(f, simengine.Config{}, func(e *simengine.Engine, _ *registry.Spec) {
					e.SetFault(failing)
					for _, path := range []string{"/health", "/server_info", "/model_info"} {
						e.SetPathFault(path, failing(simengine.Record{}))
					}
				})
			},
			isolated: func(w workerShown) bool { return w.State == "starting" && w.Reason == "health check: status 500" },
		},
		{
			name: "is well and answers 500 to requests",
			start: func(f *fleet) (*simengine.Engine, registry.Spec) {
				return comer(f, simengine.Config{}, func(e *simengine.Engine, _ *registry.Spec) { e.SetFault(failing) })
			},
			isolated: func(w workerShown) bool {
				return w.State == "broken" && w.Breaker != "closed" && w.LastError.Code != ""
			},
		},
		{
			name: "serves another model",
			start: func(f *fleet) (*simengine.Engine, registry.Spec) {
				return comer(f, simengine.Config{Model: "other"}, nil)
			},
			isolated: func(w workerShown) bool {
				return w.State == "ready" && w.Reason == `there is no decode worker for its model "other"`
			},
		},
		{
			name: "has a wrong bootstrap port",
			start: func(f *fleet) (*simengine.Engine, registry.Spec) {
				return comer(f, simengine.Config{}, func(_ *simengine.Engine, spec *registry.Spec) { spec.Bootstrap = "1" })
			},
			isolated: func(w workerShown) bool {
				return w.Bootstrap == "down" && w.pairs == f64Decodes && w.LastError.Code != ""
			},
		},
	}
}

// F64: a prefill that is not well joins while requests run: next to none of them
// fails, and operators see that it is out, and why.
func TestF64APrefillThatIsNotWellJoins(t *testing.T) {
	t.Parallel()
	all := newcomers()
	if !*long {
		f64(t, 4*time.Second, 50, all...)
		return
	}
	for _, one := range all {
		t.Run(one.name, func(t *testing.T) { f64(t, 20*time.Second, 200, one) })
	}
}

// f64 has them all join while so many requests a second run, for at least so long.
func f64(t *testing.T, length time.Duration, rate int, all ...newcomer) {
	f := newFleet(t, shape{
		prefills: 4, decodes: f64Decodes, policy: "power_of_two", form: asText, cache: 64 << 10,
		config: hasty,
		options: func(o *stack.Options) {
			o.Health = func(h *health.Options) { h.Interval, h.Timeout = time.Second, 2*time.Second }
			o.Orchestrator = func(o *pd.Orchestrator) { o.Retry = pd.Retry{MaxAttempts: 5, Budget: new(pd.Budget)} }
			for _, w := range o.Workers {
				w.Model = "tiny"
			}
		},
	})
	require.Eventually(t, func() bool {
		for _, w := range f.router.Set.Workers() {
			if !f.router.Set.Serves(w.ID) {
				return false
			}
		}
		return true
	}, patience, 10*time.Millisecond, "the others serve")
	stop := make(chan struct{})
	var sent, failed atomic.Int64
	var load sync.WaitGroup
	load.Go(func() { f.steadily(rate, stop, &sent, &failed) })

	ids := map[string]newcomer{}
	for _, one := range all {
		e, spec := one.start(f)
		f.prefills = append(f.prefills, e)
		id, err := f.router.Registry.Add(spec)
		require.NoError(t, err)
		ids[string(id)] = one
	}
	began, seen := time.Now(), map[string]bool{}
	for time.Since(began) < length || (len(seen) < len(all) && time.Since(began) < patience) {
		time.Sleep(100 * time.Millisecond)
		for _, w := range f.shown() {
			if one, ok := ids[w.ID]; ok && one.isolated(w) {
				if !seen[one.name] {
					t.Logf("it %s: %+v", one.name, w)
				}
				seen[one.name] = true
			}
		}
	}
	close(stop)
	load.Wait()
	for _, one := range all {
		assert.True(t, seen[one.name], "it shows that it %s: %+v", one.name, f.shown())
	}
	t.Logf("%d of %d requests failed", failed.Load(), sent.Load())
	assert.LessOrEqual(t, 1000*failed.Load(), sent.Load(), "one of a thousand may fail")
}

// steadily sends so many requests a second until stop is closed, and waits for
// them.
func (f *fleet) steadily(rate int, stop <-chan struct{}, sent, failed *atomic.Int64) {
	pace := time.NewTicker(time.Second / time.Duration(rate))
	defer pace.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	r := rand.New(rand.NewPCG(6, 1))
	for {
		select {
		case <-stop:
			return
		case <-pace.C:
		}
		head := asText.words(r, 16)
		all.Go(func() {
			sent.Add(1)
			if _, err := f.ask(f.t.Context(), request{form: asText, head: head}); err != nil {
				f.t.Log(err)
				failed.Add(1)
			}
		})
	}
}

// shown is what GET /workers shows.
func (f *fleet) shown() []workerShown {
	resp, err := f.client.Get(f.router.URL + "/workers")
	require.NoError(f.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	var all struct {
		Workers []workerShown
		Avoided []struct{ Prefill string } `json:"avoided_pairs"`
	}
	require.NoError(f.t, json.Unmarshal(body, &all), "%s", body)
	for i := range all.Workers {
		w := &all.Workers[i]
		for _, pair := range all.Avoided {
			if pair.Prefill == w.ID {
				w.pairs++
			}
		}
	}
	return all.Workers
}
