package pools

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// choice is the search for those who are to serve one call.
type choice struct {
	set     *Set
	group   *group
	samples int
	work    int64 // of each sample, see Member.Work
	avoid   []pd.WorkerID
	now     time.Time

	unwanted bool    // the policy wanted none of those that it was offered
	narrowed bool    // some that are usable were done without
	any      bool    // none of those that are usable is done without
	force    bool    // open breakers are passed where all are open
	full     *Member // one that may be used but had no room
}

// candidates are the members of the best rank, in order. It allocates only where
// they do not lie side by side, and is quick about members that nothing is the
// matter with: there may be a thousand.
func (c *choice) candidates(members []*Member) []*Member {
	best, from, to := unusable+1, 0, 0 // members[from:to] are of rank best
	var left []*Member                 // or these, once there is a gap
	n := 0                             // may be used at all
	look := len(c.avoid) > 0 || c.set.opt.MaxInFlight > 0
	for i, m := range members {
		r := spotless
		if look || !m.calm() {
			r = c.rank(m)
		}
		if r != unusable {
			n++
		}
		switch {
		case r < best:
		case r > best:
			best, from, to, left = r, i, i+1, nil
		case left != nil:
			left = append(left, m)
		case from == to:
			from, to = i, i+1
		case to == i:
			to++
		default:
			left = append(append(make([]*Member, 0, len(members)), members[from:to]...), m)
		}
	}
	if left == nil {
		left = members[from:to]
	}
	c.narrowed = c.narrowed || len(left) < n
	return left
}

// The rank of a member: unusable, or what speaks for it, by weight. A call is
// sent to others than those to be avoided if there are any, and among those to
// others than the busy ones.
const (
	unusable     = 0
	byForce      = 1
	notBusy      = 2
	notAvoided   = 4
	withoutForce = 8
	spotless     = withoutForce | notAvoided | notBusy
)

func (c *choice) rank(m *Member) int {
	rank := withoutForce
	if !c.usable(m) {
		if !c.force || !c.forcible(m) {
			return unusable
		}
		rank = byForce
	}
	if c.any || len(c.avoid) == 0 || !slices.Contains(c.avoid, m.Worker.ID) {
		rank |= notAvoided
	}
	if c.any || !m.isBusy(c.now) {
		rank |= notBusy
	}
	return rank
}

// usable reports whether a member could be taken.
func (c *choice) usable(m *Member) bool { return c.mayTake(m, false) }

// forcible reports the same where open breakers are passed.
func (c *choice) forcible(m *Member) bool { return c.mayTake(m, true) }

func (c *choice) mayTake(m *Member, force bool) bool {
	flags := m.flags.Load()
	if flags&flagsOut != 0 || flags&flagBroken != 0 && !m.breaker.mayPass(c.now, force) {
		return false
	}
	if !m.fits(c.samples, m.inFlight.Load()) {
		c.full = m
		return false
	}
	return true
}

// friends are the decodes that the prefill does not fail with.
func (c *choice) friends(prefill *Member, decodes []*Member) []*Member {
	bad := c.set.pairs.avoided(prefill.Worker.ID, c.now)
	if bad == nil {
		return decodes
	}
	friends := keep(decodes, func(decode *Member) bool { return !slices.Contains(bad, decode.Worker.ID) })
	if c.force && len(friends) == 0 {
		return decodes
	}
	return friends
}

// keep is members that ok holds for: members itself, if it holds for all.
func keep(members []*Member, ok func(*Member) bool) []*Member {
	for i, m := range members {
		if ok(m) {
			continue
		}
		left := append(make([]*Member, 0, len(members)-1), members[:i]...)
		for _, m := range members[i+1:] {
			if ok(m) {
				left = append(left, m)
			}
		}
		return left
	}
	return members
}

// without is members less one.
func without(members []*Member, out *Member) []*Member {
	return keep(members, func(m *Member) bool { return m != out })
}
