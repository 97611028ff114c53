package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestASourceSaysWhichWorkersThereAre(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	assert.Equal(t, map[string]pools.State{"http://p:1": pools.Starting, "http://d:1": pools.Starting}, urls(set))

	before := set.Generation()
	r.Apply("file", pair())
	assert.Equal(t, before, set.Generation(), "the same again changes nothing")

	r.Apply("file", pair()[:1])
	assert.Equal(t, map[string]pools.State{"http://p:1": pools.Starting}, urls(set), "idle: it goes at once")
	r.Apply("file", nil)
	assert.Empty(t, urls(set))
}

func TestTheFirstSourceCountsForAsLongAsItNamesAWorker(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	first, second := pair(), pair()
	first[0].Priority, second[0].Priority = 1, 2
	r.Apply("file", first)
	r.Apply("dns", second)
	assert.Len(t, r.Status().Workers, 2)
	view := r.Status().Workers[0]
	assert.Equal(t, []any{"file", 1}, []any{view.Source, view.Worker.Priority})
	member := set.Find(view.ID)

	r.Apply("file", nil)
	view = r.Status().Workers[0]
	assert.Equal(t, []any{"dns", 2}, []any{view.Source, view.Worker.Priority})
	assert.True(t, set.Find(view.ID).Is(member), "it has never gone")
	r.Apply("dns", nil)
	assert.Empty(t, urls(set))
}

func TestAWorkerThatGoesIsDrainedFirst(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	for _, m := range set.Members() {
		m.Up()
	}
	plans, err := set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)
	r.Apply("file", pair()[:1])
	assert.Equal(t, pools.Draining, urls(set)["http://d:1"])
	assert.True(t, r.Status().Workers[1].Leaving)
	assert.ErrorIs(t, r.Resume(IDOf("http://d:1")), ErrLeaving)
	plans[0].End(pd.Success, pd.Success)
	assert.Zero(t, r.turn(time.Now()), "nobody is left to be waited for")
	assert.Equal(t, map[string]pools.State{"http://p:1": pools.Ready}, urls(set))
}

func TestAWorkerThatComesBackWhileItLeavesIsANewOne(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	for _, m := range set.Members() {
		m.Up()
	}
	plans, err := set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)
	r.Apply("file", pair()[:1])
	r.Apply("file", pair())
	assert.Equal(t, pools.Starting, urls(set)["http://d:1"])
	plans[0].End(pd.Success, pd.Success)
	assert.Zero(t, set.Find(IDOf("http://d:1")).InFlight())
	assert.Len(t, r.Status().Workers, 2)
}

func TestWhatAnOperatorDeletesASourceDoesNotBringBack(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	id := IDOf("http://d:1")
	require.NoError(t, r.Remove(id))
	require.ErrorIs(t, r.Remove(id), ErrUnknown)
	r.Apply("file", pair())
	assert.NotContains(t, urls(set), "http://d:1")

	got, err := r.Add(pair()[1])
	require.NoError(t, err)
	assert.Equal(t, id, got, "an id is the URL's")
	_, err = r.Add(pair()[1])
	require.ErrorIs(t, err, ErrExists)
	require.NoError(t, r.Remove(id))
	r.Apply("file", pair()[:1])
	r.Apply("file", pair())
	assert.Contains(t, urls(set), "http://d:1", "once the source has forgotten it, it may name it anew")
}

func TestAWorkerThatIsDeletedWhileItStartsNeverJoins(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	id, err := r.Add(pair()[0])
	require.NoError(t, err)
	late := set.Find(id)
	require.NoError(t, r.Remove(id))
	require.Error(t, r.learn(id, Facts{Mode: "prefill"}))
	late.Up()
	assert.Nil(t, set.Find(id))
	assert.Empty(t, urls(set))
}
