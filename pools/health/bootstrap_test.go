package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

func TestABootstrapServerOutOfReachIsOnlyShown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"prefill-0:8998": refusal})
		reach := func(want pools.Reach) {
			t.Helper()
			assert.Equal(t, want, f.set.Find("prefill-0").Reach())
			f.is("prefill-0", pools.Ready, "")
		}
		reach(pools.ReachDown)
		assert.Equal(t, []string{"unreached prefill-0: true"}, f.told())
		f.pass(10 * time.Minute)
		reach(pools.ReachDown)
		assert.Empty(t, f.told(), "told once")

		f.becomes("prefill-0:8998", ok)
		f.pass(67 * time.Second)
		reach(pools.ReachUp)
		assert.Equal(t, []string{"unreached prefill-0: false"}, f.told())

		f.becomes("prefill-0:8998", silence)
		f.pass(75 * time.Second)
		reach(pools.ReachDown)
		assert.Equal(t, []string{"unreached prefill-0: true"}, f.told())
	})
}

func TestABootstrapServerThatAnswersIsNoNews(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), nil)
		assert.Equal(t, pools.ReachUp, f.set.Find("prefill-0").Reach())
		assert.Empty(t, f.told())
	})
}

func TestAnUnknownBootstrapPortIsNeverAsked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		workers := pair()
		workers[0].BootstrapPort = 0
		f := newFleet(t, health.Options{RequireBootstrap: true}, workers, nil)
		f.pass(time.Second)
		f.pairFault()
		f.pass(10 * time.Minute)
		f.is("prefill-0", pools.Ready, "")
		assert.Equal(t, pools.ReachUnknown, f.set.Find("prefill-0").Reach())
		f.mu.Lock()
		defer f.mu.Unlock()
		for host := range f.asked {
			assert.Contains(t, []string{"prefill-0", "decode-0"}, host)
		}
	})
}

func TestASilentBootstrapServerDelaysNoJoining(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"prefill-0:8998": silence})
		f.is("prefill-0", pools.Ready, "")
		f.pass(5100 * time.Millisecond)
		assert.Equal(t, pools.ReachDown, f.set.Find("prefill-0").Reach())
	})
}

func TestBothAreAskedAtTheSameTimeEachWithItsTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		late := after(4*time.Second, ok)
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"prefill-0": late, "prefill-0:8998": late})
		assert.Equal(t, f.asks("prefill-0"), f.asks("prefill-0:8998"))
		f.pass(4100 * time.Millisecond)
		f.is("prefill-0", pools.Ready, "")
		assert.Equal(t, pools.ReachUp, f.set.Find("prefill-0").Reach())
	})
}

func TestAPanicWhileABootstrapServerIsAskedIsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"prefill-0:8998": panics})
		assert.Equal(t, []string{"panic oh true", "unreached prefill-0: true"}, f.told())
		f.is("prefill-0", pools.Ready, "")
	})
}

func TestRequireBootstrap(t *testing.T) {
	const why = "health check: no good answer from the bootstrap server"
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{RequireBootstrap: true}, four(), map[string]reply{"prefill-0:8998": refusal})
		f.is("prefill-0", pools.Starting, why)
		f.is("prefill-1", pools.Ready, "")
		f.becomes("prefill-0:8998", ok)
		assert.LessOrEqual(t, f.until("prefill-0", pools.Ready), 5*time.Second)

		f.becomes("prefill-0:8998", refusal)
		f.asks("prefill-0:8998")
		f.until("prefill-0", pools.Dead)
		f.is("prefill-0", pools.Dead, why)
		assert.Len(t, f.asks("prefill-0:8998"), 3, "a refused one counts as any failure")

		f.becomes("prefill-0:8998", ok)
		assert.LessOrEqual(t, f.until("prefill-0", pools.Ready), 4*time.Second)
		for _, err := range f.probed["decode-0"] {
			assert.NoError(t, err, "decode has none")
		}
	})
}
