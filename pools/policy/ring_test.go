package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Routers of several versions serve the same workers: these never change.
func TestHashesAreTheSameForEver(t *testing.T) {
	f := func(s string, want uint64) {
		t.Helper()
		assert.Equal(t, want, hashOf(s), s)
		assert.Equal(t, want, hashOf([]byte(s)), s)
	}
	f("", 0xf52a15e9a9b5e89b)
	f("a", 0x2c0bdbf481420f8)
	f("http://10.0.0.1:30000#0", 0xf17e39e70a908df2)
	f("http://10.0.0.1:30000#149", 0x9163b175bb2b5929)
}

// newRing is the ring of members, made at one stroke.
func newRing(members []*pools.Member) *ring { return new(ring).follow(members) }

func TestKeysKeepTheirMembersForEver(t *testing.T) {
	r := newRing(decoders(fleet(t, 8, Random{})))
	var got []int
	for i := range 32 {
		got = append(got, r.owner(fmt.Sprintf("session-%d", i)))
	}
	assert.Equal(t, []int{
		4, 1, 0, 6, 5, 7, 4, 5, 4, 1, 7, 7, 2, 2, 7, 4,
		6, 2, 2, 4, 1, 0, 5, 6, 0, 2, 2, 1, 5, 7, 2, 1,
	}, got)
}

// owner is the index of the member that a key belongs to.
func (r *ring) owner(key string) int {
	h := hashOf(key)
	for _, p := range r.points {
		if p.hash >= h {
			return p.slot
		}
	}
	return r.points[0].slot
}

// What is found is what a search of everything finds.
func TestTheNextOfThoseOfferedIsFound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 2, 5, 16, 100} {
		members := decoders(fleet(t, n, Random{}))
		ring := newRing(members)
		for range 300 {
			var offered []*pools.Member
			for _, m := range members {
				if r.IntN(4) >= r.IntN(4) {
					offered = append(offered, m)
				}
			}
			hash := r.Uint64()
			require.Same(t, search(ring, members, offered, hash), ring.find(hash, offered, math.Inf(1)))
		}
	}
}

// search is the first of those offered, seen from hash, without haste.
func search(r *ring, members, offered []*pools.Member, hash uint64) *pools.Member {
	var found *pools.Member
	least := uint64(math.MaxUint64)
	for _, p := range r.points {
		m := members[p.slot]
		if way := p.hash - hash; slices.Contains(offered, m) && way <= least {
			found, least = m, way
		}
	}
	return found
}

func TestARingOfBeforeStillFinds(t *testing.T) {
	members := decoders(fleet(t, 9, Random{}))
	f := func(name string, of, offered []*pools.Member) {
		t.Run(name, func(t *testing.T) {
			ring, found := newRing(of), map[*pools.Member]bool{}
			for range 5000 {
				m := ring.find(rand.Uint64(), offered, math.Inf(1))
				require.True(t, slices.Contains(offered, m))
				found[m] = true
			}
			assert.GreaterOrEqual(t, len(found), 8)
		})
	}
	f("one has come", members[:8], members)
	f("one has gone", members, members[:8])
	f("the first has come", members[1:], members)
	f("the first has gone", members, members[1:])
}

func TestAnEmptyRingFindsNobody(t *testing.T) {
	members := decoders(fleet(t, 3, Random{}))
	assert.Nil(t, newRing(nil).find(1, members, math.Inf(1)))
	assert.Nil(t, newRing(members).find(1, nil, math.Inf(1)))
}

func TestTheSamePoolKeepsItsRing(t *testing.T) {
	members := decoders(fleet(t, 8, Random{}))
	h := new(hashed)
	h.Follow(members)
	before := h.ring.Load()
	h.Follow(slices.Clone(members))
	assert.Same(t, before, h.ring.Load())
	h.Follow(members[1:])
	assert.NotSame(t, before, h.ring.Load())
}

// Routers that have seen workers come and go have the ring of one that starts anew.
func TestARingDoesNotRememberHowItCameAbout(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	all := decoders(fleet(t, 40, Random{}))
	grown := new(ring)
	for range 60 {
		var now []*pools.Member
		for _, i := range r.Perm(len(all))[:1+r.IntN(len(all))] {
			now = append(now, all[i])
		}
		grown = grown.follow(now)
		require.Equal(t, newRing(now), grown)
	}
}

// The ranks of one engine share its URL.
func TestEachRankHasItsOwnShareOfTheKeys(t *testing.T) {
	set := fleet(t, 0, new(Consistent))
	for rank := range 4 {
		w := decoder(rank)
		w.URL, w.Rank = "http://10.0.0.1:30000", &rank
		require.NoError(t, set.Add(w))
	}
	had := map[pd.WorkerID]int{}
	for _, id := range homes(t, set, keys(4000)) {
		had[id]++
	}
	evenly(t, had, 4, 0.1)
}

func BenchmarkFollow(b *testing.B) {
	for _, n := range []int{4, 64, 1024} {
		members := decoders(fleet(b, n, Random{}))
		f := func(name string, from []*pools.Member) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				before := newRing(from)
				b.ReportAllocs()
				for b.Loop() {
					before.follow(members)
				}
			})
		}
		f("all", nil)
		f("one more", members[1:])
		f("one less", append(slices.Clip(members), decoders(fleet(b, n+1, Random{}))[n]))
	}
}
