package workload

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// shape is a fleet of engines and how its prefills are chosen among.
type shape struct {
	prefills, decodes int
	policy            string // of the prefills; power_of_two has the decodes
	form              form   // of the prompts
	cache             int    // tokens of prompts that a prefill remembers
	prefill, decode   simengine.Speed
	config            func(*simengine.Config) // of every engine; nil changes nothing
	options           func(*stack.Options)
}

// fleet is a router over engines, with a client.
type fleet struct {
	t        *testing.T
	router   *stack.Stack
	prefills []*simengine.Engine
	decodes  []*simengine.Engine
	client   *http.Client
}

// newFleet starts a fleet and requires, at the end of the test, that nothing is
// left of its requests.
func newFleet(t *testing.T, want shape) *fleet {
	t.Helper()
	f := &fleet{t: t, client: &http.Client{Transport: &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 128,
	}}}
	var workers []*pd.Worker
	for i := range want.prefills {
		e := f.start(want.config, simengine.Config{
			Role: simengine.Prefill, ID: fmt.Sprintf("prefill-%d", i), Speed: want.prefill,
			MaxTotalTokens: want.cache * want.form.tokens(),
		})
		f.prefills = append(f.prefills, e)
		w := stack.Worker(pd.WorkerID(e.ID()), e)
		w.KVTokens = want.cache
		workers = append(workers, w)
	}
	for i := range want.decodes {
		e := f.start(want.config, simengine.Config{
			Role: simengine.Decode, ID: fmt.Sprintf("decode-%d", i), Speed: want.decode,
			MaxTotalTokens: 8 << 20,
		})
		f.decodes = append(f.decodes, e)
		workers = append(workers, stack.Worker(pd.WorkerID(e.ID()), e))
	}
	opt := stack.Options{
		Workers: workers,
		Hooks:   pd.Hooks{Panic: func(value any, stack []byte) { assert.Fail(t, "panic", "%v\n%s", value, stack) }},
		Pools: func(o *pools.Options) {
			o.Policies = func(string) (pools.Policies, error) {
				prefill, err := byName(want.policy)
				return pools.Policies{Prefill: prefill, Decode: policy.PowerOfTwo{}}, err
			}
		},
	}
	if want.options != nil {
		want.options(&opt)
	}
	var err error
	f.router, err = stack.Start(opt)
	require.NoError(t, err)
	t.Cleanup(f.end)
	return f
}

// byName makes a policy for one pool, also the one that may need more than a name.
func byName(name string) (pools.Policy, error) {
	if name == "manual" {
		return policy.NewManual(context.Background(), policy.ManualOptions{})
	}
	return policy.ByName(name)
}

// start starts an engine that keeps no records.
func (f *fleet) start(change func(*simengine.Config), cfg simengine.Config) *simengine.Engine {
	f.t.Helper()
	cfg.ContextLength, cfg.KeepRecords, cfg.HealthDelay = 64<<10, -1, -1
	if change != nil {
		change(&cfg)
	}
	e, err := simengine.Start(cfg)
	require.NoError(f.t, err)
	return e
}

// end requires that all is given back, and ends the fleet.
func (f *fleet) end() {
	f.client.CloseIdleConnections()
	assert.Eventually(f.t, func() bool {
		held := int64(f.router.Rooms.Live())
		for _, w := range f.router.Set.Status().Workers {
			held += w.InFlight
		}
		return held == 0
	}, patience, 10*time.Millisecond, "every room and every lease is given back")
	assert.NoError(f.t, f.router.Close())
	for _, e := range append(append([]*simengine.Engine{}, f.prefills...), f.decodes...) {
		assert.NoError(f.t, e.Close())
	}
}
