package pools_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// none never finds a member good enough.
type none struct{}

func (none) Pick(*pd.Request, []*pools.Member) *pools.Member { return nil }

func TestPlanTakesBothLeasesForEverySample(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{Policies: pools.Share(first{}, first{})})
	plans, err := set.Plan(t.Context(), nil, 3, nil)
	require.NoError(t, err)
	require.Len(t, plans, 3)
	assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 3, "decode-0": 3}, inFlight(set))

	plans[0].Prefill.End(pd.Success)
	assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 2, "decode-0": 3}, inFlight(set), "prefill is free at its answer")
	for range 2 { // a second end gives nothing back
		plans[0].End(pd.Success, pd.Success)
		assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 2, "decode-0": 2}, inFlight(set))
	}
	for _, p := range plans[1:] {
		p.End(pd.Fault, pd.Echo)
	}
	assert.Equal(t, map[pd.WorkerID]int64{"prefill-0": 0, "decode-0": 0}, inFlight(set))
}

// unasked fails the test when it is asked.
type unasked struct{ t *testing.T }

func (p unasked) Pick(*pd.Request, []*pools.Member) *pools.Member {
	p.t.Error("nothing was to be picked")
	return nil
}

func TestPrefillIsNotPickedWhereNoDecodeIsLeft(t *testing.T) {
	set := newSet(t, 1, 1, pools.Options{Policies: pools.Share(unasked{t}, first{})})
	set.Drain("decode-0")
	assert.Equal(t, "no decode worker is available: 1 draining", refused(t, set, 1).Message)
}

func TestSamplesShareOnePair(t *testing.T) {
	random, err := policy.ByName("random")
	require.NoError(t, err)
	set := newSet(t, 50, 50, pools.Options{Policies: pools.Share(random, random)})
	plans, err := set.Plan(t.Context(), nil, 16, nil)
	require.NoError(t, err)
	for _, p := range plans {
		assert.Same(t, plans[0].Prefill.Worker, p.Prefill.Worker)
		assert.Same(t, plans[0].Decode.Worker, p.Decode.Worker)
		assert.Equal(t, pd.Prefill, p.Prefill.Worker.Role)
		assert.Equal(t, pd.Decode, p.Decode.Worker.Role)
	}
}

func TestPlanWithoutAWorkerTakesNothing(t *testing.T) {
	for _, c := range []struct {
		name            string
		prefill, decode int
		opt             pools.Options
		code            string
	}{
		{"no prefill", 0, 1, pools.Options{Policies: pools.Share(first{}, first{})}, "no_prefill_available"},
		{"no decode", 1, 0, pools.Options{Policies: pools.Share(first{}, first{})}, "no_decode_available"},
		{"neither", 0, 0, pools.Options{Policies: pools.Share(first{}, first{})}, "no_prefill_available"},
		{"prefill's policy refuses", 1, 1, pools.Options{Policies: pools.Share(none{}, first{})}, "no_worker_chosen"},
		{"decode's policy refuses", 1, 1, pools.Options{Policies: pools.Share(first{}, none{})}, "no_worker_chosen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := newSet(t, c.prefill, c.decode, c.opt)
			plans, err := set.Plan(t.Context(), nil, 2, nil)
			assert.Nil(t, plans)
			var e *pd.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, pd.NoWorker, e.Kind)
			assert.Equal(t, pd.StagePlan, e.Stage)
			assert.Equal(t, 503, e.Status)
			assert.Equal(t, c.code, e.Code)
			assert.Equal(t, "1", e.RetryAfter)
			for id, n := range inFlight(set) {
				assert.Zero(t, n, id)
			}
		})
	}
}

