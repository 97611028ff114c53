package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	allUp(set)
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
	allUp(set)
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

func TestADeletedWorkerThatIsForgottenWhileItIsDrainedMayBeNamedAnew(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	r.Apply("dns", pair())
	allUp(set)
	held := plan(t, set)
	require.NoError(t, r.Remove(decodeID))
	r.Apply("file", pair()[:1])
	r.Apply("file", pair())
	assert.Equal(t, pools.Draining, urls(set)["http://d:1"], "another source names it still")
	r.Apply("file", pair()[:1])
	r.Apply("dns", pair()[:1])
	r.Apply("dns", pair())
	assert.Equal(t, pools.Starting, urls(set)["http://d:1"])
	held.End(pd.Success, pd.Success)
}

func TestWhatIsAddedByTheAPICountsBeforeTheSources(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	specs := pair()
	r.Apply("file", specs)
	require.NoError(t, r.Remove(decodeID))
	added := specs[1]
	added.Priority = 3
	_, err := r.Add(added)
	require.NoError(t, err)
	v := view(t, r, decodeID)
	assert.Equal(t, []any{"api", 3}, []any{v.Source, v.Worker.Priority})
	r.Apply("file", nil)
	assert.Equal(t, map[string]pools.State{"http://d:1": pools.Starting}, urls(set), "the API names it still")
	require.NoError(t, r.Remove(decodeID))
	assert.Empty(t, urls(set))
	assert.Empty(t, r.entries)
	assert.Empty(t, r.urls)
	assert.Empty(t, r.ids)
}

func TestOfAWorkerThatIsNamedTwiceInOneListTheFirstCounts(t *testing.T) {
	set := newSet(t)
	var reported []string
	r := newRegistry(t, set, Options{Report: func(source string, id pd.WorkerID, err error) {
		reported = append(reported, fmt.Sprint(source, " ", id == prefillID, " ", err))
	}})
	other := pair()[0]
	other.Role, other.Bootstrap = pd.Decode, ""
	r.Apply("file", append(pair(), pair()[1], other))
	assert.Equal(t, []string{"file true it is described twice, and not alike: the first counts"}, reported)
	assert.Len(t, states(set), 2)
	assert.Equal(t, pd.Prefill, set.Find(prefillID).Worker.Role)
}

func TestAWorkerIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t)
		r := newRegistry(t, set, Options{Drain: time.Minute})
		runs(t, r.Run)
		r.Apply("file", pair())
		allUp(set)
		held := plan(t, set)
		r.Apply("file", nil)
		time.Sleep(59 * time.Second)
		assert.Len(t, urls(set), 2)
		v := view(t, r, decodeID)
		assert.Equal(t, []any{true, JobRemove, JobProcessing, "it is drained to be removed"},
			[]any{v.Leaving, v.Job.Type, v.Job.Status, v.Reason})
		time.Sleep(2 * time.Second)
		assert.Empty(t, urls(set))
		held.End(pd.Success, pd.Success)
	})
}

func TestAWorkerGoesAsSoonAsItHasNothingLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := newSet(t)
		r := newRegistry(t, set, Options{})
		runs(t, r.Run)
		time.Sleep(time.Hour) // nothing to do
		r.Apply("file", pair())
		allUp(set)
		held := plan(t, set)
		require.NoError(t, r.Remove(decodeID))
		time.Sleep(time.Minute)
		assert.Equal(t, pools.Draining, urls(set)["http://d:1"])
		held.End(pd.Success, pd.Success)
		time.Sleep(2 * lookEvery)
		assert.NotContains(t, urls(set), "http://d:1")
	})
}

func TestAWorkerThatCannotBeServedIsShownAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var well atomic.Bool
		var reported []string
		set, err := pools.New(nil, pools.Options{Suspect: func() {}, Policies: func(model string) (pools.Policies, error) {
			if model == "m" && !well.Load() {
				return pools.Policies{}, errors.New("no policies now")
			}
			return pools.Policies{Prefill: first{}, Decode: first{}}, nil
		}})
		require.NoError(t, err)
		r := newRegistry(t, set, Options{Report: func(source string, _ pd.WorkerID, err error) {
			reported = append(reported, source+": "+err.Error())
		}})
		runs(t, r.Run)
		specs := append(pair(), Spec{URL: "http://r:1", Role: pd.Regular}, Spec{URL: "http://b:1", Role: pd.Prefill, Bootstrap: "x"})
		specs[1].Model, specs[1].APIKey = "m", "secret"
		r.Apply("file", specs)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, reported, 3, "each once")
		var seen []string
		for _, v := range r.Status().Workers {
			seen = append(seen, fmt.Sprintf("%s %s %s", v.Worker.URL, v.Role, v.State))
			if v.State == pools.Dead {
				assert.Equal(t, []any{JobAdd, JobFailed, v.Reason, "file"}, []any{v.Job.Type, v.Job.Status, v.Job.Message, v.Source})
				assert.NotEmpty(t, v.Reason)
				text, err := json.Marshal(v.WorkerStatus)
				require.NoError(t, err)
				assert.NotContains(t, string(text), "secret")
			}
		}
		assert.Equal(t, []string{
			"http://p:1 prefill starting", "http://b:1 prefill dead", "http://d:1 decode dead", "http://r:1 regular dead",
		}, seen)

		assert.NoError(t, r.Drain(decodeID), "it is not there, and takes no work when it is")
		well.Store(true)
		time.Sleep(2 * retryEvery)
		assert.Equal(t, pools.Draining, set.Find(decodeID).State())
		require.NoError(t, r.Remove(IDOf("http://r:1")))
		require.NoError(t, r.Remove(IDOf("http://b:1")))
		assert.Len(t, r.Status().Workers, 2)
	})
}

func TestAnAdditionThatFailsLeavesWhatWasBefore(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	require.NoError(t, r.Remove(decodeID))
	bad := pair()[1]
	bad.Role = pd.Regular
	_, err := r.Add(bad)
	require.ErrorContains(t, err, "this router serves prefill/decode pairs")
	r.Apply("file", pair())
	assert.NotContains(t, urls(set), "http://d:1", "it is deleted still")
	bad.URL = "http://new:1"
	_, err = r.Add(bad)
	require.Error(t, err)
	assert.Len(t, r.entries, 2)
	assert.Len(t, r.Status().Workers, 1)
}

func TestAWorkerThatIsWatchedByNobodyServesAtOnce(t *testing.T) {
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	r := newRegistry(t, set, Options{})
	r.Apply("file", pair())
	for _, v := range r.Status().Workers {
		assert.Equal(t, []any{pools.Ready, (*Job)(nil), ""}, []any{v.State, v.Job, v.Reason})
	}
}

func TestWorkersThatTheSetHasFromOthersAreShown(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{})
	require.NoError(t, set.Add(&pd.Worker{ID: "x@1", URL: "http://x:1", Role: pd.Decode}))
	require.NoError(t, r.Drain("x@1"))
	assert.Equal(t, pools.Draining, view(t, r, "x@1").State)
	require.NoError(t, r.Resume("x@1"))
	require.ErrorIs(t, r.Drain("y"), ErrUnknown)
	require.ErrorIs(t, r.Remove("x@1"), ErrUnknown)
}
