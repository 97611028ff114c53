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

func TestAWorkerStartsAsReadyUnlessItIsWatched(t *testing.T) {
	assert.Equal(t, pools.Ready, newSet(t, 1, 1, pools.Options{}).Find("decode-0").State())

	set := newSet(t, 1, 1, watched(pools.Options{}))
	assert.Equal(t, pools.Starting, set.Find("decode-0").State())
	assert.False(t, set.Serves("decode-0"))
	assert.Equal(t, "no prefill worker is available: 1 starting", refused(t, set, 1).Message)
	allUp(set)
	assert.Equal(t, pools.Ready, set.Find("decode-0").State())
	assert.True(t, set.Serves("decode-0"))
	one(t, set)
}

// The first state that holds is shown: what ends an earlier one uncovers the next.
func TestTheFirstStateThatHoldsIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, 1, 1, watched(pools.Options{Breakers: pools.Breakers{Failures: 1}}))
		m := set.Find("decode-0")
		set.Find("prefill-0").Up()
		m.Up()
		run(t, set, pd.Overloaded)
		assert.Equal(t, pools.Busy, m.State())
		m.Blame()
		assert.Equal(t, pools.Broken, m.State())
		m.Down("is gone")
		assert.Equal(t, pools.Dead, m.State())
		set.Drain("decode-0")
		assert.Equal(t, pools.Draining, m.State())

		set.Resume("decode-0")
		assert.Equal(t, pools.Dead, m.State())
		m.Up()
		assert.Equal(t, pools.Ready, m.State(), "nothing of before is left")
	})
}

func TestStartingAndOverdue(t *testing.T) {
	told := &changes{}
	set := newSet(t, 0, 1, watched(pools.Options{Changed: told.changed}))
	m := set.Find("decode-0")
	m.Down("answers 503")
	assert.Equal(t, pools.Starting, m.State(), "it may take its time")
	assert.Equal(t, "answers 503", set.Status().Workers[0].Reason)
	m.Overdue("took too long")
	assert.Equal(t, pools.Dead, m.State())
	m.Overdue("took too long")
	m.Down("answers 503")
	m.Up()
	assert.Empty(t, set.Status().Workers[0].Reason)
	m.Overdue("took too long")
	assert.Equal(t, pools.Ready, m.State(), "only a starting worker can be late")
	assert.Empty(t, set.Status().Workers[0].Reason)
	assert.Equal(t, []string{"decode-0 dead: took too long", "decode-0 ready"}, told.take())
}

func TestEachChangeIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &changes{}
		set := newSet(t, 1, 1, watched(pools.Options{Changed: told.changed, Breakers: pools.Breakers{Failures: 1}}))
		m := set.Find("decode-0")
		step := func(what string, do func(), want ...string) {
			t.Helper()
			do()
			assert.Equal(t, want, told.take(), what)
		}
		step("prefill comes up", set.Find("prefill-0").Up, "prefill-0 ready")
		step("comes up", m.Up, "decode-0 ready")
		step("is up", m.Up)
		step("goes down", func() { m.Down("is gone") }, "decode-0 dead: is gone")
		step("is down", func() { m.Down("is still gone") })
		step("comes back", m.Up, "decode-0 ready")
		step("is busy", func() { run(t, set, pd.Overloaded) })
		step("breaks", func() { run(t, set, pd.Fault) }, "decode-0 broken")
		step("is on trial", func() { time.Sleep(openFor + 1); run(t, set, pd.Left) })
		step("breaks again", func() { run(t, set, pd.Fault) })
		step("goes down broken", func() { m.Down("is gone") }, "decode-0 dead: is gone")
		step("comes back from both", m.Up, "decode-0 ready")
		step("breaks", func() { run(t, set, pd.Fault) }, "decode-0 broken")
		step("does well on trial", func() {
			time.Sleep(openFor + 1)
			run(t, set, pd.Success, pd.Success, pd.Success)
		}, "decode-0 ready")
		step("drains while unknown", func() { assert.False(t, set.Drain("decode-9")) })
	})
}

