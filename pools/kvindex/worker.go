package kvindex

import (
	"sync"
	"sync/atomic"
)

// Worker is one that holds blocks, until it leaves.
type Worker struct {
	ix       *Index
	slot     uint32
	capacity atomic.Int64 // weight there is room for; written with ix.mu held
	share    atomic.Int64 // entries, while memory is short; likewise
	size     atomic.Int64 // entries there are

	mu     sync.Mutex
	left   bool
	weight int64 // of all blocks
	// nodes are a ring, from the block used last to the one not used for longest,
	// that begins and ends with nodes[0]. A block of a prompt stands before the
	// next one of it. So what is dropped from the end leaves no gaps: the blocks
	// that are held of a prompt are always the first ones.
	nodes []node
}

type node struct {
	hash       uint64
	prev, next uint32
}

// maxDrops bounds what is dropped for one new block: a worker whose capacity has
// shrunk does not go down to it at one stroke.
const maxDrops = 8

// Insert says that w holds all of a chain, or will soon, and returns how many of
// its blocks it held before. What there is no room for is forgotten, first that
// which was not used for longest. A worker that has left holds nothing.
func (w *Worker) Insert(chain []uint64) int {
	in := insertion{Worker: w}
	in.run(chain)
	if in.added > 0 {
		w.ix.sweep(sweepPerBlock * in.added)
	}
	if in.short {
		w.ix.bound(boundName)
	}
	return in.held
}

// insertion is a chain on its way into a worker's list.
type insertion struct {
	*Worker
	at          uint32 // node that the next block goes behind
	held, added int
	short       bool // of memory
}

func (in *insertion) run(chain []uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.left {
		return
	}
	for _, hash := range chain {
		if n, ok := in.ix.shard(hash).node(hash, in.slot); ok {
			in.held++
			in.unlink(n)
			in.link(n, in.at)
			in.at = n
			continue
		}
		if !in.makeRoom(weight(hash)) {
			return
		}
		in.at = in.add(hash, in.at)
		in.added++
	}
}

// makeRoom makes room for a block. False if there is none but that of the blocks
// before it.
func (in *insertion) makeRoom(weight int) bool {
	capacity := in.capacity.Load()
	for range maxDrops {
		if in.weight+int64(weight) <= capacity {
			break
		}
		if !in.dropOldest() {
			return false
		}
	}
	if !in.ix.full() || in.ix.sweep(1) > 0 {
		return true
	}
	in.short = true
	return in.size.Load() < in.share.Load() && in.ix.steal(in.Worker) || in.dropOldest()
}

// dropOldest drops the block not used for longest, unless it is of the chain.
func (in *insertion) dropOldest() bool {
	oldest := in.nodes[0].prev
	if oldest == in.at {
		return false
	}
	if moved := in.drop(oldest); moved == in.at {
		in.at = oldest
	}
	return true
}

// give drops a block if there are more than w's share. The caller holds w.mu.
func (w *Worker) give() bool {
	if w.left || w.size.Load() <= w.share.Load() {
		return false
	}
	w.drop(w.nodes[0].prev)
	return true
}

// add makes a node for a block, behind at. The caller holds w.mu.
func (w *Worker) add(hash uint64, at uint32) uint32 {
	n := uint32(len(w.nodes))
	w.nodes = append(w.nodes, node{hash: hash})
	w.link(n, at)
	w.ix.shard(hash).put(hash, holder{w.slot, n})
	w.count(1, weight(hash))
	return n
}

// drop removes node n. Nodes leave no holes: the last one becomes n, and drop
// returns what it was. The caller holds w.mu.
func (w *Worker) drop(n uint32) (moved uint32) {
	hash := w.nodes[n].hash
	w.unlink(n)
	w.ix.shard(hash).remove(hash, w.slot)
	last := uint32(len(w.nodes) - 1)
	if n != last {
		m := w.nodes[last]
		w.nodes[n] = m
		w.nodes[m.prev].next = n
		w.nodes[m.next].prev = n
		w.ix.shard(m.hash).put(m.hash, holder{w.slot, n})
	}
	w.cutLast()
	w.count(-1, -weight(hash))
	return last
}

// strip removes up to n blocks of a worker that has left, and returns how many,
// and whether that were all. Their order does not matter any more.
func (w *Worker) strip(n int) (done int, empty bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; done < n && len(w.nodes) > 1; done++ {
		last := len(w.nodes) - 1
		hash := w.nodes[last].hash
		w.ix.shard(hash).remove(hash, w.slot)
		w.cutLast()
		w.count(-1, -weight(hash))
	}
	return done, len(w.nodes) == 1
}

// cutLast cuts the last node off, and gives memory back when half of it is free.
func (w *Worker) cutLast() {
	w.nodes = w.nodes[:len(w.nodes)-1]
	if n := len(w.nodes); n > 64 && n < cap(w.nodes)/2 {
		w.nodes = append(make([]node, 0, n+n/4), w.nodes...)
	}
}

func (w *Worker) count(entries, weight int) {
	w.weight += int64(weight)
	w.size.Add(int64(entries))
	w.ix.entries.Add(int64(entries))
}

func (w *Worker) unlink(n uint32) {
	prev, next := w.nodes[n].prev, w.nodes[n].next
	w.nodes[prev].next = next
	w.nodes[next].prev = prev
}

// link puts n behind at.
func (w *Worker) link(n, at uint32) {
	next := w.nodes[at].next
	w.nodes[n].prev, w.nodes[n].next = at, next
	w.nodes[at].next = n
	w.nodes[next].prev = n
}
