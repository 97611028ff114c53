package pools_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

const (
	openFor  = 60 * time.Second
	trialFor = 30 * time.Second
)

// broken is a set whose decode-0, which every call would get, is broken by the
// first fault; decode-1 has what decode-0 does not get. The breakers have their
// usual times and three trials.
func broken(t *testing.T) *pools.Set {
	t.Helper()
	set := newSet(t, 1, 2, pools.Options{Breakers: pools.Breakers{Failures: 1}})
	run(t, set, pd.Fault)
	require.Equal(t, "open", breakerOf(set, "decode-0"))
	return set
}

// trials is broken after its open time, with all three trials under way.
func trials(t *testing.T) (*pools.Set, []*pd.Plan) {
	t.Helper()
	set := broken(t)
	time.Sleep(openFor + 1)
	through := tries(t, set, 20, "decode-0")
	require.Len(t, through, 3)
	return set, through
}

// inTime runs a test in a bubble of its own time.
func inTime(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestOpenBreakerLetsNothingThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := broken(t)
		for range 60 {
			assert.Empty(t, tries(t, set, 3, "decode-0"))
			time.Sleep(openFor / 60)
		}
		assert.Empty(t, tries(t, set, 3, "decode-0"), "the whole time")
		time.Sleep(time.Nanosecond)
		assert.Len(t, tries(t, set, 9, "decode-0"), 3, "then three at once and no more")
	})
}

func TestTrialsCloseTheBreaker(t *testing.T) {
	inTime(t, "each by its first good event", func(t *testing.T) {
		set, plans := trials(t)
		for i, p := range plans {
			assert.Equal(t, "half_open", breakerOf(set, "decode-0"), "after %d", i)
			assert.Empty(t, tries(t, set, 5, "decode-0"), "a place is for one trial that does well")
			p.Decode.Progress()
			p.Decode.Progress() // counts once
		}
		assert.Equal(t, "closed", breakerOf(set, "decode-0"))
		assert.Equal(t, pools.Ready, set.Find("decode-0").State())
		assert.Len(t, tries(t, set, 9, "decode-0"), 9)
	})
	inTime(t, "each by its end", func(t *testing.T) {
		set, plans := trials(t)
		for _, p := range plans {
			p.End(pd.Success, pd.Success)
		}
		assert.Equal(t, "closed", breakerOf(set, "decode-0"))
	})
	inTime(t, "one after the other", func(t *testing.T) {
		set := broken(t)
		time.Sleep(openFor + 1)
		run(t, set, pd.Success, pd.Success, pd.Success)
		assert.Equal(t, "closed", breakerOf(set, "decode-0"))
	})
	inTime(t, "a trial of many samples is one", func(t *testing.T) {
		set := broken(t)
		time.Sleep(openFor + 1)
		plans, err := set.Plan(t.Context(), nil, 8, nil)
		require.NoError(t, err)
		require.Equal(t, pd.WorkerID("decode-0"), plans[0].Decode.Worker.ID)
		for _, p := range plans {
			p.Decode.Progress()
		}
		well, _, under := pools.Verdicts(set.Find("decode-0"))
		assert.Equal(t, []int{1, 0}, []int{well, under})
		assert.Len(t, tries(t, set, 9, "decode-0"), 2)
	})
}

func TestOneTrialThatFailsOpensTheBreaker(t *testing.T) {
	inTime(t, "at its end", func(t *testing.T) {
		set, plans := trials(t)
		plans[0].Decode.Progress()
		plans[1].End(pd.Success, pd.Fault)
		assert.Equal(t, "open", breakerOf(set, "decode-0"))
		plans[2].Decode.Progress() // of a phase that is over
		plans[2].End(pd.Success, pd.Success)
		assert.Equal(t, "open", breakerOf(set, "decode-0"))
		time.Sleep(openFor)
		assert.Empty(t, tries(t, set, 5, "decode-0"), "for the whole time again")
		time.Sleep(time.Nanosecond)
		assert.Len(t, tries(t, set, 5, "decode-0"), 3)
	})
	inTime(t, "by what health shows", func(t *testing.T) {
		set := broken(t)
		time.Sleep(openFor + 1)
		through := tries(t, set, 1, "decode-0")
		require.Len(t, through, 1)
		set.Find("decode-0").Blame()
		assert.Equal(t, "open", breakerOf(set, "decode-0"))
	})
	inTime(t, "not after its good event", func(t *testing.T) {
		set, plans := trials(t)
		plans[0].Decode.Progress()
		plans[0].End(pd.Success, pd.Fault)
		assert.Equal(t, "half_open", breakerOf(set, "decode-0"))
	})
}

