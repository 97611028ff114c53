package registry

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestAnUpdateKeepsWhatIsKnownOfAWorker(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{APIKey: "common"})
	r.Apply("file", pair())
	allUp(set)
	p := plan(t, set)
	before := set.Find(decodeID)
	for range 10 {
		before.Blame()
	}
	require.Equal(t, pools.Broken, before.State())

	priority, cost, key := 9, 2.5, "own"
	require.NoError(t, r.Update(decodeID, Change{Priority: &priority, Cost: &cost, APIKey: &key, Labels: map[string]string{"zone": "a"}}))
	now := set.Find(decodeID)
	require.True(t, now.Is(before), "the same breaker, leases and affinity")
	assert.Equal(t, []any{int64(1), pools.Broken}, []any{now.InFlight(), now.State()})
	w := now.Worker
	assert.Equal(t, []any{9, 2.5, "own", map[string]string{"zone": "a"}}, []any{w.Priority, w.Cost, w.APIKey, w.Labels})

	r.Apply("file", pair())
	assert.Equal(t, 9, set.Find(decodeID).Worker.Priority, "the source goes on saying something else")
	none, empty := "", map[string]string{}
	require.NoError(t, r.Update(decodeID, Change{APIKey: &none, Labels: empty}))
	w = set.Find(decodeID).Worker
	assert.Equal(t, []any{9, "common", empty}, []any{w.Priority, w.APIKey, w.Labels})
	p.End(pd.Success, pd.Success)
	assert.Zero(t, set.Find(decodeID).InFlight())
}

func TestWhatCannotBeUpdated(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	bad := "a\nb"
	err := r.Update(decodeID, Change{APIKey: &bad})
	require.EqualError(t, err, "api_key: it holds a character that no header can carry")
	require.ErrorIs(t, r.Update("nobody", Change{}), ErrUnknown)
	require.NoError(t, r.Remove(decodeID))
	require.ErrorIs(t, r.Update(decodeID, Change{}), ErrUnknown)
}

func TestAModelMovesAWorkerToThePoolsOfThatModel(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	allUp(set)
	for _, model := range []string{"a", "b"} {
		require.NoError(t, r.Update(prefillID, Change{Model: &model}))
		require.NoError(t, r.Update(decodeID, Change{Model: &model}))
		assert.Equal(t, []string{model}, set.Models())
	}
	require.NoError(t, r.learn(decodeID, Facts{Model: "c"}))
	assert.Equal(t, "b", set.Find(decodeID).Worker.Model, "an operator's word counts before the engine's")
	none := ""
	require.NoError(t, r.Update(decodeID, Change{Model: &none}))
	assert.Equal(t, "c", set.Find(decodeID).Worker.Model)
}

func TestAnUpdateThatCannotBeMadeChangesNothing(t *testing.T) {
	set, err := pools.New(nil, pools.Options{Suspect: func() {}, Policies: func(model string) (pools.Policies, error) {
		if model == "bad" {
			return pools.Policies{}, errors.New("no policies for it")
		}
		return pools.Policies{Prefill: first{}, Decode: first{}}, nil
	}})
	require.NoError(t, err)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	bad, priority := "bad", 3
	require.ErrorContains(t, r.Update(decodeID, Change{Model: &bad, Priority: &priority}), "no policies for it")
	r.Apply("file", pair())
	w := set.Find(decodeID).Worker
	assert.Equal(t, []any{"", DefaultPriority}, []any{w.Model, w.Priority})
	assert.Equal(t, pools.Starting, view(t, r, decodeID).State)
	assert.Equal(t, JobProcessing, view(t, r, decodeID).Job.Status)

	spec := Spec{URL: "http://d:2", Role: pd.Decode, Model: "bad"}
	_, err = r.Add(spec)
	require.ErrorContains(t, err, "no policies for it")
	assert.Len(t, r.Status().Workers, 2)
	require.ErrorContains(t, r.learn(decodeID, Facts{Model: "bad"}), "no policies for it")
	assert.Equal(t, JobFailed, view(t, r, decodeID).Job.Status)
}

