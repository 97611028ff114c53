package kvindex

import "math/bits"

// table is a map from hashes to blocks: one piece of memory without pointers, half
// to three quarters full when it is at its fullest. Unlike the built-in map it
// takes no more room however long blocks come and go.
type table struct {
	entries []entry // one without a first holder is empty
	used    int
}

type entry struct {
	hash uint64
	block
}

// home is where a hash belongs. Its first bits are the same for all of a shard.
func (t *table) home(hash uint64) int {
	hi, _ := bits.Mul64(hash<<shardBits, uint64(len(t.entries)))
	return int(hi)
}

func (t *table) after(i int) int {
	if i++; i < len(t.entries) {
		return i
	}
	return 0
}

// way is how far it is from i on to j.
func (t *table) way(i, j int) int {
	if i <= j {
		return j - i
	}
	return j - i + len(t.entries)
}

// find is where a hash is, or where it would go. There must be a free entry.
func (t *table) find(hash uint64) *entry {
	i := t.home(hash)
	for t.entries[i].first.slot != 0 && t.entries[i].hash != hash {
		i = t.after(i)
	}
	return &t.entries[i]
}

// get is the block of a hash, the zero one if there is none.
func (t *table) get(hash uint64) block {
	if t.used == 0 {
		return block{}
	}
	return t.find(hash).block
}

// set sets the block of a hash, which has a holder.
func (t *table) set(hash uint64, b block) {
	if (t.used+1)*4 > len(t.entries)*3 {
		t.grow()
	}
	e := t.find(hash)
	if e.first.slot == 0 {
		t.used++
	}
	*e = entry{hash, b}
}

// delete removes a hash that is there, and moves those up that it was in the way
// of.
func (t *table) delete(hash uint64) {
	hole := t.home(hash)
	for t.entries[hole].hash != hash || t.entries[hole].first.slot == 0 {
		hole = t.after(hole)
	}
	for i := t.after(hole); t.entries[i].first.slot != 0; i = t.after(i) {
		if t.way(t.home(t.entries[i].hash), i) >= t.way(hole, i) {
			t.entries[hole] = t.entries[i]
			hole = i
		}
	}
	t.entries[hole] = entry{}
	t.used--
}

// grow makes room for half as many again.
func (t *table) grow() {
	old := t.entries
	t.entries = make([]entry, max(16, len(old)*3/2))
	for _, e := range old {
		if e.first.slot != 0 {
			*t.find(e.hash) = e
		}
	}
}
