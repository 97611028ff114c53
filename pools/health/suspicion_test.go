package health_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

func TestAWorkerThatRefusedARequestIsProbedWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.pass(2 * time.Second)
		f.asks("decode-0")
		for range 2 {
			f.plan("prefill-0", "decode-0").End(pd.Echo, pd.Unreachable)
			f.pass(0)
			f.is("decode-0", pools.Dead, "refuses connections")
			assert.Empty(t, f.asks("decode-0"))
			assert.InDelta(t, 2, f.until("decode-0", pools.Ready).Seconds(), 0.5, "two good probes")
			waits(t, f.asks("decode-0"), seconds(1)...)
		}
	})
}

func TestARefusalWhileDrainingIsKnownAfterResume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.pass(2 * time.Second)
		p := f.plan("prefill-0", "decode-0")
		require.True(t, f.set.Drain("decode-0"))
		p.End(pd.Echo, pd.Unreachable)
		f.asks("decode-0")
		f.pass(1200 * time.Millisecond)
		assert.Len(t, f.asks("decode-0"), 1)
		require.True(t, f.set.Resume("decode-0"))
		assert.LessOrEqual(t, f.until("decode-0", pools.Ready), 4*time.Second)
	})
}

func TestASuspicionDuringAProbeHasAnotherSent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		workers := four()
		workers[0].BootstrapPort = 0
		f := newFleet(t, health.Options{}, workers, nil)
		f.becomes("prefill-0", after(3*time.Second, ok))
		f.asks("prefill-0")
		for f.asks("prefill-0") == nil {
			f.pass(100 * time.Millisecond)
		}
		f.pairFault()
		f.pass(4200 * time.Millisecond)
		assert.Len(t, f.asks("prefill-0"), 1)
	})
}

func TestAGoodProbeSentBeforeARefusalDoesNotCount(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{Successes: 1}, four(), nil)
		f.becomes("decode-0", after(4*time.Second, ok))
		f.asks("decode-0")
		for f.asks("decode-0") == nil { // a probe is under way
			f.pass(100 * time.Millisecond)
		}
		f.plan("prefill-0", "decode-0").End(pd.Echo, pd.Unreachable)
		f.pass(4100 * time.Millisecond)
		f.is("decode-0", pools.Dead, "refuses connections")
		f.asks("decode-0")
		f.until("decode-0", pools.Ready)
		assert.Len(t, f.asks("decode-0"), 1)
	})
}

// pairFault ends a request in which decode has lost its prefill.
func (f *fleet) pairFault() {
	f.t.Helper()
	f.plan("prefill-0", "decode-0").End(pd.Success, pd.PairFault)
	f.pass(0)
}

func TestAPairFaultHasPrefillsBootstrapServerAskedAtOnce(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after reply
		blamed        bool
		reach         pools.Reach
		told          []string
	}{
		{"it answers", ok, ok, false, pools.ReachUp, nil},
		{"it is gone", ok, refusal, true, pools.ReachDown, []string{"unreached prefill-0: true"}},
		{"it says that it is not well", ok, status(500), true, pools.ReachDown, []string{"unreached prefill-0: true"}},
		{"it never was reachable from here", refusal, refusal, false, pools.ReachDown, nil},
		{"it is back", refusal, ok, false, pools.ReachUp, []string{"unreached prefill-0: false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				f := newFleet(t, health.Options{}, four(), map[string]reply{"prefill-0:8998": c.before})
				f.pass(2 * time.Second)
				f.told()
				f.becomes("prefill-0:8998", c.after)
				f.asks("prefill-0:8998")
				f.asks("prefill-0")
				f.pairFault()
				state := pools.Ready
				if c.blamed {
					state = pools.Broken
				}
				f.is("prefill-0", state, "")
				assert.Equal(t, c.reach, f.set.Find("prefill-0").Reach())
				assert.Equal(t, c.told, f.told())
				assert.NotEmpty(t, f.asks("prefill-0:8998"))
				assert.Equal(t, c.blamed, len(f.asks("prefill-0")) == 1, "its API is asked with the blame")
			})
		})
	}
}

