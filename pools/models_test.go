package pools_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// fleet are the workers of models, a pair each; "" is one whose model is not known.
func fleet(models ...string) []*pd.Worker {
	var out []*pd.Worker
	for _, model := range models {
		out = append(out,
			&pd.Worker{ID: pd.WorkerID("p/" + model), Role: pd.Prefill, Model: model},
			&pd.Worker{ID: pd.WorkerID("d/" + model), Role: pd.Decode, Model: model})
	}
	return out
}

func TestTheModelOfARequestPicksAmongThoseThatAreServed(t *testing.T) {
	f := func(name string, served []string, asked, want string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			set, err := pools.New(fleet(served...), pools.Options{Policies: pools.Share(first{}, first{})})
			require.NoError(t, err)
			plans, err := set.Plan(t.Context(), &pd.Request{Model: asked}, 1, nil)
			if e, failed := errors.AsType[*pd.Error](err); failed {
				assert.Equal(t, want, e.Code)
				assert.Equal(t, "model", e.Param)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, pd.WorkerID("p/"+want), plans[0].Prefill.Worker.ID)
			assert.Equal(t, pd.WorkerID("d/"+want), plans[0].Decode.Worker.ID)
			plans[0].End(pd.Success, pd.Success)
		})
	}
	f("its own", []string{"a", "b"}, "b", "b")
	f("that of an adapter", []string{"a", "b"}, "b:lora", "b")
	f("one whose name has a colon", []string{"b", "b:7"}, "b:7", "b:7")
	f("one that nobody serves", []string{"a", "b"}, "c", "model_not_found")
	f("one that begins like another", []string{"a", "b"}, "bb", "model_not_found")
	f("none, of several", []string{"a", "b"}, "", "model_required")
	f("any, where one is served", []string{"a"}, "c", "a")
	f("none, where one is served", []string{"a"}, "", "a")
	f("any, where none is known", []string{""}, "c", "")
	f("a worker whose model is not known serves all", []string{"", "a", "b"}, "a", "")
	f("but makes no name known", []string{"", "a", "b"}, "c", "model_not_found")
}

