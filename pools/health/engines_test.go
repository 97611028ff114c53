package health_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// patience is far more than anything below takes.
const patience = 20 * time.Second

func startEngine(t *testing.T, cfg simengine.Config) *simengine.Engine {
	t.Helper()
	e, err := simengine.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// TestOverEngines goes through the life of a pair of engines: they warm up, one
// stands still, one is killed and comes back, a bootstrap server goes away.
func TestOverEngines(t *testing.T) {
	warm := simengine.Config{Role: simengine.Prefill, HealthDelay: -1, WarmUp: 1500 * time.Millisecond}
	prefill := startEngine(t, warm)
	warm.Role = simengine.Decode
	decode, spare := startEngine(t, warm), startEngine(t, warm)

	workers := []*pd.Worker{
		{
			ID: "prefill", Role: pd.Prefill, URL: prefill.URL(),
			BootstrapHost: prefill.Host(), BootstrapPort: prefill.BootstrapPort(),
		},
		{ID: "decode", Role: pd.Decode, URL: decode.URL()},
		{ID: "spare", Role: pd.Decode, URL: spare.URL()},
	}
	transport := pd.NewTransport(2*time.Second, true)
	t.Cleanup(transport.CloseIdleConnections)
	var mu sync.Mutex
	errs := map[pd.WorkerID][]error{}
	monitor := health.New(health.Options{
		Transport: transport, Interval: 200 * time.Millisecond, Timeout: time.Second,
		Probed: func(w *pd.Worker, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			errs[w.ID] = append(errs[w.ID], err)
		},
	})
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(picker{new(fleet)}, picker{new(fleet)}), Suspect: monitor.Suspect})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		monitor.Run(ctx, set)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	becomes := func(id pd.WorkerID, state pools.State) {
		t.Helper()
		require.Eventually(t, func() bool { return set.Find(id).State() == state }, patience, 10*time.Millisecond, "%s: %s", id, state)
	}

	for _, w := range workers {
		assert.Equal(t, pools.Starting, set.Find(w.ID).State(), w.ID)
	}
	for _, w := range workers {
		becomes(w.ID, pools.Ready)
	}
	mu.Lock()
	assert.ErrorContains(t, errs["decode"][0], "503", "it was warming up")
	mu.Unlock()
	assert.Equal(t, pools.ReachUp, set.Find("prefill").Reach())

	decode.Pause()
	becomes("decode", pools.Dead)
	assert.Equal(t, "health check: no answer within 1s", set.Status().Workers[1].Reason)
	decode.Resume()
	becomes("decode", pools.Ready)

	prefill.Kill()
	becomes("prefill", pools.Dead)
	assert.Equal(t, "refuses connections", set.Status().Workers[0].Reason)
	_, err = set.Plan(t.Context(), nil, 1, nil)
	require.Error(t, err)
	require.NoError(t, prefill.Restart())
	becomes("prefill", pools.Ready)
	plans, err := set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)

	prefill.SetBootstrap(simengine.BootstrapDown)
	plans[0].End(pd.Success, pd.PairFault)
	require.Eventually(t, func() bool { return set.Find("prefill").Reach() == pools.ReachDown }, patience, 10*time.Millisecond)
	assert.Equal(t, pools.Ready, set.Find("prefill").State(), "it is shown, and keeps nobody out")
}
