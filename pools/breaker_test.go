package pools_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// opensAt runs calls that end so on decode until its breaker opens, and returns
// how many that took; 0 if it is closed after all of them.
func opensAt(t *testing.T, set *pools.Set, outcomes ...pd.Outcome) int {
	t.Helper()
	for i, o := range outcomes {
		run(t, set, o)
		if breakerOf(set, "decode-0") == "open" {
			return i + 1
		}
	}
	return 0
}

func TestBreakerOpensOnTheWorkersOwnFaults(t *testing.T) {
	const (
		ok   = pd.Success
		bad  = pd.Fault
		gone = pd.Unreachable
		left = pd.Left
	)
	f := func(name string, at int, outcomes ...pd.Outcome) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 3}})
			assert.Equal(t, at, opensAt(t, set, outcomes...))
		})
	}
	f("three in a row", 3, bad, bad, bad)
	f("two are too few", 0, bad, bad)
	f("one that is not there fails, where nobody looks at health", 3, gone, gone, gone)
	f("in a row after any number that did well", 7, ok, ok, ok, ok, bad, bad, bad)
	f("with nothing known in between", 5, bad, left, bad, left, bad)
	f("half of all", 6, ok, bad, ok, bad, ok, bad)
	f("less than half of all", 0, ok, ok, bad, ok, ok, bad, ok, ok, bad, ok, ok, bad)
}

func TestBreakerCountsNothingElse(t *testing.T) {
	for _, o := range []pd.Outcome{pd.Unused, pd.ClientFlaw, pd.Overloaded, pd.Left, pd.Echo, pd.PairFault} {
		set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
		for range 2 {
			one(t, set).End(o, o)
		}
		for _, m := range set.Members() {
			well, faults, _ := pools.Verdicts(m)
			assert.Zero(t, well, "%s on %s", o, m.Worker.ID)
			assert.Zero(t, faults, "%s on %s", o, m.Worker.ID)
		}
	}
}

func TestBreakerOfPrefillIsItsOwn(t *testing.T) {
	set := newSet(t, 2, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
	one(t, set).End(pd.Fault, pd.Echo)
	assert.Equal(t, "open", breakerOf(set, "prefill-0"))
	assert.Equal(t, "closed", breakerOf(set, "decode-0"))
	assert.Equal(t, pd.WorkerID("prefill-1"), one(t, set).Prefill.Worker.ID)
}

func TestBreakerForgetsWhatIsOlderThanItsWindow(t *testing.T) {
	faults := func(n int) []pd.Outcome { return slices.Repeat([]pd.Outcome{pd.Fault}, n) }
	// Each step waits and then makes calls that fail; the breaker opens with the
	// last of them or not at all.
	type step struct {
		wait  time.Duration
		calls int
	}
	f := func(name string, opens bool, steps ...step) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set := newSet(t, 1, 1, pools.Options{}) // 10 in 120 s
				for _, s := range steps[:len(steps)-1] {
					time.Sleep(s.wait)
					assert.Zero(t, opensAt(t, set, faults(s.calls)...))
				}
				last := steps[len(steps)-1]
				time.Sleep(last.wait)
				at := opensAt(t, set, faults(last.calls)...)
				if opens {
					assert.Equal(t, last.calls, at)
				} else {
					assert.Zero(t, at)
				}
			})
		})
	}
	f("all at once", true, step{0, 10})
	f("within the window", true, step{0, 5}, step{60 * time.Second, 5})
	f("the old ones are gone", false, step{0, 9}, step{121 * time.Second, 9})
	f("and the new ones count", true, step{0, 9}, step{121 * time.Second, 9}, step{0, 1})
	f("the window slides", false, step{0, 5}, step{60 * time.Second, 4}, step{65 * time.Second, 5})
	f("and holds what is in it", true, step{0, 5}, step{60 * time.Second, 4}, step{65 * time.Second, 6})
	f("never more than nine in any window", false,
		step{0, 9}, step{121 * time.Second, 9}, step{121 * time.Second, 9}, step{121 * time.Second, 9})
}

func TestACallIsCountedWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 3}})
		plans := []*pd.Plan{one(t, set), one(t, set), one(t, set)}
		time.Sleep(time.Hour) // far longer than the window
		for _, p := range plans {
			p.End(pd.Success, pd.Fault)
		}
		assert.Equal(t, "open", breakerOf(set, "decode-0"))
	})
}

func TestSamplesHaveOneVerdict(t *testing.T) {
	f := func(well, faults int, outcomes ...pd.Outcome) {
		t.Helper()
		set := newSet(t, 1, 1, pools.Options{})
		plans, err := set.Plan(t.Context(), nil, len(outcomes), nil)
		require.NoError(t, err)
		for i, p := range plans {
			p.End(pd.Success, outcomes[i])
		}
		gotWell, gotFaults, _ := pools.Verdicts(set.Find("decode-0"))
		assert.Equal(t, []int{well, faults}, []int{gotWell, gotFaults}, "%v", outcomes)
	}
	f(0, 1, pd.Fault, pd.Fault, pd.Fault, pd.Fault)
	f(0, 1, pd.Success, pd.Success, pd.Fault)
	f(0, 1, pd.Fault, pd.Success, pd.Success)
	f(1, 0, pd.Success, pd.Success)
	f(1, 0, pd.Left, pd.Success, pd.Echo)
	f(0, 0, pd.Left, pd.Echo, pd.Overloaded)
	f(0, 0, pd.Unused, pd.Unused)
}

func TestBlameIsAFault(t *testing.T) {
	set := newSet(t, 1, 2, pools.Options{Breakers: pools.Breakers{Failures: 2}})
	m := set.Find("decode-0")
	m.Blame()
	assert.Equal(t, pools.Ready, m.State())
	m.Blame()
	assert.Equal(t, pools.Broken, m.State())
	assert.Equal(t, pd.WorkerID("decode-1"), one(t, set).Decode.Worker.ID)
}

func TestDisabledBreakersNeverOpen(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Disabled: true, Failures: 1}})
	for range 20 {
		one(t, set).End(pd.Fault, pd.Fault)
		one(t, set).End(pd.Unreachable, pd.PairFault)
		set.Find("decode-0").Blame()
	}
	assert.Equal(t, "closed", breakerOf(set, "prefill-0"))
	assert.Equal(t, "closed", breakerOf(set, "decode-0"))
	assert.Empty(t, set.Status().Avoided)
}
