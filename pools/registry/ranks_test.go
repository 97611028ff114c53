package registry

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// ranked is a registry whose decode has said that it has four ranks.
func ranked(t *testing.T) (*Registry, *pools.Set) {
	t.Helper()
	set := newSet(t)
	r := newRegistry(t, set, Options{Ranks: true})
	r.Apply("file", pair())
	require.NoError(t, r.learn(decodeID, Facts{Model: "m", Mode: "decode", DPSize: 4}))
	return r, set
}

// ranks are the ids of n ranks.
func ranks(id pd.WorkerID, n int) []pd.WorkerID {
	out := make([]pd.WorkerID, n)
	for i := range out {
		out[i] = pd.WorkerID(fmt.Sprintf("%s@%d", id, i))
	}
	return out
}

func TestEachRankOfAnEngineIsAWorker(t *testing.T) {
	_, set := ranked(t)
	for i, id := range ranks(decodeID, 4) {
		m := set.Find(id)
		require.NotNil(t, m, id)
		assert.Equal(t, []any{pools.Starting, i, 4, "m"}, []any{m.State(), *m.Worker.Rank, m.Worker.DPSize, m.Worker.Model})
	}
	assert.Nil(t, set.Find(decodeID))
	assert.Nil(t, set.Find(prefillID).Worker.Rank, "one of which nothing is known is one worker")
}

func TestRanksAreChangedTogether(t *testing.T) {
	r, set := ranked(t)
	allUp(set)
	all := ranks(decodeID, 4)
	generation := set.Generation()
	for _, id := range all { // each of them is met
		require.NoError(t, r.learn(id, Facts{Model: "m", Mode: "decode", DPSize: 4}))
	}
	assert.Equal(t, generation, set.Generation())

	priority := 7
	require.NoError(t, r.Update(all[2], Change{Priority: &priority}))
	require.NoError(t, r.Drain(decodeID))
	for _, id := range all {
		m := set.Find(id)
		assert.Equal(t, []any{7, pools.Draining}, []any{m.Worker.Priority, m.State()})
	}
	require.NoError(t, r.Resume(decodeID))
	require.NoError(t, r.Drain(all[1]))
	assert.Equal(t, pools.Draining, set.Find(all[1]).State())
	assert.Equal(t, pools.Ready, set.Find(all[0]).State(), "one rank may be drained alone")
	require.NoError(t, r.Remove(all[3]))
	assert.Equal(t, map[pd.WorkerID]pools.State{prefillID: pools.Ready}, states(set))
}

func TestAnEngineMayComeBackWithOtherRanks(t *testing.T) {
	r, set := ranked(t)
	all := ranks(decodeID, 4)
	require.NoError(t, r.learn(all[0], Facts{Model: "m", Mode: "decode", DPSize: 2}))
	assert.Len(t, states(set), 3)
	require.NoError(t, r.learn(all[1], Facts{Model: "m", Mode: "decode"}))
	assert.Equal(t, map[pd.WorkerID]pools.State{prefillID: pools.Starting, decodeID: pools.Starting}, states(set))
}

func TestADrainedEngineStaysDrainedWhenItsRanksBecomeKnown(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{Ranks: true})
	r.Apply("file", pair())
	require.NoError(t, r.Drain(decodeID))
	require.NoError(t, r.learn(decodeID, Facts{Mode: "decode", DPSize: 2}))
	allUp(set)
	for _, id := range ranks(decodeID, 2) {
		assert.Equal(t, pools.Draining, set.Find(id).State())
		assert.Equal(t, "drained by an operator", view(t, r, id).Reason)
	}
}

func TestAnEngineCannotHaveAnyNumberOfRanks(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{Ranks: true})
	r.Apply("file", pair())
	err := r.learn(decodeID, Facts{Mode: "decode", DPSize: 1 << 40})
	require.EqualError(t, err, "it has 1099511627776 data-parallel ranks, and 1024 can be targets")
	assert.Equal(t, JobFailed, view(t, r, decodeID).Job.Status)
	assert.Len(t, states(set), 2, "it is asked again")
	require.NoError(t, r.learn(decodeID, Facts{Mode: "decode", DPSize: 1}))
	assert.Equal(t, JobProcessing, view(t, r, decodeID).Job.Status)
}
