package policy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// ofSession is a request of session n, or one without a key if n is negative.
func ofSession(n int) *pd.Request {
	if n < 0 {
		return &pd.Request{}
	}
	return &pd.Request{Header: http.Header{"X-Smg-Routing-Key": {"session-" + strconv.Itoa(n)}}}
}

// newManual is a policy that has been told of members.
func newManual(t testing.TB, members []*pools.Member, opt ManualOptions) *Manual {
	t.Helper()
	opt.Key = func(req *pd.Request) string { return req.Header.Get("X-Smg-Routing-Key") }
	p, err := NewManual(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	p.Follow(members)
	return p
}

// picks is the worker of each of the first n sessions.
func picks(t testing.TB, p *Manual, n int, members []*pools.Member) []pd.WorkerID {
	t.Helper()
	return picksOf(t, p, 0, n, members)
}

// picksOf is the worker of each session from one to before another.
func picksOf(t testing.TB, p *Manual, from, before int, members []*pools.Member) []pd.WorkerID {
	t.Helper()
	var ids []pd.WorkerID
	for i := from; i < before; i++ {
		m := p.Pick(ofSession(i), members)
		require.True(t, slices.Contains(members, m), "one of those offered")
		ids = append(ids, m.Worker.ID)
	}
	return ids
}

// less is members without those called out.
func less(members []*pools.Member, out ...pd.WorkerID) []*pools.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m *pools.Member) bool {
		return slices.Contains(out, m.Worker.ID)
	})
}

func count(ids []pd.WorkerID) map[pd.WorkerID]int {
	counts := map[pd.WorkerID]int{}
	for _, id := range ids {
		counts[id]++
	}
	return counts
}

var assignments = []Assignment{AssignRandom, AssignMinLoad, AssignMinGroup}

func TestManualASessionStaysOnItsWorker(t *testing.T) {
	for _, how := range assignments {
		t.Run(string(how), func(t *testing.T) {
			members := loaded(t, 3, 0, 2, 1)
			p := newManual(t, members, ManualOptions{Assignment: how})
			first := picks(t, p, 50, members)
			for range 20 {
				assert.Equal(t, first, picks(t, p, 50, members))
			}
		})
	}
}

func TestManualAssignment(t *testing.T) {
	// f assigns so many new sessions to members with so much in flight: each member
	// gets between low and high of them, those named in never get none.
	f := func(how Assignment, sessions int, inFlight []int, low, high int, never ...int) {
		t.Helper()
		members := loaded(t, inFlight...)
		got := count(picks(t, newManual(t, members, ManualOptions{Assignment: how}), sessions, members))
		for i, m := range members {
			if n := got[m.Worker.ID]; slices.Contains(never, i) {
				assert.Zero(t, n, "%s: member %d", how, i)
			} else {
				assert.GreaterOrEqual(t, n, low, "%s: member %d", how, i)
				assert.LessOrEqual(t, n, high, "%s: member %d", how, i)
			}
		}
	}
	f("", 400, []int{0, 9, 0, 0}, 50, 150)
	f(AssignRandom, 400, []int{0, 9, 0, 0}, 50, 150)
	f(AssignMinLoad, 400, []int{3, 0, 2, 0}, 140, 260, 0, 2)
	f(AssignMinLoad, 400, []int{1, 1, 1, 1}, 50, 150)
	f(AssignMinGroup, 400, []int{0, 9, 0, 0}, 100, 100)
	f(AssignMinGroup, 401, []int{0, 9, 0, 0}, 100, 101)
}

func TestManualEqualsAreChosenAtRandom(t *testing.T) {
	for _, how := range assignments {
		members, firsts := idle(t, 4), []pd.WorkerID(nil)
		for range 400 {
			firsts = append(firsts, picks(t, newManual(t, members, ManualOptions{Assignment: how}), 1, members)...)
		}
		for id, n := range count(firsts) {
			assert.InDelta(t, 100, n, 50, "%s: %s is first", how, id)
		}
	}
}

func TestManualMinGroupCountsWhereSessionsAreNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := idle(t, 2)
		p := newManual(t, members, ManualOptions{Assignment: AssignMinGroup, MaxIdle: time.Hour})
		picks(t, p, 10, members[:1]) // all on the first
		assert.Equal(t, map[pd.WorkerID]int{"decode-1": 10}, count(picksOf(t, p, 10, 20, members)))

		picks(t, p, 10, members[1:]) // the first ten move
		assert.Equal(t, map[pd.WorkerID]int{"decode-0": 20}, count(picksOf(t, p, 20, 40, members)))

		time.Sleep(time.Hour) // sessions that are forgotten count no more
		picksOf(t, p, 100, 102, members)
		assert.Equal(t, 2, p.hosts["decode-0"].keys+p.hosts["decode-1"].keys)
	})
}

