package policy

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// The bound on what keyed requests may pile up on one member: loadFactor times
// the mean in flight, and slack requests. Without the slack the bound is one
// request where few are in flight, and keys would hardly ever find their member.
const (
	loadFactor = 1.25
	slack      = 4
)

// Consistent sends requests with the same routing key to the same member, as
// long as it can be used and has no more than its part in flight; else to the
// next one on the ring, which is the same for all requests with the key. A member
// that comes or goes moves its own share of the keys and no others. Requests
// without a key go by [PowerOfTwo]. The zero value is ready.
//
// The routing key is the header X-SMG-Routing-Key, else the client's address in
// X-Forwarded-For, else the Cookie. It is never Authorization: a key that many
// share would be one hot member.
type Consistent struct{ hashed }

// Pick implements [pools.Policy].
func (c *Consistent) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	key := routingKey(req)
	if key == "" {
		return PowerOfTwo{}.Pick(req, members)
	}
	return c.pick(hashOf(key), members, loadFactor)
}

// hashed follows the ring of a pool.
type hashed struct{ ring atomic.Pointer[ring] }

// Chosen implements [pools.Follower].
func (*hashed) Chosen(*pd.Request, *pools.Member) {}

// Follow implements [pools.Follower].
func (h *hashed) Follow(members []*pools.Member) {
	r := h.ring.Load()
	if r == nil {
		r = new(ring)
	}
	h.ring.Store(r.follow(members))
}

// pick is the first member from key on that would have at most factor times the
// mean in flight, and slack. The counts are those of the instant: of calls that
// pick at the same time, each may see the last free place.
func (h *hashed) pick(key uint64, members []*pools.Member, factor float64) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	var held int64
	for _, m := range members {
		held += m.InFlight()
	}
	bound := factor*float64(held+1)/float64(len(members)) + slack
	if r := h.ring.Load(); r != nil {
		if m := r.find(key, members, bound-1); m != nil {
			return m
		}
	}
	return least(members, (*pools.Member).InFlight)
}