func TestABootstrapServerThatHasNeverAnsweredIsNotBlamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), map[string]reply{"prefill-0:8998": after(3*time.Second, refusal)})
		f.pairFault() // before anything is known of it
		f.pass(10 * time.Second)
		f.is("prefill-0", pools.Ready, "")
		assert.Equal(t, pools.ReachDown, f.set.Find("prefill-0").Reach())
	})
}

func TestASilentBootstrapServerIsBlamedAfterTheTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.becomes("prefill-0:8998", silence)
		f.becomes("prefill-0", refusal)
		f.pass(2 * time.Second)
		f.pairFault()
		f.pass(4900 * time.Millisecond)
		f.is("prefill-0", pools.Ready, "")
		f.pass(200 * time.Millisecond)
		f.is("prefill-0", pools.Dead, "refuses connections")
	})
}

func TestASuspicionWhileTheBootstrapServerIsAskedAnyway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, append(names(pd.Prefill, 1), names(pd.Decode, 100)...), nil)
		f.becomes("prefill-0:8998", after(3*time.Second, refusal))
		f.asks("prefill-0:8998")
		for f.asks("prefill-0:8998") == nil { // with the probe that was due
			f.pass(100 * time.Millisecond)
		}
		for i := range 20 {
			f.plan(pd.WorkerID(fmt.Sprintf("decode-%d", i))).End(pd.Success, pd.PairFault)
			f.pass(100 * time.Millisecond)
		}
		assert.Empty(t, f.asks("prefill-0:8998"), "one at a time")
		f.is("prefill-0", pools.Ready, "")
		f.pass(1100 * time.Millisecond)
		f.is("prefill-0", pools.Broken, "")
		f.pass(500 * time.Millisecond)
		assert.Empty(t, f.asks("prefill-0:8998"), "no sooner than a second later")
		f.pass(time.Second)
		assert.Len(t, f.asks("prefill-0:8998"), 1)
	})
}

func TestBlameIsGivenOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, append(names(pd.Prefill, 1), names(pd.Decode, 1)...), nil)
		f.becomes("prefill-0:8998", refusal)
		f.pass(2 * time.Second)
		f.pairFault()
		require.Equal(t, pools.Broken, f.state("prefill-0"))
		f.set.Find("prefill-0").Down("test")
		f.until("prefill-0", pools.Ready) // with a closed breaker
		for range 10 {
			f.pass(2 * time.Second)
			f.pairFault()
		}
		assert.Equal(t, []string{"unreached prefill-0: true"}, f.told())
		assert.Equal(t, pools.ReachDown, f.set.Find("prefill-0").Reach())
	})
}

func TestManyPairFaultsAskOnceASecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		workers := append(names(pd.Prefill, 2), names(pd.Decode, 100)...) // no pair fails often
		workers[1].BootstrapPort = 0                                      // prefill-1: only its API can be asked
		f := newFleet(t, health.Options{}, workers, nil)
		f.pass(2 * time.Second)
		for _, host := range []string{"prefill-0", "prefill-1", "prefill-0:8998"} {
			f.asks(host)
		}
		for i := range 200 {
			prefill, decode := fmt.Sprintf("prefill-%d", i%2), fmt.Sprintf("decode-%d", i/2)
			f.plan(pd.WorkerID(prefill), pd.WorkerID(decode)).End(pd.Success, pd.PairFault)
			f.pass(50 * time.Millisecond)
		}
		for _, host := range []string{"prefill-0:8998", "prefill-1"} {
			n := len(f.asks(host))
			assert.LessOrEqual(t, n, 12, host)
			assert.GreaterOrEqual(t, n, 1, host)
		}
		assert.Empty(t, f.asks("prefill-0"), "while its bootstrap server answers")
	})
}

// A process that was stopped takes connections and says nothing, on any port. That
// is not left to the interval.
func TestAWorkerThatIsSilentOnBothPortsIsOutSoon(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.pass(2 * time.Second)
		f.becomes("prefill-0:8998", silence)
		f.becomes("prefill-0", silence)
		f.pairFault()
		f.pass(25 * time.Second)
		f.is("prefill-0", pools.Dead, "health check: no answer within 5s")
	})
}
