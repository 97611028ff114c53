package simengine

import (
	"container/list"
	"slices"
	"sync"
)

// cacheBlock is the granularity of the prefix cache in tokens, whatever the
// page size that the engine claims.
const cacheBlock = 16

// prefix is the prefix cache: the least recently used block goes first, and of
// one prompt the last block before those it builds on.
type prefix struct {
	mu     sync.Mutex
	limit  int // in blocks
	blocks map[uint64]*list.Element
	recent list.List // of uint64, the last used first
}

func newPrefix(tokens int) *prefix {
	return &prefix{limit: max(tokens/cacheBlock, 1), blocks: map[uint64]*list.Element{}}
}

// blockHashes are those of the prompt up to the end of each full block.
func blockHashes(prompt []int) []uint64 {
	hashes := make([]uint64, 0, len(prompt)/cacheBlock)
	h := uint64(0)
	for i, id := range prompt {
		h = foldToken(h, id)
		if (i+1)%cacheBlock == 0 {
			hashes = append(hashes, h)
		}
	}
	return hashes
}

// match is how many tokens of the prompt are cached; the last never counts.
func (p *prefix) match(prompt []int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	hashes := blockHashes(prompt)
	n := 0
	for n < len(hashes) && p.blocks[hashes[n]] != nil {
		n++
	}
	for _, h := range slices.Backward(hashes[:n]) {
		p.recent.MoveToFront(p.blocks[h])
	}
	return max(0, min(n*cacheBlock, len(prompt)-1))
}

func (p *prefix) add(prompt []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range slices.Backward(blockHashes(prompt)) {
		if at := p.blocks[h]; at != nil {
			p.recent.MoveToFront(at)
			continue
		}
		p.blocks[h] = p.recent.PushFront(h)
		if p.recent.Len() > p.limit {
			delete(p.blocks, p.recent.Remove(p.recent.Back()).(uint64))
		}
	}
}

func (p *prefix) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.blocks)
	p.recent.Init()
}
