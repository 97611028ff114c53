package pools_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// pairOpenFor is how long a pair is avoided before it is tried again.
const pairOpenFor = 20 * time.Second

// badPair is a set whose first prefill and first decode have failed together.
func badPair(t *testing.T, prefill, decode int) *pools.Set {
	t.Helper()
	set := allUp(newSet(t, prefill, decode, watched(pools.Options{})))
	for range 3 {
		one(t, set).End(pd.PairFault, pd.Echo)
	}
	require.Equal(t, []pools.PairStatus{{Prefill: "prefill-0", Decode: "decode-0"}}, set.Status().Avoided)
	return set
}

func TestAPairIsAvoidedAfterThreeFaultsInARow(t *testing.T) {
	const (
		ok  = pd.Success
		bad = pd.PairFault
	)
	f := func(name string, avoided bool, ends ...[2]pd.Outcome) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			set := newSet(t, 2, 2, pools.Options{})
			for _, e := range ends {
				require.Empty(t, set.Status().Avoided)
				one(t, set).End(e[0], e[1])
			}
			assert.Equal(t, avoided, len(set.Status().Avoided) == 1)
			for _, m := range set.Members() {
				assert.Equal(t, pools.Ready, m.State(), "the workers go on")
			}
		})
	}
	f("said by prefill", true, [2]pd.Outcome{bad, pd.Echo}, [2]pd.Outcome{bad, pd.Echo}, [2]pd.Outcome{bad, pd.Left})
	f("said by decode", true, [2]pd.Outcome{pd.Echo, bad}, [2]pd.Outcome{ok, bad}, [2]pd.Outcome{ok, bad})
	f("two are too few", false, [2]pd.Outcome{bad, bad}, [2]pd.Outcome{bad, bad})
	f("a call that does well ends the row", false,
		[2]pd.Outcome{bad, bad}, [2]pd.Outcome{bad, bad}, [2]pd.Outcome{ok, ok}, [2]pd.Outcome{bad, bad}, [2]pd.Outcome{bad, bad})
	f("one that shows nothing does not", true,
		[2]pd.Outcome{bad, bad}, [2]pd.Outcome{ok, pd.Left}, [2]pd.Outcome{bad, bad}, [2]pd.Outcome{pd.Fault, pd.Echo}, [2]pd.Outcome{bad, bad})
}

func TestTheSamplesOfACallAreOneFaultOfAPair(t *testing.T) {
	set := newSet(t, 2, 2, pools.Options{})
	for range 3 {
		require.Empty(t, set.Status().Avoided)
		plans, err := set.Plan(t.Context(), nil, 8, nil)
		require.NoError(t, err)
		for _, p := range plans {
			p.End(pd.PairFault, pd.PairFault)
		}
	}
	assert.Len(t, set.Status().Avoided, 1)
}

func TestTheWorkersOfABadPairGoOnWithOthers(t *testing.T) {
	set := badPair(t, 2, 2)
	p := one(t, set)
	assert.Equal(t, pd.WorkerID("prefill-0"), p.Prefill.Worker.ID)
	assert.Equal(t, pd.WorkerID("decode-1"), p.Decode.Worker.ID)
	p = one(t, set, "prefill-0")
	assert.Equal(t, pd.WorkerID("prefill-1"), p.Prefill.Worker.ID)
	assert.Equal(t, pd.WorkerID("decode-0"), p.Decode.Worker.ID)

	set.Drain("decode-1")
	p = one(t, set)
	assert.Equal(t, pd.WorkerID("prefill-1"), p.Prefill.Worker.ID, "another prefill is found for the decode that is left")
	assert.Equal(t, pd.WorkerID("decode-0"), p.Decode.Worker.ID)
}

func TestABadPairIsLeftAloneForAWorkerToBeAvoided(t *testing.T) {
	set := badPair(t, 1, 2)
	p := one(t, set, "decode-1")
	assert.Equal(t, pd.WorkerID("decode-1"), p.Decode.Worker.ID, "what is to be avoided is better than what fails")
}

func TestABadPairIsTriedThreeTimesAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := badPair(t, 1, 2)
		tried := 0
		for range 600 {
			p := one(t, set)
			if p.Decode.Worker.ID == "decode-0" {
				tried++
				p.End(pd.PairFault, pd.Echo)
			}
			p.End(pd.Success, pd.Success)
			time.Sleep(100 * time.Millisecond)
		}
		assert.LessOrEqual(t, tried, 3)
		assert.Positive(t, tried)
	})
}