func TestARefusedConnectionTakesAWatchedWorkerOut(t *testing.T) {
	told, suspected := &changes{}, 0
	set := allUp(newSet(t, 1, 2, pools.Options{Changed: told.changed, Suspect: func() { suspected++ }}))
	told.take()
	a, b := one(t, set), one(t, set)
	a.End(pd.Echo, pd.Unreachable)
	m := set.Find("decode-0")
	assert.Equal(t, pools.Dead, m.State())
	assert.Equal(t, pd.WorkerID("decode-1"), one(t, set).Decode.Worker.ID, "at once")
	b.End(pd.Echo, pd.Unreachable)
	assert.Equal(t, 1, suspected, "once until somebody has looked")
	assert.Equal(t, []string{"decode-0 dead: refuses connections"}, told.take())

	assert.True(t, m.Suspected())
	assert.False(t, m.Suspected())
	m.Up()
	_, faults, _ := pools.Verdicts(m)
	assert.Zero(t, faults, "its breaker knows nothing any more")
	one(t, set).End(pd.Echo, pd.Unreachable)
	assert.Equal(t, 2, suspected)
}

func TestARestartClosesTheBreaker(t *testing.T) {
	set := allUp(newSet(t, 1, 1, watched(pools.Options{Breakers: pools.Breakers{Failures: 1}})))
	run(t, set, pd.Fault)
	m := set.Find("decode-0")
	m.Up()
	assert.Equal(t, pools.Broken, m.State(), "it was not out")
	m.Down("is gone")
	m.Up()
	assert.Equal(t, pools.Ready, m.State())
	assert.Equal(t, "closed", breakerOf(set, "decode-0"))
	one(t, set)
}

func TestBusyWorkersArePassedOverForASecond(t *testing.T) {
	inTime(t, "while others exist", func(t *testing.T) {
		set := newSet(t, 1, 2, pools.Options{})
		run(t, set, pd.Overloaded)
		assert.Equal(t, pools.Busy, set.Find("decode-0").State())
		time.Sleep(time.Second - 1)
		assert.Empty(t, tries(t, set, 10, "decode-0"))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, pools.Ready, set.Find("decode-0").State())
		assert.Len(t, tries(t, set, 10, "decode-0"), 10)
	})
	inTime(t, "but not where all are busy", func(t *testing.T) {
		set := newSet(t, 1, 2, pools.Options{})
		run(t, set, pd.Overloaded, pd.Overloaded)
		assert.Equal(t, pd.WorkerID("decode-0"), one(t, set).Decode.Worker.ID)
	})
	inTime(t, "nor ever when alone", func(t *testing.T) {
		set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
		for range 20 {
			run(t, set, pd.Overloaded)
			assert.True(t, set.Serves("decode-0"))
			assert.True(t, set.Others(nil, pd.Decode, nil))
		}
		assert.Equal(t, "closed", breakerOf(set, "decode-0"))
		run(t, set, pd.Success)
	})
	inTime(t, "nor when it has restarted", func(t *testing.T) {
		set := allUp(newSet(t, 1, 2, watched(pools.Options{})))
		run(t, set, pd.Overloaded)
		set.Find("decode-0").Down("is gone")
		set.Find("decode-0").Up()
		assert.Equal(t, pd.WorkerID("decode-0"), one(t, set).Decode.Worker.ID)
	})
}