func TestAvoidIsKeptWhileOthersExist(t *testing.T) {
	for _, c := range []struct {
		name            string
		avoid           []pd.WorkerID
		prefill, decode pd.WorkerID
	}{
		{"nothing to avoid", nil, "prefill-0", "decode-0"},
		{"one prefill", []pd.WorkerID{"prefill-0"}, "prefill-1", "decode-0"},
		{"one of each", []pd.WorkerID{"prefill-0", "decode-0"}, "prefill-1", "decode-1"},
		{"a whole role", []pd.WorkerID{"prefill-0", "prefill-1", "decode-0"}, "prefill-0", "decode-1"},
		{"all", []pd.WorkerID{"prefill-0", "prefill-1", "decode-0", "decode-1"}, "prefill-0", "decode-0"},
		{"somebody unknown", []pd.WorkerID{"prefill-9", ""}, "prefill-0", "decode-0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := newSet(t, 2, 2, pools.Options{Policies: pools.Share(first{}, first{})})
			plans, err := set.Plan(t.Context(), nil, 1, c.avoid)
			require.NoError(t, err)
			assert.Equal(t, c.prefill, plans[0].Prefill.Worker.ID)
			assert.Equal(t, c.decode, plans[0].Decode.Worker.ID)
		})
	}
}

func TestNewRefusesWhatCannotBeTold(t *testing.T) {
	opt := pools.Options{Policies: pools.Share(first{}, first{})}
	twice := append(workers(1, 1), workers(1, 0)...)
	_, err := pools.New(twice, opt)
	assert.ErrorContains(t, err, `"prefill-0"`)
	_, err = pools.New([]*pd.Worker{{}}, opt)
	assert.ErrorContains(t, err, "empty")
	_, err = pools.New(workers(1, 1), pools.Options{Policies: pools.Share(first{}, nil)})
	assert.ErrorContains(t, err, "policy")
}

func TestStatusAndWorkers(t *testing.T) {
	given := []*pd.Worker{
		{ID: "decode-0", Role: pd.Decode}, {ID: "prefill-0", Role: pd.Prefill}, {ID: "decode-1", Role: pd.Decode},
	}
	set, err := pools.New(given, pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	_, err = set.Plan(t.Context(), nil, 2, nil)
	require.NoError(t, err)
	assert.Equal(t, pools.Status{Workers: []pools.WorkerStatus{
		{Worker: given[1], ID: "prefill-0", Role: "prefill", State: pools.Ready, Breaker: "closed", InFlight: 2, Bootstrap: pools.ReachUnknown},
		{Worker: given[0], ID: "decode-0", Role: "decode", State: pools.Ready, Breaker: "closed", InFlight: 2},
		{Worker: given[2], ID: "decode-1", Role: "decode", State: pools.Ready, Breaker: "closed"},
	}}, set.Status())

	listed := set.Workers()
	assert.Equal(t, given, listed)
	listed[0] = nil
	assert.Equal(t, given, set.Workers(), "the list is the caller's own")
}

func TestCountsReturnToZeroUnderLoad(t *testing.T) {
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			prefill, err := policy.ByName(name)
			require.NoError(t, err)
			decode, err := policy.ByName(name)
			require.NoError(t, err)
			set := newSet(t, 3, 5, pools.Options{Policies: pools.Share(prefill, decode)})
			var negative atomic.Bool
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 500 {
						var avoid []pd.WorkerID
						if i%7 == 0 {
							avoid = []pd.WorkerID{"prefill-1", "decode-2"}
						}
						plans, err := set.Plan(t.Context(), nil, 1+i%3, avoid)
						if !assert.NoError(t, err) {
							return
						}
						for j, p := range plans {
							if (g+i+j)%2 == 0 {
								p.Prefill.End(pd.Success)
							}
							p.End(pd.Success, pd.Success)
						}
						for _, n := range inFlight(set) {
							if n < 0 {
								negative.Store(true)
							}
						}
					}
				})
			}
			wg.Wait()
			assert.False(t, negative.Load(), "no count is ever below zero")
			for id, n := range inFlight(set) {
				assert.Zero(t, n, id)
			}
		})
	}
}
