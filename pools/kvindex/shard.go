package kvindex

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// holder says that the worker in slot holds a block, and that it is node of the
// worker's list. No worker is in slot 0.
type holder struct{ slot, node uint32 }

// block is who holds a block: one or two in place, second not without first. If
// there are more, first.node says where in the shard's crowds, and first.slot is
// crowded.
type block struct{ first, second holder }

const crowded = math.MaxUint32

// crowd is the holders of a block that has more than two, in order of their slots.
type crowd []holder

// shard is a part of the blocks. A holder is added, changed and removed only with
// its worker's lock held as well.
type shard struct {
	mu     sync.RWMutex
	blocks table
	crowds []crowd
	free   []uint32 // of crowds, not in use
	_      [24]byte // two locks do not share a cache line
}

// node finds a worker's node of a block.
func (s *shard) node(hash uint64, slot uint32) (uint32, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := s.blocks.get(hash)
	switch slot {
	case b.first.slot:
		return b.first.node, true
	case b.second.slot:
		return b.second.node, true
	}
	if b.first.slot == crowded {
		c := s.crowds[b.first.node]
		if i, ok := c.find(slot); ok {
			return c[i].node, true
		}
	}
	return 0, false
}

// put makes h one of the block's holders, in place of what its slot had there.
func (s *shard) put(hash uint64, h holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocks.get(hash)
	switch {
	case b.first.slot == crowded:
		s.crowds[b.first.node].put(h)
		return
	case b.first.slot == 0 || b.first.slot == h.slot:
		b.first = h
	case b.second.slot == 0 || b.second.slot == h.slot:
		b.second = h
	default:
		b = block{first: holder{crowded, s.crowd(b.first, b.second, h)}}
	}
	s.blocks.set(hash, b)
}

// remove takes slot out of the block's holders.
func (s *shard) remove(hash uint64, slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocks.get(hash)
	switch slot {
	case b.first.slot:
		b = block{first: b.second}
	case b.second.slot:
		b.second = holder{}
	default:
		c := &s.crowds[b.first.node]
		c.remove(slot)
		if len(*c) > 1 {
			return
		}
		s.free = append(s.free, b.first.node)
		b = block{first: (*c)[0]}
		*c = nil
	}
	if b.first.slot == 0 {
		s.blocks.delete(hash)
		return
	}
	s.blocks.set(hash, b)
}

// crowd makes a crowd of some holders and returns where it is.
func (s *shard) crowd(holders ...holder) uint32 {
	if len(s.free) == 0 {
		s.crowds = append(s.crowds, nil)
		s.free = append(s.free, uint32(len(s.crowds)-1))
	}
	last := len(s.free) - 1
	at := s.free[last]
	s.free = s.free[:last]
	for _, h := range holders {
		s.crowds[at].put(h)
	}
	return at
}

func (c crowd) find(slot uint32) (int, bool) {
	return slices.BinarySearchFunc(c, slot, func(h holder, slot uint32) int {
		return cmp.Compare(h.slot, slot)
	})
}

func (c *crowd) put(h holder) {
	i, ok := c.find(h.slot)
	if ok {
		(*c)[i] = h
		return
	}
	*c = slices.Insert(*c, i, h)
}

func (c *crowd) remove(slot uint32) {
	i, _ := c.find(slot)
	*c = slices.Delete(*c, i, i+1)
	if len(*c) < cap(*c)/4 {
		*c = slices.Clone(*c)
	}
}