func TestDrain(t *testing.T) {
	told := &changes{}
	set := newSet(t, 1, 2, pools.Options{Changed: told.changed})
	a, b := one(t, set), one(t, set)
	m := set.Find("decode-0")
	require.True(t, set.Drain("decode-0"))
	require.True(t, set.Drain("decode-0"), "again changes nothing")
	assert.Equal(t, pools.Draining, m.State())
	assert.False(t, set.Serves("decode-0"))
	assert.Empty(t, tries(t, set, 10, "decode-0"), "no new work")
	a.End(pd.Success, pd.Success)
	assert.False(t, m.Drained(), "what it has goes on")
	assert.Equal(t, []string{"decode-0 draining"}, told.take())
	b.End(pd.Success, pd.Success)
	assert.True(t, m.Drained())
	assert.True(t, set.Status().Workers[1].Drained)
	assert.Equal(t, []string{"decode-0 draining: nothing is in flight any more"}, told.take())

	require.True(t, set.Resume("decode-0"))
	assert.False(t, m.Drained())
	assert.Len(t, tries(t, set, 1, "decode-0"), 1)
	assert.Equal(t, []string{"decode-0 ready"}, told.take())

	require.True(t, set.Drain("decode-1"))
	assert.Equal(t, []string{"decode-1 draining: nothing is in flight any more"}, told.take(), "it was idle")
	assert.False(t, set.Drain("nobody"))
	assert.False(t, set.Resume("nobody"))
}

// late picks the first member offered, when it has just been drained.
type late struct{ set *pools.Set }

func (p *late) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	p.set.Drain(members[0].Worker.ID)
	return members[0]
}

func TestAWorkerThatIsDrainedWhileItIsPickedGetsNothing(t *testing.T) {
	pick := &late{}
	pick.set = newSet(t, 1, 2, pools.Options{Policies: pools.Share(first{}, pick)})
	assert.Equal(t, "no_decode_available", refused(t, pick.set, 1).Code)
	assert.True(t, pick.set.Find("decode-0").Drained())
	assert.True(t, pick.set.Find("decode-1").Drained())
}

func TestTheSignsOfLifeAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t, 1, 1, pools.Options{})
		prefill, decode := set.Find("prefill-0"), set.Find("decode-0")
		assert.True(t, decode.LastProgress().IsZero())
		p := one(t, set)
		p.Decode.Progress()
		assert.True(t, decode.LastProgress().Equal(time.Now()))
		time.Sleep(time.Minute)
		assert.Equal(t, time.Minute, time.Since(decode.LastProgress()))
		p.End(pd.Success, pd.Left)
		assert.True(t, prefill.LastProgress().Equal(time.Now()), "an answer is one")
		assert.Equal(t, time.Minute, time.Since(decode.LastProgress()), "a client that leaves is not")
	})
}

func TestTheReachOfABootstrapServerIsShown(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{})
	m := set.Find("prefill-0")
	assert.Equal(t, pools.ReachUnknown, m.Reach())
	m.SetReach(pools.ReachDown)
	assert.Equal(t, pools.ReachDown, m.Reach())
	assert.Equal(t, pools.ReachDown, set.Status().Workers[0].Bootstrap)
	assert.True(t, set.Serves("prefill-0"), "it alone takes nobody out")
}

func TestOthersAreThoseThatTakeWork(t *testing.T) {
	set := newSet(t, 1, 3, pools.Options{MaxInFlight: 1, Breakers: pools.Breakers{Failures: 1}})
	f := func(want bool, avoid ...pd.WorkerID) {
		t.Helper()
		assert.Equal(t, want, set.Others(nil, pd.Decode, avoid))
	}
	f(true)
	f(true, "decode-0", "decode-1")
	f(false, "decode-0", "decode-1", "decode-2")
	set.Drain("decode-2")
	f(false, "decode-0", "decode-1")
	set.Find("decode-1").Blame()
	f(false, "decode-0")
	one(t, set)
	f(false)
}

func TestWhatIsWrongWithAWorkerThatIsAliveIsSaid(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{Breakers: pools.Breakers{Failures: 1}})
	set.Find("prefill-0").SetReach(pools.ReachDown)
	run(t, set, pd.Fault)
	status := set.Status().Workers
	assert.Equal(t, "its bootstrap server cannot be reached from here", status[0].Reason)
	assert.Equal(t, "its breaker is not closed: what it was sent failed", status[1].Reason)
}
