package pools_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// ranked are the ranks of one engine, each a worker of its own.
func ranked(role pd.Role, engine string, size int) (out []*pd.Worker) {
	for rank := range size {
		out = append(out, &pd.Worker{
			ID: pd.WorkerID(fmt.Sprintf("%s@%d", engine, rank)), Role: role, URL: "http://" + engine, DPSize: size, Rank: &rank,
		})
	}
	return out
}

// whole is an engine that is one worker with all of its ranks.
func whole(role pd.Role, engine string, size int) []*pd.Worker {
	return []*pd.Worker{{ID: pd.WorkerID(engine), Role: role, URL: "http://" + engine, DPSize: size}}
}

func setOf(t testing.TB, opt pools.Options, workers ...[]*pd.Worker) *pools.Set {
	t.Helper()
	if opt.Policies == nil {
		opt.Policies = pools.Share(first{}, first{})
	}
	var all []*pd.Worker
	for _, ws := range workers {
		all = append(all, ws...)
	}
	set, err := pools.New(all, opt)
	require.NoError(t, err)
	return set
}

func wanting(t testing.TB, body string) *pd.Request {
	t.Helper()
	req, err := pd.NewRequest(pd.Generate, []byte(body))
	require.NoError(t, err)
	return req
}

func TestAWishForARankPicksAmongThem(t *testing.T) {
	const prefill, decode = pd.Prefill, pd.Decode
	f := func(name string, workers [][]*pd.Worker, body, wantPrefill, wantDecode string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			set := setOf(t, pools.Options{}, workers...)
			plans, err := set.Plan(t.Context(), wanting(t, body), 1, nil)
			require.NoError(t, err)
			assert.Equal(t, pd.WorkerID(wantPrefill), plans[0].Prefill.Worker.ID)
			assert.Equal(t, pd.WorkerID(wantDecode), plans[0].Decode.Worker.ID)
			plans[0].End(pd.Success, pd.Success)
		})
	}
	both := [][]*pd.Worker{ranked(prefill, "p", 4), ranked(decode, "d", 4)}
	f("none is a wish for any", both, `{}`, "p@0", "d@0")
	f("the body's is for both", both, `{"routed_dp_rank":2}`, "p@2", "d@2")
	f("that of prefill alone", both, `{"disagg_prefill_dp_rank":3}`, "p@3", "d@0")
	f("one for each", both, `{"disagg_prefill_dp_rank":3,"data_parallel_rank":1}`, "p@3", "d@1")
	f("rank 0 is one", [][]*pd.Worker{ranked(prefill, "p", 4)[1:], ranked(prefill, "q", 2), ranked(decode, "d", 1)},
		`{"routed_dp_rank":0}`, "q@0", "d@0")
	f("of several engines, all that have it", [][]*pd.Worker{ranked(prefill, "p", 2), ranked(prefill, "q", 4), ranked(decode, "d", 1)},
		`{"disagg_prefill_dp_rank":2}`, "q@2", "d@0")
	f("whole engines are told of it", [][]*pd.Worker{ranked(prefill, "p", 4), whole(decode, "d", 2)}, `{"routed_dp_rank":3}`, "p@3", "d")
	f("and so are they of prefill's", [][]*pd.Worker{whole(prefill, "p", 2), ranked(decode, "d", 4)}, `{"routed_dp_rank":3}`, "p", "d@3")
	f("a whole one beside ranks has all of its own", [][]*pd.Worker{whole(prefill, "p", 2), ranked(prefill, "q", 4), ranked(decode, "d", 4)},
		`{"routed_dp_rank":1}`, "p", "d@1")
	f("and no others", [][]*pd.Worker{whole(prefill, "p", 2), ranked(prefill, "q", 4), ranked(decode, "d", 4)},
		`{"routed_dp_rank":2}`, "q@2", "d@2")
	f("where none is a rank nothing is looked at", [][]*pd.Worker{whole(prefill, "p", 2), whole(decode, "d", 2)}, `{"routed_dp_rank":9}`, "p", "d")
}

