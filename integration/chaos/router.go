package chaos

import (
	"time"

	"github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// What the router is set to: its defaults, on a clock that runs so much faster
// that a run sees workers go and come back many times.
const (
	maxAttempts  = 5
	probeEvery   = 250 * time.Millisecond
	probeTimeout = time.Second
	breakerOpen  = time.Second
	breakerTrial = time.Second
)

var deadlines = pd.Deadlines{Request: 6 * time.Second, FirstEvent: 3 * time.Second, Idle: 3 * time.Second}

// recovery is how long a worker must have been well for the router to be bound
// to know it: a probe that was under way when the fault ended times out, two
// others do well; or a breaker has just opened, stays open, and a trial has its
// time. Then once more as much for a busy machine.
const recovery = 2 * max(probeTimeout+2*probeEvery, breakerOpen+breakerTrial)

// startRouter starts the router of a run.
func startRouter(workers []*pd.Worker, hooks pd.Hooks) (*stack.Stack, error) {
	return stack.Start(stack.Options{
		Workers: workers, Policy: "power_of_two", Hooks: hooks,
		Orchestrator: func(o *pd.Orchestrator) {
			o.Upstream.Deadlines = deadlines
			o.Retry = pd.Retry{MaxAttempts: maxAttempts, Budget: &pd.Budget{}}
		},
		Pools: func(o *pools.Options) {
			o.Breakers.Open, o.Breakers.Trial, o.Breakers.Window = breakerOpen, breakerTrial, 10*time.Second
		},
		Health: func(o *health.Options) { o.Interval, o.Timeout = probeEvery, probeTimeout },
	})
}
