package chaos

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var (
	seed     = flag.Uint64("chaos.seed", 1, "decides what breaks and what clients ask for")
	duration = flag.Duration("chaos.duration", 20*time.Second, "for how long engines break")
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's pool cleaner sleeps up to 10 s after its server has ended,
		// and its clock runs for the life of the process.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

func TestTheInvariantsHoldWhileEnginesBreak(t *testing.T) {
	r, err := Run(t.Context(), Config{Seed: *seed, Duration: *duration})
	if r != nil {
		t.Logf("\n%s", r)
	}
	require.NoError(t, err)
	assert.Empty(t, r.Violations)
	assert.Zero(t, r.More)
	// The run was one: everything that can happen did.
	for _, o := range []outcome{right, refused, broken, left, aborted} {
		assert.Positive(t, r.Outcomes[string(o)], "%s", o)
	}
	for _, m := range []manner{stays, leavesEarly, leavesLate, readsSlowly, aborts, errs} {
		assert.Positive(t, r.Manners[string(m)], "%s", m)
	}
	assert.Greater(t, len(r.Faults), len(kinds)/2, "%v", r.Faults)
	assert.Positive(t, r.Retries)
	if r.Lost < r.Took/5 { // else too little is judged
		assert.Positive(t, r.CleanOK)
		assert.Positive(t, r.Guarded)
	}
}
