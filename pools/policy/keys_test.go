package policy

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestTheRoutingKey(t *testing.T) {
	f := func(name, want string, pairs ...string) {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for i := 0; i < len(pairs); i += 2 {
				h.Add(pairs[i], pairs[i+1])
			}
			assert.Equal(t, want, routingKey(&pd.Request{Header: h}))
		})
	}
	f("nothing", "")
	f("the key first", "k", "X-SMG-Routing-Key", "k", "X-Forwarded-For", "1.2.3.4", "Cookie", "a=1")
	f("then the client's address", "1.2.3.4", "X-Forwarded-For", "1.2.3.4", "Cookie", "a=1")
	f("without the proxies", "1.2.3.4", "X-Forwarded-For", " 1.2.3.4 , 10.0.0.1, 10.0.0.2")
	f("then the cookies", "a=1; b=2", "Cookie", "a=1; b=2")
	f("never who pays", "", "Authorization", "Bearer shared")
	f("an empty key is none", "1.2.3.4", "X-SMG-Routing-Key", " ", "X-Forwarded-For", "1.2.3.4")
	f("an empty address is none", "a=1", "X-Forwarded-For", ", 10.0.0.1", "Cookie", "a=1")
	f("the first of several", "k", "X-SMG-Routing-Key", "k", "X-SMG-Routing-Key", "l")
	assert.Empty(t, routingKey(nil))
	assert.Empty(t, routingKey(&pd.Request{}))
}

func FuzzRoutingKey(f *testing.F) {
	f.Add("k", "1.2.3.4, 10.0.0.1", "a=1", "Bearer shared", "decode-1")
	f.Add("", "1.2.3.4", "", "", "0")
	f.Add(" \t", ",", "\x00\xff", "x", "decode-1,decode-2")
	f.Add("", "", "", "", "-1,")
	consistent := new(Consistent)
	_, p := Targeted(Random{}, consistent)
	set := fleet(f, 8, p)
	members := decoders(set)
	f.Fuzz(func(t *testing.T, key, address, cookie, authorization, target string) {
		req := &pd.Request{Header: http.Header{
			headerRoutingKey: {key}, headerForwardedFor: {address}, headerCookie: {cookie}, "Authorization": {authorization},
		}}
		without := &pd.Request{Header: req.Header.Clone()}
		without.Header.Del("Authorization")
		require.Equal(t, routingKey(without), routingKey(req))
		m := consistent.Pick(req, members)
		require.True(t, slices.Contains(members, m))
		if routingKey(req) != "" {
			require.Same(t, m, consistent.Pick(without, members))
		}
		req.Header.Set(headerTargetWorker, target)
		if m := p.Pick(req, members); m != nil {
			require.True(t, slices.Contains(members, m))
		}
	})
}

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

// recorder is a policy that follows its pool.
type recorder struct {
	last
	followed, chosen []pd.WorkerID
}

func (r *recorder) Chosen(_ *pd.Request, m *pools.Member) { r.chosen = append(r.chosen, m.Worker.ID) }

func (r *recorder) Follow(members []*pools.Member) {
	r.followed = nil
	for _, m := range members {
		r.followed = append(r.followed, m.Worker.ID)
	}
}

func TestThePolicyBehindATargetFollowsItsPool(t *testing.T) {
	inner := new(recorder)
	_, p := Targeted(Random{}, inner)
	set := fleet(t, 2, p)
	assert.Equal(t, []pd.WorkerID{"decode-0", "decode-1"}, inner.followed)
	send(t, set, nil).End(pd.Success, pd.Success)
	send(t, set, targeting("decode-0")).End(pd.Success, pd.Success)
	assert.Equal(t, []pd.WorkerID{"decode-1", "decode-0"}, inner.chosen, "what was named counts too")
}
