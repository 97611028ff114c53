package policy

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// BucketOptions configure a [Bucket]. Where a value is 0, it is the one given
// beside it.
type BucketOptions struct {
	// Interval is the least time between two cuts, 5 s. What was seen before it
	// counts half as much after each.
	Interval time.Duration
	// The pool is out of balance when the busiest member has more than BalanceAbs
	// (64) requests in flight more than the idlest, and more than BalanceRel (1.5)
	// times as many. Then the idlest is picked, whatever the length.
	// Where BalanceAbs is negative, BalanceRel decides alone.
	BalanceAbs int64
	BalanceRel float64
}

// minSeen is the number of requests that a cut needs to be told from chance.
const minSeen = 32

// Bucket keeps short prompts from waiting behind long ones: each member gets the
// prompts of a range of lengths, in the order of their URLs, the first the shortest:
// routers with the same traffic agree on them. The ranges follow from what was seen
// of late, and are such that the members get equal shares of the bytes; see [cut]. A
// range is no member's own: it is found for those that can be used at the time, so
// that one that comes, goes or is out for a while changes them all at once.
//
// Lengths are those of whole prompts, cached or not, and of all of a batch. Until
// enough was seen, requests go by [PowerOfTwo], as do those of one range between
// the members that share it.
type Bucket struct {
	opt   BucketOptions
	epoch time.Time
	pool  atomic.Pointer[lineup]
	seen  [bins]atomic.Int64  // bytes chosen since the last cut, by length
	fresh atomic.Int64        // requests chosen since then
	next  atomic.Int64        // when there may be another, from epoch on
	cut   atomic.Pointer[cut] // nil before the first

	mu   sync.Mutex    // held by who cuts
	past [bins]float64 // bytes, the older the less
}

// NewBucket makes a Bucket.
func NewBucket(opt BucketOptions) *Bucket {
	opt.Interval = cmp.Or(opt.Interval, 5*time.Second)
	opt.BalanceAbs = cmp.Or(opt.BalanceAbs, 64)
	opt.BalanceRel = cmp.Or(opt.BalanceRel, 1.5)
	b := &Bucket{opt: opt, epoch: time.Now()}
	b.pool.Store(newLineup(nil))
	return b
}

// Pick implements [pools.Policy].
func (b *Bucket) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	c := b.cut.Load()
	switch {
	case len(members) < 2 || req == nil:
		return PowerOfTwo{}.Pick(req, members)
	case b.unbalanced(members):
		return least(members, (*pools.Member).InFlight)
	case c == nil:
		return PowerOfTwo{}.Pick(req, members)
	}
	span := c.span(binOf(length(req)), len(members))
	one, other := span.drawTwo()
	return lighter(b.pool.Load().nth(members, one, other))
}

// unbalanced reports whether members differ more than they may.
func (b *Bucket) unbalanced(members []*pools.Member) bool {
	least := members[0].InFlight()
	most := least
	for _, m := range members[1:] {
		held := m.InFlight()
		least, most = min(least, held), max(most, held)
	}
	return most-least > b.opt.BalanceAbs && float64(most) > b.opt.BalanceRel*float64(least)
}

// Follow implements [pools.Follower].
func (b *Bucket) Follow(members []*pools.Member) { b.pool.Store(newLineup(members)) }

// Chosen implements [pools.Follower]. Now and then it makes another cut.
func (b *Bucket) Chosen(req *pd.Request, _ *pools.Member) {
	if req == nil {
		return
	}
	n := length(req)
	b.seen[binOf(n)].Add(int64(n))
	if b.fresh.Add(1) >= minSeen && b.due() && b.mu.TryLock() {
		defer b.mu.Unlock()
		if b.due() {
			b.recut()
		}
	}
}

func (b *Bucket) due() bool { return int64(time.Since(b.epoch)) >= b.next.Load() }

// recut takes what was seen into account. The present cut stays where it differs
// by less than the quarter of a member's share, so that lengths do not change
// their members for nothing. The caller holds mu.
func (b *Bucket) recut() {
	b.next.Store(int64(time.Since(b.epoch) + b.opt.Interval))
	b.fresh.Store(0)
	for i := range b.past {
		b.past[i] = b.past[i]/2 + float64(b.seen[i].Swap(0))
	}
	tolerance := 0.25 / float64(max(1, len(b.pool.Load().members)))
	if c := newCut(&b.past); !c.like(b.cut.Load(), tolerance) {
		b.cut.Store(c)
	}
}

// length is a request's bytes of prompt, at least one.
func length(req *pd.Request) int { return max(1, len(req.Prompt())*int(items(req))) }
