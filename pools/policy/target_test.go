package policy

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// aimed is a set of three prefills and two decodes, whose URLs are in another
// order than their ids, behind Targeted. Its policies pick the last.
func aimed(t *testing.T) *pools.Set {
	t.Helper()
	workers := []*pd.Worker{
		{ID: "prefill-0", Role: pd.Prefill, URL: "http://c:1"},
		{ID: "prefill-1", Role: pd.Prefill, URL: "http://a:1"},
		{ID: "prefill-2", Role: pd.Prefill, URL: "http://b:1"},
		{ID: "decode-0", Role: pd.Decode, URL: "http://e:1"},
		{ID: "decode-1", Role: pd.Decode, URL: "http://d:1"},
	}
	prefill, decode := Targeted(last{}, last{})
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(prefill, decode)})
	require.NoError(t, err)
	return set
}

type last struct{}

func (last) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	return members[len(members)-1]
}

func targeting(names string) *pd.Request {
	return &pd.Request{Header: http.Header{headerTargetWorker: {names}}}
}

func TestATargetIsPicked(t *testing.T) {
	set := aimed(t)
	f := func(name, target string, prefill, decode pd.WorkerID) {
		t.Run(name, func(t *testing.T) {
			plan := send(t, set, targeting(target))
			defer plan.End(pd.Success, pd.Success)
			assert.Equal(t, prefill, plan.Prefill.Worker.ID)
			assert.Equal(t, decode, plan.Decode.Worker.ID)
		})
	}
	f("nobody is named", "", "prefill-2", "decode-1")
	f("a prefill", "prefill-0", "prefill-0", "decode-1")
	f("a decode", "decode-0", "prefill-2", "decode-0")
	f("a pair", "decode-0, prefill-1", "prefill-1", "decode-0")
	f("the first of each by URL", "0", "prefill-1", "decode-1")
	f("the second", " 1 ", "prefill-2", "decode-0")
}

func TestATargetThatCannotBeUsedFailsTheRequest(t *testing.T) {
	f := func(name, target string, prepare func(*pools.Set)) {
		t.Run(name, func(t *testing.T) {
			set := aimed(t)
			prepare(set)
			plans, err := set.Plan(t.Context(), targeting(target), 1, nil)
			assert.Nil(t, plans)
			var e *pd.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, 503, e.Status)
			for _, m := range set.Members() {
				assert.Zero(t, m.InFlight(), m.Worker.ID)
			}
			send(t, set, targeting("")).End(pd.Success, pd.Success)
		})
	}
	still := func(*pools.Set) {}
	f("unknown", "prefill-9", still)
	f("one of a pair unknown", "prefill-1,decode-9", still)
	f("two of a role", "decode-0,decode-1", still)
	f("an empty name", "prefill-1,", still)
	f("no such index in one role", "2", still)
	f("no such index in any", "3", still)
	f("a negative index", "-1", still)
	f("an index beyond all numbers", "99999999999999999999", still)
	f("draining", "decode-0", func(s *pools.Set) { s.Drain("decode-0") })
	f("draining, by index", "0", func(s *pools.Set) { s.Drain("prefill-1") })
	f("gone", "decode-0", func(s *pools.Set) { _ = s.Remove("decode-0") })
}

// The index counts all workers: it names the same one while another is out.
func TestAnIndexDoesNotMove(t *testing.T) {
	set := aimed(t)
	require.True(t, set.Drain("prefill-1"))
	plan := send(t, set, targeting("1"))
	assert.Equal(t, pd.WorkerID("prefill-2"), plan.Prefill.Worker.ID)
	plan.End(pd.Success, pd.Success)
}

// recorder is a policy that follows its pool, and learns.
type recorder struct {
	last
	followed, chosen []pd.WorkerID
	learned          [][2]int
}

func (r *recorder) Chosen(_ *pd.Request, m *pools.Member) { r.chosen = append(r.chosen, m.Worker.ID) }

func (r *recorder) Follow(members []*pools.Member) {
	r.followed = nil
	for _, m := range members {
		r.followed = append(r.followed, m.Worker.ID)
	}
}

func (r *recorder) Learned(_ *pd.Request, _ pd.WorkerID, prompt, cached int) {
	r.learned = append(r.learned, [2]int{prompt, cached})
}