func TestAPairIsOfOneModel(t *testing.T) {
	set, err := pools.New([]*pd.Worker{
		{ID: "p", Role: pd.Prefill, Model: "a"}, {ID: "d", Role: pd.Decode, Model: "b"},
	}, pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	for model, want := range map[string]string{
		"a": `no decode worker is available for model "a"`, "b": `no prefill worker is available for model "b"`,
	} {
		_, err := set.Plan(t.Context(), &pd.Request{Model: model}, 1, nil)
		e, ok := errors.AsType[*pd.Error](err)
		require.True(t, ok)
		assert.Equal(t, [2]any{503, want}, [2]any{e.Status, e.Message})
	}
	assert.Equal(t, []string{"a", "b"}, set.Models())
	assert.Equal(t, `there is no decode worker for its model "a"`, set.Status().Workers[0].Reason)
}

// A prefill of another model comes up beside those that serve: it is given
// nothing, and nobody notices.
func TestAWorkerOfAModelThatIsNotCompleteChangesNothing(t *testing.T) {
	set, err := pools.New(fleet("a"), pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	require.NoError(t, set.Add(&pd.Worker{ID: "p/b", Role: pd.Prefill, Model: "b"}))
	for _, model := range []string{"", "a", "gpt"} {
		plans, err := set.Plan(t.Context(), &pd.Request{Model: model}, 1, nil)
		require.NoError(t, err, model)
		assert.Equal(t, pd.WorkerID("p/a"), plans[0].Prefill.Worker.ID)
	}
	_, err = set.Plan(t.Context(), &pd.Request{Model: "b"}, 1, nil)
	e, ok := errors.AsType[*pd.Error](err)
	require.True(t, ok, "and its own name is never another model's")
	assert.Equal(t, `no decode worker is available for model "b"`, e.Message)
	assert.Equal(t, []string{"a"}, set.Models())

	require.NoError(t, set.Add(&pd.Worker{ID: "d/b", Role: pd.Decode, Model: "b"}))
	assert.Equal(t, []string{"a", "b"}, set.Models())
	_, err = set.Plan(t.Context(), &pd.Request{Model: "gpt"}, 1, nil)
	require.Error(t, err)
}

// follower records who there is.
type follower struct {
	first
	ids []pd.WorkerID
}

func (f *follower) Chosen(*pd.Request, *pools.Member) {}

func (f *follower) Follow(members []*pools.Member) {
	f.ids = nil
	for _, m := range members {
		f.ids = append(f.ids, m.Worker.ID)
	}
}

func TestEachModelHasPoliciesOfItsOwn(t *testing.T) {
	made, closed := map[string]*follower{}, []string{}
	set, err := pools.New(fleet("a"), pools.Options{Policies: func(model string) (pools.Policies, error) {
		if model == "bad" {
			return pools.Policies{}, errors.New("no such policy")
		}
		made[model] = &follower{}
		return pools.Policies{
			Prefill: made[model], Decode: first{}, Close: func() { closed = append(closed, model) },
		}, nil
	}})
	require.NoError(t, err)
	require.NoError(t, set.Add(&pd.Worker{ID: "p/b", Role: pd.Prefill, Model: "b"}))
	require.NoError(t, set.Add(&pd.Worker{ID: "p/any", Role: pd.Prefill}))
	assert.Equal(t, []pd.WorkerID{"p/a", "p/any"}, made["a"].ids)
	assert.Equal(t, []pd.WorkerID{"p/b", "p/any"}, made["b"].ids)

	before := set.Generation()
	require.ErrorContains(t, set.Add(&pd.Worker{ID: "p/bad", Role: pd.Prefill, Model: "bad"}), "no such policy")
	assert.Equal(t, before, set.Generation(), "nothing has changed")
	assert.Nil(t, set.Find("p/bad"))

	kept := made["a"]
	require.NoError(t, set.Remove("p/b"))
	assert.Equal(t, []string{"b"}, closed, "a model that is not served any more")
	require.NoError(t, set.Add(&pd.Worker{ID: "p/a2", Role: pd.Prefill, Model: "a"}))
	assert.Same(t, kept, made["a"], "and none is made twice while it is served")
	set.Close()
	assert.Equal(t, []string{"b", "a"}, closed)
}

func TestALearnedModelMovesAWorkerWithAllThatIsKnownOfIt(t *testing.T) {
	set, err := pools.New(fleet("", "b"), pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	plans, err := set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)
	before := set.Find("p/")
	require.NoError(t, set.Update(&pd.Worker{ID: "p/", Role: pd.Prefill, Model: "a"}))
	after := set.Find("p/")
	assert.True(t, after.Is(before))
	assert.Equal(t, int64(1), after.InFlight())
	assert.Equal(t, []string{"a", "b"}, set.Models())
	plans[0].End(pd.Success, pd.Success)
	assert.Zero(t, after.InFlight())
}

func TestWholeEnginesArePlannedAlone(t *testing.T) {
	set, err := pools.New([]*pd.Worker{{ID: "w", Role: pd.Regular}}, pools.Options{
		Regular:  true,
		Policies: func(string) (pools.Policies, error) { return pools.Policies{Regular: first{}}, nil },
	})
	require.NoError(t, err)
	plans, err := set.Plan(t.Context(), nil, 2, nil)
	require.NoError(t, err)
	require.Len(t, plans, 2)
	assert.Nil(t, plans[0].Prefill)
	assert.Equal(t, pd.WorkerID("w"), plans[0].Decode.Worker.ID)
	assert.Equal(t, int64(2), set.Find("w").InFlight())
	for _, p := range plans {
		p.End(pd.Unused, pd.Success)
	}
	assert.Zero(t, set.Find("w").InFlight())

	set.Drain("w")
	assert.Equal(t, "no regular worker is available: 1 draining", refused(t, set, 1).Message)
}

func TestAWorkerMustFitWhatTheSetIsFor(t *testing.T) {
	pairs := newSet(t, 1, 1, pools.Options{})
	require.ErrorContains(t, pairs.Add(&pd.Worker{ID: "w", Role: pd.Regular}), "serves prefill/decode pairs")
	_, err := pools.New(workers(1, 0), pools.Options{
		Regular:  true,
		Policies: func(string) (pools.Policies, error) { return pools.Policies{Regular: first{}}, nil },
	})
	require.ErrorContains(t, err, "serves whole engines")
}

func TestWorkIsTheBytesInFlight(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{})
	req, err := pd.NewRequest(pd.Generate, []byte(`{"text":"0123456789","n":1}`))
	require.NoError(t, err)
	plans, err := set.Plan(t.Context(), req, 2, nil)
	require.NoError(t, err)
	prefill, decode := set.Find("prefill-0"), set.Find("decode-0")
	assert.Equal(t, [2]int64{26, 26}, [2]int64{prefill.Work(), decode.Work()}, "the body's, once")
	plans[0].Prefill.End(pd.Success)
	plans[1].Prefill.End(pd.Success)
	assert.Equal(t, [2]int64{0, 26}, [2]int64{prefill.Work(), decode.Work()}, "prefill's are over with its answer")
	plans[0].End(pd.Success, pd.Success)
	plans[1].End(pd.Success, pd.Fault)
	assert.Zero(t, decode.Work())
}

// counted counts how often it is asked, and wants nobody.
type counted struct{ asked int }

func (p *counted) Pick(*pd.Request, []*pools.Member) *pools.Member {
	p.asked++
	return nil
}

func TestAPolicyThatWantsNoDecodeIsAskedOnce(t *testing.T) {
	p := &counted{}
	set := newSet(t, 50, 2, pools.Options{Policies: pools.Share(first{}, p)})
	refused(t, set, 1)
	assert.Equal(t, 1, p.asked, "and not for each prefill")
}

// learner records what it is told.
type learner struct {
	first
	told []any
}

func (l *learner) Learned(_ *pd.Request, w pd.WorkerID, prompt, cached int) {
	l.told = append(l.told, w, prompt, cached)
}

func TestWhatEnginesTellOfTheirCachesGoesToThePolicyAndTheStatus(t *testing.T) {
	prefill, decode := &learner{}, &learner{}
	set := newSet(t, 1, 1, pools.Options{Policies: pools.Share(prefill, decode)})
	set.Observe(&pd.Request{}, pd.Report{
		Attempts: 2, PromptTokens: 100, CachedTokens: 64,
		Legs: []pd.LegReport{
			{Worker: "prefill-0", Role: pd.Prefill, Attempt: 1, Outcome: pd.Fault, Err: &pd.Error{Code: "prefill_connection_lost"}},
			{Worker: "decode-0", Role: pd.Decode, Attempt: 1, Outcome: pd.Echo, Err: &pd.Error{Status: 500}},
			{Worker: "prefill-0", Role: pd.Prefill, Attempt: 2, Outcome: pd.Success},
			{Worker: "decode-0", Role: pd.Decode, Attempt: 2, Outcome: pd.Success},
			{Worker: "gone", Role: pd.Decode, Attempt: 2, Outcome: pd.Success},
		},
	})
	assert.Equal(t, []any{pd.WorkerID("prefill-0"), 100, 64}, prefill.told)
	assert.Empty(t, decode.told, "prefill is the one that computes a prompt")
	status := set.Status().Workers
	assert.Equal(t, &pools.Served{Requests: 1, PromptTokens: 100, CachedTokens: 64}, status[0].Served)
	assert.Equal(t, "prefill_connection_lost", status[0].LastError.Code)
	assert.Nil(t, status[1].Served)
	assert.Nil(t, status[1].LastError, "an echo says nothing of the worker")
}

func TestWorkersOfAModel(t *testing.T) {
	set, err := pools.New(fleet("a", "b", ""), pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	workers, err := set.WorkersOf("a:lora")
	require.NoError(t, err)
	var ids []pd.WorkerID
	for _, w := range workers {
		ids = append(ids, w.ID)
	}
	assert.Equal(t, []pd.WorkerID{"p/a", "p/", "d/a", "d/"}, ids)
	_, err = set.WorkersOf("c")
	require.Error(t, err)
}
