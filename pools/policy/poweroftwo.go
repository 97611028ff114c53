package policy

import (
	"math/rand/v2"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// PowerOfTwo draws two different members and takes the one with fewer requests
// in flight, the first drawn when they are equal. The counts are live: they
// include every request that was planned before this one.
type PowerOfTwo struct{}

// Pick implements [pools.Policy].
func (PowerOfTwo) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	n := len(members)
	if n == 0 {
		return nil
	}
	i := rand.IntN(n)
	if n == 1 {
		return members[i]
	}
	j := rand.IntN(n - 1)
	if j >= i {
		j++ // every index but i, all equally likely
	}
	if members[j].InFlight() < members[i].InFlight() {
		return members[j]
	}
	return members[i]
}
