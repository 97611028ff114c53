package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// mix sends n requests as f draws them, each with its kind, and tells the bytes of
// each kind that each decode was given. They end in any order, some are in flight.
func mix(t *testing.T, f func() (*pd.Request, int), send func(*pd.Request) *pd.Plan, n int) map[pd.WorkerID]map[int]int {
	t.Helper()
	given := map[pd.WorkerID]map[int]int{}
	var flying []*pd.Plan
	for range n {
		req, kind := f()
		plan := send(req)
		id := plan.Decode.Worker.ID
		if given[id] == nil {
			given[id] = map[int]int{}
		}
		given[id][kind] += length(req)
		flying = append(flying, plan)
		if len(flying) > 16 {
			at := rand.IntN(len(flying))
			flying[at].End(pd.Success, pd.Success)
			flying[at] = flying[len(flying)-1]
			flying = flying[:len(flying)-1]
		}
	}
	finish(flying)
	return given
}

// learnt has the bucket of a bubble cut after n requests as f draws them.
func learnt(t *testing.T, f func() (*pd.Request, int), send func(*pd.Request) *pd.Plan, n int) {
	t.Helper()
	mix(t, f, send, n)
	time.Sleep(5 * time.Second)
	mix(t, f, send, 1)
}

// oneIn draws a long request for every so many, and short ones else.
func oneIn(every int, short, long *pd.Request) func() (*pd.Request, int) {
	i := 0
	return func() (*pd.Request, int) {
		i++
		if i%every == 0 {
			return long, 1
		}
		return short, 0
	}
}

// apart are the members that were given short and long requests: no one both.
func apart(t *testing.T, given map[pd.WorkerID]map[int]int) (short, long int) {
	t.Helper()
	for id, kinds := range given {
		assert.Len(t, kinds, 1, "%s was given both kinds", id)
		if kinds[0] > 0 {
			short++
		} else {
			long++
		}
	}
	return short, long
}

func TestShortPromptsAreNeverBehindLongOnes(t *testing.T) {
	short, long := tokens(t, 200), tokens(t, 32_000)
	f := func(name string, members, every, wantShort int) {
		inBubble(t, name, func(t *testing.T) {
			set := fleet(t, members, NewBucket(BucketOptions{}))
			plan := func(req *pd.Request) *pd.Plan { return send(t, set, req) }
			kinds := oneIn(every, short, long)
			learnt(t, kinds, plan, 2*minSeen*every)
			shorts, longs := apart(t, mix(t, kinds, plan, 400*every))
			assert.Equal(t, wantShort, shorts)
			assert.Equal(t, members-wantShort, longs, "every member is used")
		})
	}
	f("as many of each", 8, 2, 1)
	f("one long in ten", 8, 10, 1)
	f("one in a hundred", 8, 100, 3) // 39 % of the bytes are short
	f("few members", 3, 10, 1)
	f("many members", 24, 40, 5) // 20 %
}

func TestEveryMemberIsUsedFromTheFirstRequestOn(t *testing.T) {
	f := func(name string, lengths ...int) {
		t.Run(name, func(t *testing.T) {
			set := fleet(t, 8, NewBucket(BucketOptions{}))
			var reqs []*pd.Request
			for _, n := range lengths {
				reqs = append(reqs, tokens(t, n))
			}
			longest := length(reqs[len(reqs)-1])
			var plans []*pd.Plan
			for i := range 8 * minSeen {
				plans = append(plans, send(t, set, reqs[i%len(reqs)]))
				if i < minSeen {
					require.LessOrEqual(t, excess(set), 4*float64(longest+requestCost))
				}
			}
			for _, m := range decoders(set) {
				assert.Positive(t, m.InFlight(), m.Worker.ID)
			}
			finish(plans)
		})
	}
	f("all alike", 100)
	f("two kinds", 100, 10_000)
	f("all sorts", 10, 30, 100, 300, 1000, 3000)
}

// excess is how much more the busiest decode has in flight than the mean, in bytes.
func excess(set *pools.Set) float64 {
	members := decoders(set)
	var most, mean float64
	for _, m := range members {
		most, mean = max(most, float64(load(m))), mean+float64(load(m))/float64(len(members))
	}
	return most - mean
}

// inBubble runs f as a test for which time stands still but in Sleep.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestMembersGetEqualSharesOfTheBytes(t *testing.T) { synctest.Test(t, equalShares) }

func equalShares(t *testing.T) {
	const members = 8
	set := fleet(t, members, NewBucket(BucketOptions{}))
	r := rand.New(rand.NewPCG(7, 7))
	var reqs []*pd.Request
	for n := 100; n < 20_000; n += n / 9 {
		reqs = append(reqs, tokens(t, n))
	}
	draw := func() (*pd.Request, int) { i := r.IntN(len(reqs)); return reqs[i], i }
	plan := func(req *pd.Request) *pd.Plan { return send(t, set, req) }
	learnt(t, draw, plan, 20_000)
	given := mix(t, draw, plan, 20_000)
	sum, bytes := 0, map[pd.WorkerID]int{}
	for id, kinds := range given {
		for _, n := range kinds {
			bytes[id] += n
			sum += n
		}
	}
	require.Len(t, bytes, members)
	for id, got := range bytes {
		assert.InDelta(t, 1.0/members, float64(got)/float64(sum), 0.03, id)
	}
}

func TestRangesFollowThePool(t *testing.T) { synctest.Test(t, rangesFollowThePool) }

