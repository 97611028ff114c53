package kvindex

import (
	"hash/maphash"
	"math/bits"
)

// BlockBytes is the unit of a worker's capacity: the bytes of prompt in a block of
// the smaller kind.
const BlockBytes = 512

// A prompt is cut into blocks of 512 bytes up to 8 KiB, where most prompts part
// ways, and of 2 KiB from there on.
const (
	fineSize   = BlockBytes
	coarseSize = 2 << 10
	fineBlocks = 16

	// maxChain bounds the blocks of one prompt: what lies behind 8 MiB of it is
	// not looked at.
	maxChain = 4096
)

// Chain cuts a prompt into blocks and returns a hash for each whole one, in buf's
// memory if that is large enough. The hash of a block stands for all of the prompt
// up to its end: two prompts have the first n hashes in common if they begin with
// the same n blocks. Hashes of two indexes have nothing to do with each other.
func (ix *Index) Chain(buf []uint64, prompt []byte) []uint64 {
	chain := buf[:0]
	var hash uint64
	size := fineSize
	for len(prompt) >= size && len(chain) < maxChain {
		// The lowest bit says which size it is, for those who have the hash alone.
		hash = mix(hash, maphash.Bytes(ix.seed, prompt[:size])) &^ 1
		if size == coarseSize {
			hash |= 1
		}
		chain = append(chain, hash)
		prompt = prompt[size:]
		if len(chain) == fineBlocks {
			size = coarseSize
		}
	}
	return chain
}

// Bytes is how much of a prompt its first n blocks are.
func Bytes(n int) int {
	return min(n, fineBlocks)*fineSize + max(n-fineBlocks, 0)*coarseSize
}

// weight is the size of a block in units of the smaller one.
func weight(hash uint64) int {
	if hash&1 == 0 {
		return 1
	}
	return coarseSize / fineSize
}

// mix makes one hash of two, neither of which can be chosen by who writes prompts.
func mix(chain, block uint64) uint64 {
	hi, lo := bits.Mul64(chain^0x9e3779b97f4a7c15, block^0xd1b54a32d192ed03)
	return hi ^ lo
}
