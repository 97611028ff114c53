package pools_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// allBroken is a set of two prefills, both broken, and two decodes.
func allBroken(t *testing.T) *pools.Set {
	t.Helper()
	set := allUp(newSet(t, 2, 2, watched(pools.Options{Breakers: pools.Breakers{Failures: 1}})))
	set.Find("prefill-0").Blame()
	set.Find("prefill-1").Blame()
	return set
}

// passed makes n calls and returns the plans of those that were not refused.
func passed(t *testing.T, set *pools.Set, n int) []*pd.Plan {
	t.Helper()
	var plans []*pd.Plan
	for range n {
		got, err := set.Plan(t.Context(), nil, 1, nil)
		if err == nil {
			plans = append(plans, got...)
		}
	}
	return plans
}

func TestWhenAllOfARoleAreBrokenOnePairASecondPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := allBroken(t)
		for range 20 {
			plans := passed(t, set, 100)
			require.Len(t, plans, 1)
			assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 1, "prefill-1": 0, "decode-0": 1, "decode-1": 0}, inFlight(set),
				"both of its legs, and nothing of the other calls")
			plans[0].End(pd.Fault, pd.Echo)
			time.Sleep(time.Second)
		}
		plans := passed(t, set, 1)
		require.Len(t, plans, 1)
		e := refused(t, set, 1)
		assert.Equal(t, pd.NoWorker, e.Kind)
		assert.Equal(t, http.StatusServiceUnavailable, e.Status)
		assert.Equal(t, "no_prefill_available", e.Code)
		assert.Equal(t, "no prefill worker is available: 2 broken", e.Message)
	})
}

func TestAForcedCallThatDoesWellClosesTheBreaker(t *testing.T) {
	inTime(t, "by its first good event", func(t *testing.T) {
		set := allBroken(t)
		p := one(t, set)
		refused(t, set, 1)
		p.Prefill.Progress()
		assert.Equal(t, "closed", breakerOf(set, "prefill-0"))
		assert.Equal(t, "open", breakerOf(set, "prefill-1"), "the other one's breaker is its own")
		assert.Len(t, passed(t, set, 50), 50)
	})
	inTime(t, "by its end", func(t *testing.T) {
		set := allBroken(t)
		one(t, set).End(pd.Success, pd.Success)
		assert.Equal(t, pools.Ready, set.Find("prefill-0").State())
	})
	inTime(t, "not when it shows nothing", func(t *testing.T) {
		set := allBroken(t)
		one(t, set).End(pd.Left, pd.Left)
		assert.Equal(t, "open", breakerOf(set, "prefill-0"))
		refused(t, set, 1)
	})
	inTime(t, "not when the breaker has turned since", func(t *testing.T) {
		set := allBroken(t)
		p := one(t, set)
		time.Sleep(openFor + 1)
		require.Len(t, passed(t, set, 1), 1)
		require.Equal(t, "half_open", breakerOf(set, "prefill-0"))
		p.Prefill.Progress()
		assert.Equal(t, "half_open", breakerOf(set, "prefill-0"))
	})
}

func TestACallIsForcedOnlyWhenNothingElseIsInItsWay(t *testing.T) {
	f := func(name, code, message string, arrange func(*pools.Set)) {
		t.Helper()
		inTime(t, name, func(t *testing.T) {
			set := allBroken(t)
			arrange(set)
			for range 3 {
				e := refused(t, set, 1)
				assert.Equal(t, code, e.Code)
				assert.Equal(t, message, e.Message)
				time.Sleep(time.Second)
			}
		})
	}
	f("the other role is not there", "no_prefill_available", "no prefill worker is available: 2 broken", func(s *pools.Set) {
		s.Find("decode-0").Down("is gone")
		s.Drain("decode-1")
	})
	f("nor is this one", "no_prefill_available", "no prefill worker is available: 1 draining, 1 dead", func(s *pools.Set) {
		s.Find("prefill-0").Down("is gone")
		s.Drain("prefill-1")
	})
	inTime(t, "somebody is well, though full", func(t *testing.T) {
		set := newSet(t, 2, 2, pools.Options{MaxInFlight: 1, Breakers: pools.Breakers{Failures: 1}})
		set.Find("prefill-0").Blame()
		one(t, set)
		for range 3 {
			assert.Equal(t, "prefill_at_capacity", refused(t, set, 1).Code)
			time.Sleep(time.Second)
		}
	})
}

func TestAForcedCallTakesAWellWorkerOfTheOtherRole(t *testing.T) {
	set := allBroken(t)
	set.Find("decode-0").Blame()
	assert.Equal(t, pd.WorkerID("decode-1"), one(t, set).Decode.Worker.ID)
}

func TestDecodeGetsNothingWhilePrefillIsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, 1, 1, pools.Options{})
		for range 10 {
			one(t, set).End(pd.Fault, pd.Echo)
		}
		require.Len(t, passed(t, set, 1), 1, "one of this second")
		assert.Empty(t, passed(t, set, 1000))
		assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 1, "decode-0": 1}, inFlight(set))
	})
}

// A worker that hangs is sent as many trials as there may be, and nothing else
// by force: its breaker is not open, and will not stay half open for ever.
func TestTheTrialsOfAHangingWorkerAreAllItGets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
		run(t, set, pd.Fault)
		time.Sleep(openFor + 1)
		for range 3 {
			began := time.Now()
			assert.Len(t, passed(t, set, 200), 3)
			for time.Since(began) < trialFor-time.Second {
				time.Sleep(time.Second)
				assert.Empty(t, passed(t, set, 10))
			}
			assert.Equal(t, "no decode worker is available: 1 broken", refused(t, set, 1).Message)
			time.Sleep(time.Second)
			synctest.Wait()
		}
	})
}

func TestWhenAllPairsAreBadOneCallASecondPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := badPair(t, 1, 1)
		one(t, set).End(pd.PairFault, pd.Echo)
		e := refused(t, set, 1)
		assert.Equal(t, http.StatusServiceUnavailable, e.Status)
		assert.Equal(t, "no_pair_available", e.Code)
		time.Sleep(time.Second)
		one(t, set).End(pd.Success, pd.Success)
		assert.Empty(t, set.Status().Avoided)
		assert.Len(t, passed(t, set, 50), 50)
	})
}

func TestSetsForceOnTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := allBroken(t), allBroken(t)
		assert.Len(t, passed(t, a, 5), 1)
		assert.Len(t, passed(t, b, 5), 1)
	})
}