func TestThePolicyBehindATargetFollowsItsPool(t *testing.T) {
	inner := new(recorder)
	none, p := Targeted(Random{}, inner)
	set := fleet(t, 2, p)
	assert.Equal(t, []pd.WorkerID{"decode-0", "decode-1"}, inner.followed)
	send(t, set, nil).End(pd.Success, pd.Success)
	send(t, set, targeting("decode-0")).End(pd.Success, pd.Success)
	assert.Equal(t, []pd.WorkerID{"decode-1", "decode-0"}, inner.chosen, "what was named counts too")
	p.(pools.Learner).Learned(nil, "decode-0", 7, 5)
	none.(pools.Learner).Learned(nil, "prefill-0", 7, 5)
	assert.Equal(t, [][2]int{{7, 5}}, inner.learned)
}

// counter picks the last of members and counts how often it is asked.
type counter struct {
	last
	asked int
}

func (c *counter) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	c.asked++
	return c.last.Pick(req, members)
}

// With a decode that cannot be had, no prefill after the other is tried.
func TestATargetThatCannotBeUsedCostsNothing(t *testing.T) {
	f := func(name, target string, prepare func(*pools.Set)) {
		t.Run(name, func(t *testing.T) {
			prefill, decode := &counter{}, &counter{}
			p, d := Targeted(prefill, decode)
			var workers []*pd.Worker
			for i := range 64 {
				w := *decoder(i)
				w.ID, w.Role = "prefill-"+w.ID, pd.Prefill
				workers = append(workers, &w, decoder(i))
			}
			set, err := pools.New(workers, pools.Options{Policies: pools.Share(p, d)})
			require.NoError(t, err)
			prepare(set)
			_, err = set.Plan(t.Context(), targeting(target), 1, nil)
			require.Error(t, err)
			assert.Zero(t, prefill.asked)
			assert.Zero(t, decode.asked)
		})
	}
	still := func(*pools.Set) {}
	f("unknown", "decode-99", still)
	f("out of range", "64", still)
	f("dead", "decode-3", func(s *pools.Set) { s.Find("decode-3").Down("went away") })
	f("draining", "decode-3", func(s *pools.Set) { s.Drain("decode-3") })
	f("draining, by index", "0", func(s *pools.Set) { s.Drain("decode-0") })
	f("as many names as a header has room for", strings.Repeat("decode-1,", 50_000), still)
}

// engines is a set of whole engines behind TargetedRegular.
func engines(t *testing.T, workers ...*pd.Worker) *pools.Set {
	t.Helper()
	set, err := pools.New(workers, pools.Options{Regular: true, Policies: func(string) (pools.Policies, error) {
		return pools.Policies{Regular: TargetedRegular(last{})}, nil
	}})
	require.NoError(t, err)
	return set
}

func TestATargetAmongWholeEngines(t *testing.T) {
	set := engines(t,
		&pd.Worker{ID: "b", Role: pd.Regular, URL: "http://b:1"},
		&pd.Worker{ID: "c", Role: pd.Regular, URL: "http://c:1"},
		&pd.Worker{ID: "a", Role: pd.Regular, URL: "http://a:1"})
	f := func(target string, want pd.WorkerID) {
		t.Run(target, func(t *testing.T) {
			plans, err := set.Plan(t.Context(), targeting(target), 1, nil)
			if want == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, plans[0].Decode.Worker.ID)
			plans[0].End(pd.Success, pd.Success)
		})
	}
	f("", "a")
	f("b", "b")
	f("0", "a")
	f("2", "c")
	f("3", "")
	f("d", "")
	f("a,b", "")
	f("0,b", "")
	f("a,", "")
}

func TestRanksOfOneEngineAreCountedInTheirOrder(t *testing.T) {
	var workers []*pd.Worker
	for _, rank := range []int{10, 2, 0} {
		workers = append(workers, &pd.Worker{
			ID: pd.WorkerID("rank-" + strconv.Itoa(rank)), Role: pd.Regular, URL: "http://a:1", Rank: &rank,
		})
	}
	set := engines(t, workers...)
	for index, want := range []pd.WorkerID{"rank-0", "rank-2", "rank-10"} {
		plan := send(t, set, targeting(strconv.Itoa(index)))
		assert.Equal(t, want, plan.Decode.Worker.ID)
		plan.End(pd.Success, pd.Success)
	}
}
