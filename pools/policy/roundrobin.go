package policy

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// RoundRobin takes turns, in the order of the members. The zero value is ready.
type RoundRobin struct {
	next atomic.Uint64
}

// Pick implements [pools.Policy].
func (p *RoundRobin) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	if len(members) == 0 {
		return nil
	}
	turn := p.next.Add(1) - 1
	return members[turn%uint64(len(members))]
}
