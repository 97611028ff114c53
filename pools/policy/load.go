package policy

import (
	"math/rand/v2"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

const (
	// requestCost is what a request costs a worker besides its prompt, in bytes of
	// prompt: a pass through the model takes its time even if all is cached.
	requestCost = 1 << 10
	// tokenBytes is what a token is taken for, where there is no tokenizer.
	tokenBytes = 4
)

// load is what a member has in flight, in bytes: requests are not alike, and one
// long prompt is more work than many short ones.
func load(m *pools.Member) int64 { return m.Work() + requestCost*m.InFlight() }

// least is one of the members with the lowest count, each as likely as the others.
func least(members []*pools.Member, count func(*pools.Member) int64) *pools.Member {
	best, lowest, equals := members[0], count(members[0]), 1
	for _, m := range members[1:] {
		switch n := count(m); {
		case n < lowest:
			best, lowest, equals = m, n, 1
		case n == lowest:
			equals++
			if rand.IntN(equals) == 0 {
				best = m
			}
		}
	}
	return best
}

// promptOf is the request's prompt; a call that is no request has none.
func promptOf(req *pd.Request) []byte {
	if req == nil {
		return nil
	}
	return req.Prompt()
}

// items is how many prompts a request has, of which the first stands for all.
func items(req *pd.Request) int64 {
	if req == nil {
		return 1
	}
	return int64(max(1, req.Items))
}

// bodyOf is the bytes of a request's body: what it adds to [pools.Member.Work].
func bodyOf(req *pd.Request) int64 {
	if req == nil {
		return 0
	}
	return req.Size()
}
