package kvindex

// bitset is a set of slots.
type bitset []uint64

// with adds slot, in b's memory if that is large enough.
func (b bitset) with(slot uint32) bitset {
	for len(b) <= int(slot/64) {
		b = append(b, 0)
	}
	b[slot/64] |= 1 << (slot % 64)
	return b
}

// has reports whether slot is in the set.
func (b bitset) has(slot uint32) bool {
	return int(slot/64) < len(b) && b[slot/64]&(1<<(slot%64)) != 0
}

// remove takes slot out, which is in the set.
func (b bitset) remove(slot uint32) { b[slot/64] &^= 1 << (slot % 64) }