func TestOneTrialClosesThePair(t *testing.T) {
	inTime(t, "that does well", func(t *testing.T) {
		set := badPair(t, 1, 2)
		time.Sleep(pairOpenFor + 1)
		through := tries(t, set, 5, "decode-0")
		require.Len(t, through, 1)
		through[0].End(pd.Success, pd.Success)
		assert.Empty(t, set.Status().Avoided)
		assert.Len(t, tries(t, set, 5, "decode-0"), 5)
	})
	inTime(t, "or gives its place to another", func(t *testing.T) {
		set := badPair(t, 1, 2)
		time.Sleep(pairOpenFor + 1)
		for range 3 {
			through := tries(t, set, 5, "decode-0")
			require.Len(t, through, 1)
			through[0].End(pd.Success, pd.Left)
		}
		assert.Len(t, set.Status().Avoided, 1)
	})
	inTime(t, "also when it hangs", func(t *testing.T) {
		set := badPair(t, 1, 2)
		time.Sleep(pairOpenFor + 1)
		require.Len(t, tries(t, set, 5, "decode-0"), 1)
		time.Sleep(trialFor)
		synctest.Wait()
		assert.Len(t, tries(t, set, 5, "decode-0"), 1)
	})
}

func TestARestartForgetsThePairsOfAWorker(t *testing.T) {
	for _, id := range []pd.WorkerID{"prefill-0", "decode-0"} {
		set := badPair(t, 2, 2)
		set.Find("prefill-1").Down("is gone")
		set.Find("prefill-1").Up()
		assert.Len(t, set.Status().Avoided, 1, "others do not matter")
		set.Find(id).Up()
		assert.Len(t, set.Status().Avoided, 1, "nor does one that was not out")
		set.Find(id).Down("is gone")
		set.Find(id).Up()
		assert.Empty(t, set.Status().Avoided, id)
		assert.Equal(t, pd.WorkerID("decode-0"), one(t, set).Decode.Worker.ID)
	}
}

func TestAPairFaultHasPrefillLookedAt(t *testing.T) {
	suspected := 0
	set := allUp(newSet(t, 1, 1, pools.Options{Suspect: func() { suspected++ }}))
	one(t, set).End(pd.Success, pd.PairFault)
	one(t, set).End(pd.Success, pd.PairFault)
	assert.Equal(t, 1, suspected, "once until somebody has looked")
	assert.True(t, set.Find("prefill-0").Suspected())
	assert.False(t, set.Find("prefill-0").Suspected())
	assert.False(t, set.Find("decode-0").Suspected())
}

func TestTheNumberOfRememberedPairsIsBounded(t *testing.T) {
	const decodes = 64
	const prefills = pools.MaxPairs/decodes + 1
	fill := func(faults int) (hits []string) {
		prefill, decode := &only{}, &only{}
		var set *pools.Set
		set = newSet(t, prefills, decodes, pools.Options{
			Policies: pools.Share(prefill, decode), Bound: func(name string) {
				hits = append(hits, name)
				assert.Len(t, set.Status().Avoided, pools.MaxPairs, "the status can be read meanwhile")
			},
		})
		fail := func(p, d, faults int) {
			prefill.id, decode.id = pd.WorkerID(fmt.Sprintf("prefill-%d", p)), pd.WorkerID(fmt.Sprintf("decode-%d", d))
			for range faults {
				one(t, set).End(pd.PairFault, pd.Echo)
			}
		}
		for p := range prefills - 1 {
			for d := range decodes {
				fail(p, d, faults)
			}
		}
		require.Empty(t, hits)
		fail(prefills-1, 0, 1)
		return hits
	}
	assert.Equal(t, []string{"pairs"}, fill(3), "one more than can be remembered is used on")
	assert.Empty(t, fill(2), "those that are not avoided make room")
}

// One pair of sixteen cannot transfer: the others take its calls over, and its
// workers keep their share.
func TestOneBadPairOfSixteen(t *testing.T) {
	for _, name := range policy.Names() {
		inTime(t, name, func(t *testing.T) {
			prefill, err := policy.ByName(name)
			require.NoError(t, err)
			decode, err := policy.ByName("random")
			require.NoError(t, err)
			set := newSet(t, 4, 4, pools.Options{Policies: pools.Share(prefill, decode)})
			const calls = 1000
			failed, later := 0, 0
			share := map[pd.WorkerID]int{}
			for range calls {
				p := one(t, set)
				share[p.Prefill.Worker.ID]++
				share[p.Decode.Worker.ID]++
				if p.Prefill.Worker.ID == "prefill-0" && p.Decode.Worker.ID == "decode-0" {
					failed++
					p.End(pd.Success, pd.PairFault)
				} else {
					if failed >= 3 {
						later++
					}
					p.End(pd.Success, pd.Success)
				}
				time.Sleep(100 * time.Millisecond)
			}
			assert.LessOrEqual(t, failed, 3+5+1, "three, and a trial each 20 s")
			assert.Less(t, failed, calls/100)
			assert.Greater(t, later, calls/2)
			for id, n := range share {
				assert.Greater(t, n, calls/8, "%s keeps its share", id)
			}
		})
	}
}