func TestATrialThatShowsNothingGivesItsPlaceBack(t *testing.T) {
	for _, o := range []pd.Outcome{pd.Left, pd.Echo, pd.Overloaded, pd.ClientFlaw, pd.Unused} {
		inTime(t, "one that ends as "+o.String(), func(t *testing.T) {
			set, plans := trials(t)
			assert.Empty(t, tries(t, set, 5, "decode-0"))
			plans[1].End(o, o)
			time.Sleep(2 * time.Second) // decode-0 may count as busy for one
			assert.Len(t, tries(t, set, 5, "decode-0"), 1)
		})
	}
	inTime(t, "one that hangs, at its deadline", func(t *testing.T) {
		set, hanging := trials(t)
		time.Sleep(trialFor - 1)
		assert.Empty(t, tries(t, set, 200, "decode-0"))
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Len(t, tries(t, set, 200, "decode-0"), 3, "exactly as many again")
		for _, p := range hanging { // too late to say anything
			p.End(pd.Success, pd.Fault)
		}
		assert.Equal(t, "half_open", breakerOf(set, "decode-0"))
		assert.Empty(t, tries(t, set, 200, "decode-0"))
	})
	inTime(t, "one whose plan is undone", func(t *testing.T) {
		pick := &only{"prefill-0"}
		set := newSet(t, 1, 1, pools.Options{Policies: pools.Share(pick, &only{"nobody"}), Breakers: pools.Breakers{Failures: 1}})
		set.Find("prefill-0").Blame()
		time.Sleep(openFor + 1)
		for range 20 { // prefill was taken each time, and then no decode was found
			assert.Equal(t, "no_worker_chosen", refused(t, set, 1).Code)
		}
		_, _, under := pools.Verdicts(set.Find("prefill-0"))
		assert.Equal(t, "half_open", breakerOf(set, "prefill-0"))
		assert.Zero(t, under)
	})
}

func TestNoTrafficNoHaste(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, plans := trials(t)
		for _, p := range plans {
			p.End(pd.Success, pd.Left)
		}
		time.Sleep(24 * time.Hour)
		assert.Equal(t, "half_open", breakerOf(set, "decode-0"))
		assert.Len(t, tries(t, set, 9, "decode-0"), 3)
	})
}

func TestWhatBeganInAnEarlierPhaseSaysNothing(t *testing.T) {
	// early is a call that began before decode-0 broke.
	early := func(t *testing.T) (*pools.Set, *pd.Plan) {
		set := newSet(t, 1, 2, pools.Options{Breakers: pools.Breakers{Failures: 1}})
		p := one(t, set)
		run(t, set, pd.Fault)
		return set, p
	}
	for _, o := range []pd.Outcome{pd.Success, pd.Fault} {
		inTime(t, o.String()+" while open", func(t *testing.T) {
			set, p := early(t)
			p.End(pd.Success, o)
			assert.Equal(t, "open", breakerOf(set, "decode-0"))
		})
		inTime(t, o.String()+" while half open", func(t *testing.T) {
			set, p := early(t)
			time.Sleep(openFor + 1)
			require.Len(t, tries(t, set, 9, "decode-0"), 3)
			p.End(pd.Success, o)
			assert.Equal(t, "half_open", breakerOf(set, "decode-0"))
			well, faults, under := pools.Verdicts(set.Find("decode-0"))
			assert.Equal(t, []int{0, 0, 3}, []int{well, faults, under})
		})
		inTime(t, o.String()+" when closed again", func(t *testing.T) {
			set, p := early(t)
			time.Sleep(openFor + 1)
			run(t, set, pd.Success, pd.Success, pd.Success)
			require.Equal(t, "closed", breakerOf(set, "decode-0"))
			p.End(pd.Success, o)
			well, faults, _ := pools.Verdicts(set.Find("decode-0"))
			assert.Equal(t, []int{0, 0}, []int{well, faults})
		})
	}
	inTime(t, "a trial's fault when the worker has restarted", func(t *testing.T) {
		set := allUp(newSet(t, 1, 1, watched(pools.Options{Breakers: pools.Breakers{Failures: 1}})))
		run(t, set, pd.Fault)
		time.Sleep(openFor + 1)
		p := one(t, set)
		m := set.Find("decode-0")
		m.Down("is gone")
		m.Up()
		p.End(pd.Success, pd.Fault)
		assert.Equal(t, pools.Ready, m.State())
	})
}
