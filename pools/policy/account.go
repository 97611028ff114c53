package policy

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kvindex"
)

// account is what is kept of a worker from the time when it had nothing in its
// cache.
type account struct {
	id       pd.WorkerID
	worker   *kvindex.Worker
	ups      uint64        // how often the worker had come up by then: once more, and it has nothing
	lastTurn atomic.Uint64 // when it was last given a prompt that others hold as much of

	// sums[i%remembered] is of the first i requests; and so the difference of two is
	// of those between them.
	sent atomic.Uint64 // requests
	sums [remembered]sum

	mu     sync.Mutex // held by who adds one or judges
	list   [remembered]sent
	misses int // times in a row that the worker had not what it should have
}

// sum is of several requests, in bytes.
type sum struct{ body, uncached atomic.Int64 }

// sent is a request as a worker was sent it, in bytes.
type sent struct {
	body, uncached int64
	mark           uint64 // of its prompt; 0 once it was judged
	held           int    // of the prompt, that the worker should have
}

const (
	// remembered bounds the requests of a worker that are known one by one.
	remembered = 64
	// maxMisses is how often in a row a worker may lack what it should have.
	maxMisses = 5
)

// add counts a request that the worker was sent.
func (a *account) add(s sent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.sent.Load()
	now, next := &a.sums[n%remembered], &a.sums[(n+1)%remembered]
	a.list[(n+1)%remembered] = s
	next.body.Store(now.body.Load() + s.body)
	next.uncached.Store(now.uncached.Load() + s.uncached)
	a.sent.Store(n + 1)
}

// backlog is what the worker has yet to do, in bytes of prompt.
//
// Nobody says which requests have ended, only how many have not and how large
// they are together. A worker takes them in turn, so it is those that were sent
// last, and half of the first of these is done, on average. Where that many are
// not of that size, some have overtaken others, and it is as many as are of that
// size. What goes beyond all that are known counts as these do in the mean.
func (a *account) backlog(m *pools.Member) int64 {
	inFlight := m.InFlight()
	if inFlight <= 0 {
		return 0
	}
	cost, work := inFlight*requestCost-requestCost/2, m.Work()
	if a == nil {
		return cost + work
	}
	n := a.sent.Load()
	all := min(n, remembered-1)
	if all == 0 {
		return cost + work
	}
	last := min(uint64(inFlight), all)
	body, uncached := a.since(n, last)
	if body != work {
		last = 1 + uint64(sort.Search(int(all)-1, func(k int) bool {
			body, _ := a.since(n, uint64(k)+1)
			return body >= work
		}))
		body, uncached = a.since(n, last)
	}
	_, rest := a.since(n, last-1)
	due := (uncached + rest) / 2
	if work > body {
		known, uncached := a.since(n, all)
		return cost + due + portion(work-body, uncached, known)
	}
	return cost + portion(work, due, body)
}

// since is the sum of the last k of n requests. It may be overwritten while it is
// read.
func (a *account) since(n, k uint64) (body, uncached int64) {
	to, from := &a.sums[n%remembered], &a.sums[(n-k)%remembered]
	return max(0, to.body.Load()-from.body.Load()), max(0, to.uncached.Load()-from.uncached.Load())
}

// portion is as much of work as part is of all.
func portion(work, part, all int64) int64 {
	switch {
	case work == all:
		return part
	case all <= 0:
		return 0
	}
	return int64(float64(work) * float64(part) / float64(all))
}

// judge takes into account that of a prompt that was sent the worker had so much.
// True if it has lacked what it should have had for the last time.
func (a *account) judge(mark uint64, had int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.sent.Load()
	for k := range min(n, remembered) {
		s := &a.list[(n-k)%remembered]
		if s.mark != mark {
			continue
		}
		s.mark = 0
		switch {
		case s.held == 0:
		case had < s.held/4:
			a.misses++
		default:
			a.misses = 0
		}
		return a.misses >= maxMisses
	}
	return false
}

// markOf tells a prompt from others well enough: by its chain, and its length and
// end for what is behind that.
func markOf(chain []uint64, prompt []byte) uint64 {
	const end = 64
	mark := hashOf(prompt[max(0, len(prompt)-end):]) ^ uint64(len(prompt))
	if len(chain) > 0 {
		mark ^= chain[len(chain)-1]
	}
	return max(mark, 1)
}