func rangesFollowThePool(t *testing.T) {
	short, long := tokens(t, 200), tokens(t, 32_000)
	set := fleet(t, 8, NewBucket(BucketOptions{}))
	plan := func(req *pd.Request) *pd.Plan { return send(t, set, req) }
	kinds := oneIn(10, short, long)
	learnt(t, kinds, plan, 20*minSeen)
	f := func(name string, members int) {
		t.Helper()
		given := mix(t, kinds, plan, 3000)
		assert.Len(t, given, members, name)
		shorts, _ := apart(t, given)
		assert.Equal(t, 1, shorts, name)
	}
	f("all", 8)
	require.True(t, set.Drain("decode-0"))
	f("the one for short prompts is out", 7)
	require.NoError(t, set.Remove("decode-7"))
	f("one has gone", 6)
	require.NoError(t, set.Add(decoder(9)))
	require.NoError(t, set.Add(decoder(10)))
	f("two have come", 8)
	require.True(t, set.Resume("decode-0"))
	f("it is back", 9)
}

// Routers that have learnt of the workers in other orders, and do not see the same
// ones, have the same ranges.
func TestRangesAreTheSameForEveryRouter(t *testing.T) {
	members := decoders(fleet(t, 12, Random{}))
	short, long := tokens(t, 100), tokens(t, 10_000)
	learnt := func(members []*pools.Member) *Bucket {
		b := NewBucket(BucketOptions{})
		b.Follow(members)
		for range minSeen {
			b.Chosen(short, members[0])
			b.Chosen(long, members[0])
		}
		return b
	}
	r := rand.New(rand.NewPCG(9, 9))
	f := func(name string, offered []*pools.Member) {
		t.Run(name, func(t *testing.T) {
			shuffled := slices.Clone(members)
			r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			one, other := learnt(members), learnt(shuffled)
			again := slices.DeleteFunc(shuffled, func(m *pools.Member) bool { return !slices.Contains(offered, m) })
			for _, req := range []*pd.Request{short, long} {
				had, theirs := map[*pools.Member]bool{}, map[*pools.Member]bool{}
				for range 1000 {
					had[one.Pick(req, offered)] = true
					theirs[other.Pick(req, again)] = true
				}
				assert.Equal(t, had, theirs)
				assert.Less(t, len(had), len(offered))
			}
		})
	}
	f("all", members)
	f("some are out", append(slices.Clone(members[2:5]), members[7:]...))
}

func TestOutOfBalanceTheIdlestIsPicked(t *testing.T) {
	f := func(name string, opt BucketOptions, counts []int, want bool) {
		t.Run(name, func(t *testing.T) {
			members := loaded(t, counts...)
			b := NewBucket(opt)
			b.Follow(members)
			short, long := tokens(t, 10), tokens(t, 10_000)
			for range minSeen {
				b.Chosen(short, members[0])
				b.Chosen(long, members[0])
			}
			idlest := members[1]
			for range 50 {
				assert.Equal(t, want, b.Pick(short, members) == idlest)
			}
		})
	}
	f("idle", BucketOptions{}, []int{0, 0, 0, 0}, false)
	f("no more than the difference that may be", BucketOptions{}, []int{64, 0, 64, 64}, false)
	f("more", BucketOptions{}, []int{65, 0, 65, 65}, true)
	f("but not so many times as many", BucketOptions{}, []int{300, 200, 300, 300}, false)
	f("many times as many", BucketOptions{}, []int{301, 200, 301, 301}, true)
	f("as it is set", BucketOptions{BalanceAbs: 2, BalanceRel: 1.1}, []int{13, 10, 13, 13}, true)
	f("the factor alone", BucketOptions{BalanceAbs: -1, BalanceRel: 2}, []int{3, 1, 2, 2}, true)
}

func TestRangesFollowTheTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := loaded(t, 0, 0, 0, 0)
		b := NewBucket(BucketOptions{Interval: 2 * time.Second})
		b.Follow(members)
		short, middle, long := tokens(t, 100), tokens(t, 120), tokens(t, 10_000)
		see := func(n int, reqs ...*pd.Request) *cut {
			for range n {
				for _, req := range reqs {
					b.Chosen(req, members[0])
				}
			}
			return b.cut.Load()
		}
		assert.Nil(t, see(minSeen/2-1, short, long), "too few")
		first := see(1, short, long)
		require.NotNil(t, first)
		assert.Len(t, first.ends, 2)

		assert.Same(t, first, see(minSeen, middle), "it is too soon")
		time.Sleep(2 * time.Second)
		assert.Same(t, first, see(minSeen, short, long), "much the same")

		time.Sleep(time.Minute)
		later := see(40*minSeen, middle)
		for range 20 {
			time.Sleep(2 * time.Second)
			later = see(40*minSeen, middle)
		}
		assert.NotSame(t, first, later)
		assert.Len(t, later.ends, 1, "what was long ago is forgotten")
	})
}

func TestABatchIsAsLongAsAllOfIt(t *testing.T) {
	one := length(request(t, pd.Generate, `{"text":"a prompt"}`))
	batch := length(request(t, pd.Generate, `{"text":["a prompt","a prompt","a prompt"]}`))
	assert.Equal(t, 3*one, batch)
	ids := length(request(t, pd.Generate, `{"input_ids":[1,2,3,4,5,6,7,8]}`))
	text := length(request(t, pd.Generate, `{"text":"thirty-two bytes, eight tokens.."}`))
	assert.Equal(t, text, ids)
}
