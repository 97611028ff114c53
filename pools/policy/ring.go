package policy

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// places is how often each member is on a ring. The members' shares of the keys
// differ by some 8 % (one over its root).
const places = 150

// ring is a consistent-hash ring over the members of one pool. It never changes.
//
// A member is where the hash of "<URL>#<i>" puts it, for i below [places]; one
// without a URL goes by its id. Two routers with the same workers therefore have
// the same ring, in whatever order they learnt of them, and keep it when they
// start anew. A key belongs to the first member at or after its own hash.
type ring struct {
	slots  []slot  // in the pool's order
	points []point // ascending
}

// slot is what is kept of a member.
type slot struct {
	id  pd.WorkerID
	url string
}

// point is a place on the ring and whose it is, by index into slots.
type point struct {
	hash uint64
	slot int
}

func slotOf(m *pools.Member) slot { return slot{m.Worker.ID, m.Worker.URL} }

// name is what places the member on the ring.
func (s slot) name() string { return cmp.Or(s.url, string(s.id)) }

func newRing(members []*pools.Member) *ring {
	r := &ring{points: make([]point, 0, places*len(members))}
	var text []byte
	for i, m := range members {
		s := slotOf(m)
		r.slots = append(r.slots, s)
		text = append(append(text[:0], s.name()...), '#')
		for n := range places {
			text = strconv.AppendInt(text[:len(s.name())+1], int64(n), 10)
			r.points = append(r.points, point{hashOf(text), i})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		return cmp.Compare(r.slots[a.slot].name(), r.slots[b.slot].name())
	})
	return r
}

// of reports whether r is the ring of these members.
func (r *ring) of(members []*pools.Member) bool {
	return slices.EqualFunc(r.slots, members, func(s slot, m *pools.Member) bool { return s == slotOf(m) })
}

// find is the first member clockwise from hash that is among those offered and
// has at most room in flight; nil if there is none. Those offered are some of the
// ring's members, in the pool's order.
func (r *ring) find(hash uint64, offered []*pools.Member, room float64) *pools.Member {
	start, _ := slices.BinarySearchFunc(r.points, hash, func(p point, h uint64) int { return cmp.Compare(p.hash, h) })
	for i := range r.points {
		at := start + i
		if at >= len(r.points) {
			at -= len(r.points)
		}
		if m := r.member(r.points[at].slot, offered); m != nil && float64(m.InFlight()) <= room {
			return m
		}
	}
	return nil
}

// member is the one of those offered that has the slot, nil if it is not among
// them. As the order is the same, it can be no further from the slot's own index
// than the number of members that are left out: none, as a rule. (Or that are
// new: for an instant a request may have more members than the ring.)
func (r *ring) member(at int, offered []*pools.Member) *pools.Member {
	out := len(r.slots) - len(offered)
	for i := max(0, at-max(0, out)); i < min(len(offered), at+max(0, -out)+1); i++ {
		if offered[i].Worker.ID == r.slots[at].id {
			return offered[i]
		}
	}
	return nil
}

// hashOf is FNV-1a of 64 bits, then the finaliser of splitmix64: FNV alone leaves
// names that differ in their last byte close to each other. It is part of what
// routers agree on and must not change.
func hashOf[T string | []byte](s T) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