// Who is looked at and who is not differ in more than in what is said of them.
func TestAWorkerIsLookedAtOrNot(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	on, off := true, false
	require.NoError(t, r.Update(decodeID, Change{Unchecked: &on}))
	assert.Equal(t, pools.Ready, set.Find(decodeID).State())
	assert.Nil(t, view(t, r, decodeID).Job)
	require.NoError(t, r.Drain(decodeID))
	require.NoError(t, r.Update(decodeID, Change{Unchecked: &off}))
	set.Find(decodeID).Up()
	assert.Equal(t, pools.Draining, set.Find(decodeID).State(), "it was drained, and still is")
	require.NoError(t, r.Resume(decodeID))
	assert.Equal(t, pools.Ready, set.Find(decodeID).State())
}

func TestASourceChangesARole(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	specs := append(pair(), Spec{URL: "http://p:2", Role: pd.Prefill})
	r.Apply("kubernetes", specs)
	allUp(set)
	held := plan(t, set)
	require.Equal(t, "http://p:1", held.Prefill.Worker.URL)

	specs[0].Role, specs[0].Bootstrap = pd.Decode, ""
	r.Apply("kubernetes", specs)
	m := set.Find(prefillID)
	assert.Equal(t, []any{pd.Decode, pools.Starting}, []any{m.Worker.Role, m.State()})
	next := plan(t, set)
	assert.Equal(t, "http://p:2", next.Prefill.Worker.URL)
	m.Up()
	for _, p := range []*pd.Plan{held, next} {
		p.End(pd.Success, pd.Success)
	}
	for _, m := range set.Members() {
		assert.Zero(t, m.InFlight(), m.Worker.URL)
	}
}

func TestAWorkerAtANewAddressIsAnotherOne(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{Drain: time.Hour})
	r.Apply("kubernetes", pair())
	allUp(set)
	held := plan(t, set)
	moved := pair()
	moved[1].URL = "http://d2:1"
	r.Apply("kubernetes", moved)
	assert.Equal(t, map[string]pools.State{
		"http://p:1": pools.Ready, "http://d:1": pools.Draining, "http://d2:1": pools.Starting,
	}, urls(set))
	held.End(pd.Success, pd.Success)
	r.turn(time.Now())
	assert.NotContains(t, urls(set), "http://d:1")
}

// A source that names its workers itself may give a name again before the one who
// had it has gone.
func TestAnIDThatIsTakenIsWaitedFor(t *testing.T) {
	set := newSet(t)
	var reported []string
	r := newRegistry(t, set, Options{Report: func(source string, _ pd.WorkerID, err error) {
		reported = append(reported, source+": "+err.Error())
	}})
	specs := pair()
	specs[0].ID, specs[1].ID = "p", "d"
	r.Apply("file", specs)
	allUp(set)
	held := plan(t, set)
	specs[1].URL = "http://d:2"
	r.Apply("file", specs)
	r.Apply("file", specs)
	assert.Equal(t, []string{"file: another worker has its id"}, reported)
	status := r.Status().Workers
	require.Len(t, status, 3)
	assert.Equal(t, []any{"http://d:1", pools.Draining, JobRemove}, []any{status[1].Worker.URL, status[1].State, status[1].Job.Type})
	waiting := status[2]
	assert.Equal(t, []any{pd.WorkerID("d"), "http://d:2", pools.Starting, "another worker has its id"},
		[]any{waiting.ID, waiting.Worker.URL, waiting.State, waiting.Reason})
	assert.Equal(t, []any{JobAdd, JobPending}, []any{waiting.Job.Type, waiting.Job.Status})

	held.End(pd.Success, pd.Success)
	assert.Zero(t, r.turn(time.Now()))
	assert.Equal(t, map[string]pools.State{"http://p:1": pools.Ready, "http://d:2": pools.Starting}, urls(set))
}
