package policy

import (
	"math/rand/v2"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Random picks uniformly.
type Random struct{}

// Pick implements [pools.Policy].
func (Random) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	return members[rand.IntN(len(members))]
}
