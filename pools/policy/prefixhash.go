package policy

import (
	"cmp"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// PrefixHashOptions configure a [PrefixHash]. Where a value is 0, it is the one
// given beside it.
type PrefixHashOptions struct {
	// PrefixTokens is how much of a prompt counts, 256. Without a tokenizer a token
	// is four bytes; where prompts are token ids, it is a token.
	PrefixTokens int
	// LoadFactor is how many times the mean a member may have in flight, 1.25,
	// beside four requests that it may have anyhow.
	LoadFactor float64
}

// PrefixHash sends prompts that begin alike to the same member, as [Consistent]
// does for requests with the same key. What comes before a prompt and keeps
// caches apart, as the model, is a part of its beginning. Requests without a
// prompt go by [PowerOfTwo].
type PrefixHash struct {
	hashed
	prefix int // bytes
	factor float64
}

// NewPrefixHash makes a PrefixHash.
func NewPrefixHash(opt PrefixHashOptions) *PrefixHash {
	return &PrefixHash{
		prefix: tokenBytes * cmp.Or(opt.PrefixTokens, 256),
		factor: cmp.Or(opt.LoadFactor, loadFactor),
	}
}

// Pick implements [pools.Policy].
func (p *PrefixHash) Pick(req *pd.Request, members []*pools.Member) *pools.Member {
	prompt := promptOf(req)
	if noPrompt(prompt) {
		return PowerOfTwo{}.Pick(req, members)
	}
	return p.pick(hashOf(prompt[:min(len(prompt), p.prefix)]), members, p.factor)
}

// noPrompt reports whether the bytes of a prompt hold only what comes before one:
// that ends in a record separator, which no text ends in.
func noPrompt(prompt []byte) bool {
	const separator = 0x1e
	return len(prompt) == 0 || prompt[len(prompt)-1] == separator
}
