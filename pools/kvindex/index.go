// Package kvindex remembers which worker has worked on which prompt, block by
// block: what is likely to be in its KV cache.
//
// An [Index] belongs to one pool. Prompts come as bytes and are kept as hashes
// alone, chained so that a block's hash stands for all that comes before it. A
// worker is given the blocks of what it is sent, as many as its cache has room
// for, and forgets those first that were not used for longest, as its engine does.
// All workers together stay within a bound on memory, each with its share.
//
// A policy asks who holds most of a prompt and says who gets it. The package does
// no I/O, starts no goroutine and never sees an engine: what it says is what was
// sent, not what is cached.
package kvindex

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// DefaultMemory is the bound on an index in bytes.
	DefaultMemory = 256 << 20
	// DefaultCapacity is the room of a worker of which nothing is known, in blocks
	// of 512 bytes: two million tokens of English. One that is taken for too large
	// does less harm than one that is taken for too small.
	DefaultCapacity = 16 << 10
)

const (
	// entryBytes is what a block of a worker costs: 40 to 70 bytes for its place in
	// a table and its node, both with room to grow, and nearly as much for what the
	// garbage collector lets lie about meanwhile.
	entryBytes = 112
	// boundName is what Bound is called with.
	boundName = "kvindex"
	// sweepPerBlock is how many blocks of workers that have left go for each new
	// one: more than one, so that there are fewer and fewer of them.
	sweepPerBlock = 2
	shardBits     = 6
	shards        = 1 << shardBits
)

// Options configure an Index.
type Options struct {
	// Memory bounds the index, in bytes; 0 for DefaultMemory.
	Memory int64
	// Bound is called with "kvindex" when a block had to be forgotten for want of
	// memory, though its worker has room for it. Nil for nobody.
	Bound func(name string)
}

// Index knows who holds which block. Its methods and those of its workers may be
// called from many goroutines at once.
type Index struct {
	seed    maphash.Seed
	bound   func(name string)
	most    int64        // entries that there is memory for
	entries atomic.Int64 // blocks of all workers, also of those that have left
	shards  [shards]shard

	mu      sync.Mutex // held while workers come and go
	live    atomic.Pointer[bitset]
	workers atomic.Pointer[[]*Worker] // those in live
	hand    atomic.Uint32             // whom of them steal has looked at last

	old struct {
		sync.Mutex
		workers []*Worker // that have left, and whose blocks are still there
		free    []uint32  // slots that no block has a holder of
		slots   uint32    // made so far
	}
}

// New is an index without workers.
func New(opt Options) *Index {
	if opt.Memory <= 0 {
		opt.Memory = DefaultMemory
	}
	if opt.Bound == nil {
		opt.Bound = func(string) {}
	}
	ix := &Index{seed: maphash.MakeSeed(), bound: opt.Bound, most: opt.Memory / entryBytes}
	ix.live.Store(new(bitset))
	ix.workers.Store(new([]*Worker))
	return ix
}

// Join makes a worker that holds nothing yet. Its cache has room for so many
// blocks of 512 bytes of prompt; 0 where that is not known.
func (ix *Index) Join(capacity int) *Worker {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	w := &Worker{ix: ix, slot: ix.newSlot(), nodes: make([]node, 1)}
	w.capacity.Store(units(capacity))
	live := slices.Clone(*ix.live.Load()).with(w.slot)
	ix.publish(append(slices.Clone(*ix.workers.Load()), w), live)
	return w
}

// SetCapacity changes what Join was given.
func (w *Worker) SetCapacity(capacity int) {
	if w.capacity.Load() == units(capacity) {
		return
	}
	w.ix.mu.Lock()
	defer w.ix.mu.Unlock()
	w.capacity.Store(units(capacity))
	divide(*w.ix.workers.Load(), w.ix.most)
}

// units is the capacity that is reckoned with.
func units(capacity int) int64 {
	if capacity <= 0 {
		return DefaultCapacity
	}
	return int64(capacity)
}

// Leave takes w out: it holds nothing any more. What is there of it goes little
// by little, as others are given blocks. Calls after the first do nothing.
func (w *Worker) Leave() {
	if !w.ix.unlist(w) {
		return
	}
	w.mu.Lock()
	w.left = true
	empty := len(w.nodes) == 1
	w.mu.Unlock()

	old := &w.ix.old
	old.Lock()
	defer old.Unlock()
	if empty {
		old.free = append(old.free, w.slot)
	} else {
		old.workers = append(old.workers, w)
	}
}

// unlist takes w out of the live ones. False if it is none of them.
func (ix *Index) unlist(w *Worker) bool {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	workers := *ix.workers.Load()
	i := slices.Index(workers, w)
	if i < 0 {
		return false
	}
	live := slices.Clone(*ix.live.Load())
	live.remove(w.slot)
	for len(live) > 0 && live[len(live)-1] == 0 {
		live = live[:len(live)-1]
	}
	ix.publish(slices.Delete(slices.Clone(workers), i, i+1), live)
	return true
}

// publish makes workers those that are live. The caller holds ix.mu.
func (ix *Index) publish(workers []*Worker, live bitset) {
	divide(workers, ix.most)
	ix.workers.Store(&workers)
	ix.live.Store(&live)
}

// divide gives each worker its share of the entries, by its capacity.
func divide(workers []*Worker, most int64) {
	var all float64
	for _, w := range workers {
		all += float64(w.capacity.Load())
	}
	part := min(1, float64(most)/all)
	for _, w := range workers {
		w.share.Store(int64(part * float64(w.capacity.Load())))
	}
}

// newSlot finds a slot that no block has a holder of.
func (ix *Index) newSlot() uint32 {
	ix.old.Lock()
	defer ix.old.Unlock()
	if last := len(ix.old.free) - 1; last >= 0 {
		slot := ix.old.free[last]
		ix.old.free = ix.old.free[:last]
		return slot
	}
	ix.old.slots++
	return ix.old.slots
}

func (ix *Index) shard(hash uint64) *shard { return &ix.shards[hash>>(64-shardBits)] }

func (ix *Index) full() bool { return ix.entries.Load() >= ix.most }

// sweep removes up to n blocks of workers that have left, and returns how many. It
// does not wait for others who do the same.
func (ix *Index) sweep(n int) int {
	if !ix.old.TryLock() {
		return 0
	}
	defer ix.old.Unlock()
	done := 0
	for done < n && len(ix.old.workers) > 0 {
		last := len(ix.old.workers) - 1
		w := ix.old.workers[last]
		k, empty := w.strip(n - done)
		done += k
		if empty {
			ix.old.workers[last] = nil
			ix.old.workers = ix.old.workers[:last]
			ix.old.free = append(ix.old.free, w.slot)
		}
	}
	return done
}

// steal takes a block from a worker that has more than its share, other than the
// one who asks and holds its own lock; so it waits for nobody's.
func (ix *Index) steal(thief *Worker) bool {
	workers := *ix.workers.Load()
	for range workers {
		w := workers[int(ix.hand.Load())%len(workers)]
		if w != thief && w.size.Load() > w.share.Load() && w.mu.TryLock() {
			given := w.give()
			w.mu.Unlock()
			if given {
				return true
			}
		}
		ix.hand.Add(1)
	}
	return false
}