func TestManualRequestsWithoutAKeyAreNotRemembered(t *testing.T) {
	for _, how := range assignments {
		members := loaded(t, 0, 0, 0, 5)
		p := newManual(t, members, ManualOptions{Assignment: how})
		seen := map[pd.WorkerID]int{}
		for i := range 300 {
			req := ofSession(-1)
			if i%2 == 0 {
				req = nil
			}
			seen[p.Pick(req, members).Worker.ID]++
		}
		for _, m := range members[:3] {
			assert.Greater(t, seen[m.Worker.ID], 30, how)
		}
		assert.Equal(t, how == AssignMinLoad, seen["decode-3"] == 0, how)
		assert.Empty(t, p.known, how)
	}
}

func TestManualNoMembersNoPick(t *testing.T) {
	p := newManual(t, nil, ManualOptions{})
	assert.Nil(t, p.Pick(ofSession(1), nil))
	assert.Empty(t, p.known)
}

func TestManualFailsOverAndBack(t *testing.T) {
	members := idle(t, 8)
	p := newManual(t, members, ManualOptions{})
	first := picks(t, p, 1, members)[0]
	second := picks(t, p, 1, less(members, first))[0]
	for range 20 {
		assert.Equal(t, second, picks(t, p, 1, less(members, first))[0], "stays on the second")
	}
	assert.Equal(t, first, picks(t, p, 1, members)[0], "and goes back to the first")
	assert.Equal(t, first, picks(t, p, 1, less(members, second))[0])

	third := picks(t, p, 1, less(members, first, second))[0]
	assert.Equal(t, second, picks(t, p, 1, members)[0], "the older of two has made room")
	assert.Equal(t, third, picks(t, p, 1, less(members, second))[0])
}

func TestManualNewWorkersTakeNoSessions(t *testing.T) {
	for _, how := range assignments {
		members := loaded(t, 5, 5, 0, 0)
		p := newManual(t, members[:2], ManualOptions{Assignment: how})
		before := picks(t, p, 100, members[:2])
		p.Follow(members)
		assert.Equal(t, before, picks(t, p, 100, members), how)
		p.Follow(slices.Concat(members[2:], members[:2])) // other places in the pool
		assert.Equal(t, before, picks(t, p, 100, members), how)
	}
}

func TestManualAWorkerThatLeavesLosesItsSessions(t *testing.T) {
	members := idle(t, 3)
	p := newManual(t, members, ManualOptions{})
	before := picks(t, p, 60, members)
	left := less(members, "decode-1")
	p.Follow(left)
	after := picks(t, p, 60, left)
	for i := range before {
		if before[i] != "decode-1" {
			assert.Equal(t, before[i], after[i], "others stay")
		}
	}
	p.Follow(members)
	assert.Equal(t, after, picks(t, p, 60, members), "they do not go back")

	// It was a candidate no more: a session of its own has two places for others.
	i := slices.Index(before, "decode-1")
	others := less(members, after[i])
	next := p.Pick(ofSession(i), others).Worker.ID
	assert.Equal(t, after[i], p.Pick(ofSession(i), members).Worker.ID)
	assert.Equal(t, next, p.Pick(ofSession(i), others).Worker.ID)
}

func TestManualWhoPlansWithThePoolOfBeforeStays(t *testing.T) {
	members := idle(t, 4)
	p := newManual(t, members, ManualOptions{})
	before := picks(t, p, 40, members)
	p.Follow(members[1:]) // heard before those who plan see one go
	for i, id := range picks(t, p, 40, members) {
		if before[i] != "decode-0" {
			assert.Equal(t, before[i], id)
		}
	}
	p.Follow(nil)
	picks(t, p, 60, members)
	p.Follow(members)
	picks(t, p, 60, members)
	soundManual(t, p)
}

func TestManualEachPoolHasItsOwnSessions(t *testing.T) {
	var workers []*pd.Worker
	for i := range 4 {
		workers = append(workers,
			&pd.Worker{ID: pd.WorkerID(fmt.Sprintf("prefill-%d", i)), Role: pd.Prefill},
			&pd.Worker{ID: pd.WorkerID(fmt.Sprintf("decode-%d", i)), Role: pd.Decode})
	}
	prefill, decode := newManual(t, nil, ManualOptions{}), newManual(t, nil, ManualOptions{})
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(prefill, decode), Suspect: func() {}})
	require.NoError(t, err)
	for _, m := range set.Members() {
		m.Up()
	}
	pair := func() [2]pd.WorkerID {
		plans, err := set.Plan(t.Context(), ofSession(1), 1, nil)
		require.NoError(t, err)
		plans[0].End(pd.Success, pd.Success)
		return [2]pd.WorkerID{plans[0].Prefill.Worker.ID, plans[0].Decode.Worker.ID}
	}
	first := pair()
	for range 10 {
		assert.Equal(t, first, pair())
	}

	set.Find(first[0]).Down("restarts")
	other := pair()
	assert.NotEqual(t, first[0], other[0])
	assert.Equal(t, first[1], other[1], "decode stays")
	set.Find(first[0]).Up()
	assert.Equal(t, first, pair(), "sessions outlive a restart of their worker")

	updated := *set.Find(first[1]).Worker
	updated.DPSize = 2
	require.NoError(t, set.Update(&updated))
	assert.Equal(t, first, pair(), "and an update")

	require.NoError(t, set.Remove(first[1]))
	assert.NotEqual(t, first[1], pair()[1])
	assert.Equal(t, first[0], pair()[0])
}

func TestManualForgetsIdleSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := idle(t, 64)
		p := newManual(t, members, ManualOptions{MaxIdle: time.Hour})
		first := picks(t, p, 3, members)
		for range 3 {
			time.Sleep(time.Hour - 1)
			assert.Equal(t, first, picks(t, p, 3, members), "each request renews it")
		}
		time.Sleep(time.Hour)
		assert.False(t, p.knows(keyOf("session-0")))
		picksOf(t, p, 3, 4, members)
		assert.Len(t, p.known, 1)
		soundManual(t, p)
	})
}

func TestManualForgetsFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := idle(t, 2)
		p := newManual(t, members, ManualOptions{MaxIdle: time.Hour})
		picks(t, p, 100, members)
		time.Sleep(2 * time.Hour)
		for _, left := range []int{100 - forgetAtOnce, 100 - 2*forgetAtOnce, 100 - 3*forgetAtOnce, 0} {
			p.Pick(ofSession(1000), members)
			assert.Len(t, p.known, left+1)
		}
		assert.Contains(t, p.known, p.used.next.key)
		soundManual(t, p)
	})
}

func TestManualASessionIsForgottenInTimeWhateverIsBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := idle(t, 2)
		p := newManual(t, members, ManualOptions{MaxIdle: time.Hour})
		picks(t, p, 1000, members)
		last := p.known[keyOf("session-999")]
		time.Sleep(time.Hour)
		p.Pick(ofSession(999), members)
		assert.NotSame(t, last, p.known[keyOf("session-999")])
		assert.Len(t, p.known, 1000-forgetAtOnce)
		soundManual(t, p)
	})
}

// soundManual checks that all that is known of sessions fits together.
func soundManual(t testing.TB, p *Manual) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, keys := 0, map[*host]int{}
	for s := p.used.next; s != &p.used; s = s.next {
		n++
		require.Same(t, s, p.known[s.key])
		require.Same(t, s, s.next.prev)
		require.True(t, s.next == &p.used || s.at <= s.next.at, "in the order of use")
		require.True(t, s.workers[0] != "" && s.workers[0] != s.workers[1], "candidates %q", s.workers)
		keys[s.last]++
	}
	require.Len(t, p.known, n)
	for id, h := range p.hosts {
		require.Equal(t, keys[h], h.keys, id)
	}
}

// churn picks for few sessions from changing members of a changing pool.
func churn(t *testing.T, p *Manual, members []*pools.Member) {
	t.Helper()
	var wrong atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3000 {
				from := rand.IntN(len(members))
				offered := members[from : from+1+rand.IntN(len(members)-from)]
				if !slices.Contains(offered, p.Pick(ofSession(rand.IntN(300)-20), offered)) {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for range 300 {
			p.Follow(members[rand.IntN(len(members)):])
		}
		p.Follow(members)
	})
	wg.Wait()
	assert.Zero(t, wrong.Load(), "every pick is one of those offered")
	picks(t, p, 50, members)
	soundManual(t, p)
}

func TestManualChurn(t *testing.T) {
	for _, how := range assignments {
		members := idle(t, 8)
		churn(t, newManual(t, members, ManualOptions{Assignment: how, MaxKeys: 200, MaxIdle: 5 * time.Millisecond}), members)
	}
}

func TestManualOptions(t *testing.T) {
	key := func(*pd.Request) string { return "" }
	f := func(opt ManualOptions, want string) {
		t.Helper()
		_, err := NewManual(t.Context(), opt)
		assert.EqualError(t, err, "policy manual: "+want)
	}
	f(ManualOptions{Key: key, Assignment: "least"}, `assignment "least" is unknown: want random, min_load or min_group`)
	f(ManualOptions{Key: key, MaxIdle: -1}, "a bound is negative")
	f(ManualOptions{Key: key, MaxKeys: -1}, "a bound is negative")
	f(ManualOptions{Key: key, StoreTimeout: -1}, "a bound is negative")
}