func TestARankThatThereIsNotIsTheClientsMistake(t *testing.T) {
	f := func(body, param, message string) {
		t.Helper()
		t.Run(body, func(t *testing.T) {
			set := setOf(t, pools.Options{}, ranked(pd.Prefill, "p", 4), ranked(pd.Decode, "d", 2))
			_, err := set.Plan(t.Context(), wanting(t, body), 1, nil)
			var e *pd.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, [3]any{pd.Invalid, http.StatusBadRequest, param}, [3]any{e.Kind, e.Status, e.Param})
			assert.Equal(t, message, e.Message)
			assert.False(t, set.Others(wanting(t, body), pd.Prefill, nil))
		})
	}
	f(`{"disagg_prefill_dp_rank":4}`, pd.FieldPrefillRank, "no prefill worker has data-parallel rank 4")
	f(`{"routed_dp_rank":3}`, pd.FieldRank, "no decode worker has data-parallel rank 3")
	f(`{"data_parallel_rank":3}`, pd.FieldOlderRank, "no decode worker has data-parallel rank 3")
	f(`{"routed_dp_rank":-1}`, pd.FieldRank, "routed_dp_rank must be an integer that is not negative")
}

// F98: who names a rank gets no other one, whatever has become of it.
func TestF98ARankThatIsOutIsNotReplaced(t *testing.T) {
	set := setOf(t, pools.Options{}, ranked(pd.Prefill, "p", 2), ranked(pd.Decode, "d", 2))
	set.Drain("d@1")
	_, err := set.Plan(t.Context(), wanting(t, `{"routed_dp_rank":1}`), 1, nil)
	var e *pd.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, [2]any{http.StatusServiceUnavailable, "no decode worker is available: 1 draining"}, [2]any{e.Status, e.Message})

	set.Resume("d@1")
	plans, err := set.Plan(t.Context(), wanting(t, `{"routed_dp_rank":1}`), 1, []pd.WorkerID{"p@1", "d@1"})
	require.NoError(t, err)
	assert.Equal(t, pd.WorkerID("d@1"), plans[0].Decode.Worker.ID, "there is no other to be preferred")
	plans[0].End(pd.Success, pd.Success)
	assert.False(t, set.Others(wanting(t, `{"routed_dp_rank":1}`), pd.Decode, []pd.WorkerID{"d@1"}))
	assert.True(t, set.Others(wanting(t, `{}`), pd.Decode, []pd.WorkerID{"d@1"}))
}

func TestARegularWorkerIsWantedByTheSameFields(t *testing.T) {
	set := setOf(t, pools.Options{
		Regular:  true,
		Policies: func(string) (pools.Policies, error) { return pools.Policies{Regular: first{}}, nil },
	}, ranked(pd.Regular, "r", 4))
	plans, err := set.Plan(t.Context(), wanting(t, `{"routed_dp_rank":2,"disagg_prefill_dp_rank":3}`), 1, nil)
	require.NoError(t, err)
	assert.Equal(t, pd.WorkerID("r@2"), plans[0].Decode.Worker.ID)
	plans[0].End(pd.Unused, pd.Success)
}

func TestNobodyIsAtTheAddressOfARankThatRefusesConnections(t *testing.T) {
	told, suspected := &changes{}, 0
	opt := pools.Options{Changed: told.changed, Suspect: func() { suspected++ }}
	set := allUp(setOf(t, opt, whole(pd.Prefill, "p", 1), ranked(pd.Decode, "d", 3), ranked(pd.Decode, "e", 2)))
	told.take()
	a, b := one(t, set), one(t, set)
	a.End(pd.Echo, pd.Unreachable)
	assert.ElementsMatch(t, []string{
		"d@0 dead: refuses connections", "d@1 dead: refuses connections", "d@2 dead: refuses connections",
	}, told.take())
	assert.Equal(t, 3, suspected, "each is looked at")
	assert.Equal(t, pd.WorkerID("e@0"), one(t, set, "d@0").Decode.Worker.ID, "the next attempt goes to another engine")

	set.Find("d@2").Up()
	require.NoError(t, set.Remove("d@0"))
	b.End(pd.Echo, pd.Unreachable)
	assert.Equal(t, pools.Dead, set.Find("d@2").State(), "though it has left the set meanwhile")
}

