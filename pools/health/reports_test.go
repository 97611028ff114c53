package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// The names are those of field reports: what went wrong with other routers.

// F38: workers restart, and requests are refused long after they are back.
func TestF38WorkersThatRestartAreUsedAgainByThemselves(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		opt := health.Options{Interval: 10 * time.Second}
		f := newFleet(t, opt, pair(), nil)
		f.plan().End(pd.Echo, pd.Fault) // its breaker opens
		require.Equal(t, pools.Broken, f.state("decode-0"))
		for _, host := range []string{"prefill-0", "prefill-0:8998", "decode-0"} {
			f.becomes(host, refusal)
		}
		f.until("prefill-0", pools.Dead)
		f.until("decode-0", pools.Dead)
		f.pass(3 * time.Minute)
		_, err := f.set.Plan(t.Context(), nil, 1, nil)
		require.Error(t, err)

		for _, host := range []string{"prefill-0", "prefill-0:8998", "decode-0"} {
			f.becomes(host, ok)
		}
		ready := time.Now()
		f.until("prefill-0", pools.Ready)
		f.until("decode-0", pools.Ready)
		assert.LessOrEqual(t, time.Since(ready), 11*time.Second+opt.Interval/10+100*time.Millisecond,
			"an interval and a second, with the jitter")
		f.plan().End(pd.Success, pd.Success)
	})
}

// F43: a worker that is busy does not answer in time, and is taken for dead.
func TestF43ABusyWorkerStays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		f.becomes("decode-0", after(20*time.Second, ok))
		f.tokens(6000, 100*time.Millisecond)
		f.is("decode-0", pools.Ready, "")
		f.pass(10 * time.Minute) // the last of its role, and only silent
		f.is("decode-0", pools.Ready, "")
		f.plan().End(pd.Success, pd.Success)
	})
}

func TestF43AWorkerThatIsNotWellIsTakenOut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		f.becomes("decode-0", status(503))
		assert.Less(t, f.until("decode-0", pools.Dead), 4*time.Minute)
		_, err := f.set.Plan(t.Context(), nil, 1, nil)
		assert.ErrorContains(t, err, "no_decode_available")
	})
}

// F62: a worker that cannot answer when it is added is not used until it is
// replaced.
func TestF62AWorkerJoinsWithinSecondsHoweverLongItLoads(t *testing.T) {
	for _, loading := range []reply{status(503), refusal} {
		inBubble(t, func(t *testing.T) {
			f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": loading})
			f.pass(90 * time.Second)
			require.Equal(t, pools.Starting, f.state("decode-0"))
			f.becomes("decode-0", ok)
			assert.LessOrEqual(t, f.until("decode-0", pools.Ready), 5*time.Second)
		})
	}
}

// F64: a new worker that is not well spoils the choice among the others.
func TestF64AWorkerThatNeverServesHarmsNobody(t *testing.T) {
	for _, loading := range []reply{status(500), silence, refusal, panics} {
		inBubble(t, func(t *testing.T) {
			f := newFleet(t, health.Options{}, four(), map[string]reply{"prefill-1": loading, "prefill-1:8998": loading})
			for range 600 {
				p := f.plan("prefill-1")
				assert.Equal(t, pd.WorkerID("prefill-0"), p.Prefill.Worker.ID)
				p.End(pd.Success, pd.Success)
				f.pass(100 * time.Millisecond)
			}
			assert.Equal(t, pools.Starting, f.state("prefill-1"))
			assert.NotEmpty(t, f.reason("prefill-1"))
		})
	}
}
