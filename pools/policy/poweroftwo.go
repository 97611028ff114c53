package policy

import (
	"math/rand/v2"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// PowerOfTwo draws two different members and takes the one that has less in flight,
// the first drawn when they are equal. What counts are the bytes of the requests,
// and not only how many there are. The counts are live: they include every request
// that was planned before this one.
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
	return lighter(members[i], members[j])
}

// lighter is the one with less in flight, a when they are equal.
func lighter(a, b *pools.Member) *pools.Member {
	if load(b) < load(a) {
		return b
	}
	return a
}