func TestAWorkerThatIsNotLookedAtStaysWithTheOthersOfItsEngine(t *testing.T) {
	unchecked := ranked(pd.Decode, "d", 2)
	unchecked[1].Unchecked = true
	set := allUp(setOf(t, watched(pools.Options{}), whole(pd.Prefill, "p", 1), unchecked))
	one(t, set).End(pd.Echo, pd.Unreachable)
	assert.Equal(t, pools.Dead, set.Find("d@0").State())
	assert.Equal(t, pools.Ready, set.Find("d@1").State(), "nobody would see it come back")
}

// One address makes one engine of ranks, and of nothing else.
func TestWholeEnginesGoOneByOne(t *testing.T) {
	two := append(whole(pd.Decode, "d", 4), &pd.Worker{ID: "other", Role: pd.Decode, URL: "http://d"})
	set := allUp(setOf(t, watched(pools.Options{}), whole(pd.Prefill, "p", 1), two))
	one(t, set).End(pd.Echo, pd.Unreachable)
	assert.Equal(t, pools.Dead, set.Find("d").State())
	assert.Equal(t, pools.Ready, set.Find("other").State())
}

func TestTheRanksOfOneEngineAreTheLastTogether(t *testing.T) {
	set := setOf(t, pools.Options{}, whole(pd.Prefill, "p", 1), ranked(pd.Decode, "d", 2), ranked(pd.Decode, "e", 2))
	assert.False(t, set.Last(set.Find("d@0")))
	set.Drain("e@0")
	assert.False(t, set.Last(set.Find("d@0")))
	set.Drain("e@1")
	assert.True(t, set.Last(set.Find("d@0")), "the other rank is no other engine")
	assert.True(t, set.Last(set.Find("d@1")))
}

// Each rank has a breaker and a load of its own.
func TestARankThatFailsIsOutAlone(t *testing.T) {
	set := setOf(t, pools.Options{Breakers: pools.Breakers{Failures: 1}}, whole(pd.Prefill, "p", 1), ranked(pd.Decode, "d", 3))
	run(t, set, pd.Fault)
	assert.Equal(t, "open", breakerOf(set, "d@0"))
	held := one(t, set)
	assert.Equal(t, pd.WorkerID("d@1"), held.Decode.Worker.ID)
	assert.Equal(t, map[pd.WorkerID]int64{"p": 1, "d@0": 0, "d@1": 1, "d@2": 0}, inFlight(set))
	held.End(pd.Success, pd.Fault)
	run(t, set, pd.Fault)
	assert.Equal(t, "no decode worker is available: 3 broken", refusedAfterTrial(t, set).Message)
}

// refusedAfterTrial is the error of a call behind the one that is sent in spite of
// open breakers.
func refusedAfterTrial(t *testing.T, set *pools.Set) *pd.Error {
	t.Helper()
	one(t, set).End(pd.Success, pd.Fault)
	return refused(t, set, 1)
}

func TestWithoutAWishRanksCostNoMoreThanEngines(t *testing.T) {
	cost := func(decodes []*pd.Worker) float64 {
		set := setOf(t, pools.Options{}, whole(pd.Prefill, "p", 1), decodes)
		req := wanting(t, `{"text":"a"}`)
		return testing.AllocsPerRun(100, func() {
			plans, err := set.Plan(t.Context(), req, 1, nil)
			if err == nil {
				plans[0].End(pd.Success, pd.Success)
			}
		})
	}
	assert.Equal(t, cost(whole(pd.Decode, "d", 4)), cost(ranked(pd.Decode, "d", 4)))
}
