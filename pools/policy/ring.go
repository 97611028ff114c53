package policy

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tandem-pd/tandem/pools"
)

// places is how often each member is on a ring. The members' shares of the keys
// differ by some 8 % (one over its root).
const places = 150

// ring is a consistent-hash ring over the members of one pool. It never changes.
//
// A member is where the hash of "<name>#<i>" puts it, for i below [places]; see
// [slot] for its name. Two routers with the same workers therefore have the same
// ring, in whatever order they learnt of them, and keep it when they start anew. A
// key belongs to the first member at or after its own hash.
type ring struct {
	slots  []slot  // in the pool's order
	points []point // ascending
}

// point is a place on the ring and whose it is, by index into slots.
type point struct {
	hash uint64
	slot int
}

// follow is the ring of these members: r itself, if they are its own. Those who
// stay keep their points, so that only those of newcomers are hashed and sorted.
func (r *ring) follow(members []*pools.Member) *ring {
	if slices.EqualFunc(r.slots, members, func(s slot, m *pools.Member) bool { return s == slotOf(m) }) {
		return r
	}
	next := &ring{slots: make([]slot, len(members)), points: make([]point, 0, places*len(members))}
	old := make(map[slot]int, len(r.slots))
	to := make([]int, len(r.slots)) // where each of r's slots is now, -1 for nowhere
	for i, s := range r.slots {
		old[s], to[i] = i, -1
	}
	var fresh []point
	for i, m := range members {
		s := slotOf(m)
		next.slots[i] = s
		if at, ok := old[s]; ok {
			to[at] = i
		} else {
			fresh = appendPoints(fresh, s.name(), i)
		}
	}
	slices.SortFunc(fresh, next.compare)
	for _, p := range r.points {
		if p.slot = to[p.slot]; p.slot < 0 {
			continue
		}
		for len(fresh) > 0 && next.compare(fresh[0], p) < 0 {
			next.points, fresh = append(next.points, fresh[0]), fresh[1:]
		}
		next.points = append(next.points, p)
	}
	next.points = append(next.points, fresh...)
	return next
}

// appendPoints adds the points of a slot.
func appendPoints(points []point, name string, slot int) []point {
	points = slices.Grow(points, places)
	text := append([]byte(name), '#')
	for n := range places {
		text = strconv.AppendInt(text[:len(name)+1], int64(n), 10)
		points = append(points, point{hashOf(text), slot})
	}
	return points
}

// compare orders points, in the same way for all routers.
func (r *ring) compare(a, b point) int {
	switch {
	case a.hash < b.hash:
		return -1
	case a.hash > b.hash:
		return 1
	default:
		return r.slots[a.slot].compare(r.slots[b.slot])
	}
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
