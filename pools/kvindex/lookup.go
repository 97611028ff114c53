package kvindex

import "slices"

// Match is what a lookup has found. It is used again by the next one, and so
// costs no memory then. The zero value is ready.
type Match struct {
	blocks []uint32 // by slot
}

// Blocks is how many blocks of the prompt, from its beginning, w holds.
func (m *Match) Blocks(w *Worker) int {
	if int(w.slot) >= len(m.blocks) {
		return 0 // it came since
	}
	return int(m.blocks[w.slot])
}

// Lookup finds how much of a chain each worker holds that has not left.
//
// Who holds a block holds those before it. So the holders get fewer along the
// chain, and where there are as many at two of its blocks, they are the same at all
// that lie between.
func (ix *Index) Lookup(chain []uint64, m *Match) {
	live := *ix.live.Load()
	size := len(live) * 64
	m.blocks = slices.Grow(m.blocks[:0], size)[:size]
	clear(m.blocks)
	if len(chain) == 0 {
		return
	}
	w := walk{ix, chain, live, m.blocks}
	last := len(chain) - 1
	if n := w.visit(0); n > 0 && last > 0 {
		w.between(0, n, last, w.visit(last))
	}
}

// walk is one lookup.
type walk struct {
	ix     *Index
	chain  []uint64
	live   bitset
	blocks []uint32
}

// between visits what must be between two blocks, with so many holders each, to
// have been at the last block of every worker.
func (w *walk) between(i, atI, j, atJ int) {
	for atI > atJ && j-i > 1 {
		mid := i + (j-i)/2
		n := w.visit(mid)
		w.between(mid, n, j, atJ)
		j, atJ = mid, n
	}
}

// visit notes for all holders of a block that they hold the chain up to there, and
// counts them.
func (w *walk) visit(i int) (n int) {
	hash := w.chain[i]
	s := w.ix.shard(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.blocks.get(hash)
	if b.first.slot == crowded {
		for _, h := range s.crowds[b.first.node] {
			n += w.note(h, i)
		}
		return n
	}
	return w.note(b.first, i) + w.note(b.second, i)
}

// note notes one holder of block i, and counts it if it is live.
func (w *walk) note(h holder, i int) int {
	if !w.live.has(h.slot) {
		return 0
	}
	w.blocks[h.slot] = max(w.blocks[h.slot], uint32(i+1))
	return 1
}
