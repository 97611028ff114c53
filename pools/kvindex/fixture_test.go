package kvindex

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// text is n bytes that nobody else has.
func text(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	out := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(out) // it never fails
	return out
}

// chain is the chain of parts put together.
func chain(ix *Index, parts ...[]byte) []uint64 {
	var prompt []byte
	for _, part := range parts {
		prompt = append(prompt, part...)
	}
	return ix.Chain(nil, prompt)
}

// held is how many blocks of a chain each of the workers holds.
func held(ix *Index, chain []uint64, workers ...*Worker) []int {
	var m Match
	ix.Lookup(chain, &m)
	out := make([]int, len(workers))
	for i, w := range workers {
		out[i] = m.Blocks(w)
	}
	return out
}

// sound checks that what the index says of holders is what the workers' lists say,
// and that nothing is counted wrong. Nobody may use the index meanwhile.
func sound(t testing.TB, ix *Index) {
	t.Helper()
	workers := append(append([]*Worker(nil), *ix.workers.Load()...), ix.old.workers...)
	entries := 0
	for _, w := range workers {
		var sum int64
		for n, node := range w.nodes[1:] {
			at, ok := ix.shard(node.hash).node(node.hash, w.slot)
			require.True(t, ok, "a block of a list has its holder")
			require.Equal(t, n+1, int(at))
			sum += int64(weight(node.hash))
		}
		require.Equal(t, sum, w.weight)
		require.Equal(t, len(w.nodes)-1, int(w.size.Load()))
		if !w.left {
			require.Len(t, order(w), len(w.nodes)-1, "a list is one ring")
		}
		entries += len(w.nodes) - 1
	}
	require.Equal(t, entries, int(ix.entries.Load()))
	require.Equal(t, entries, holders(t, ix), "nobody else holds anything")
}

// order is a worker's blocks, the one used last first.
func order(w *Worker) []uint64 {
	var out []uint64
	for n := w.nodes[0].next; n != 0 && len(out) < len(w.nodes); n = w.nodes[n].next {
		out = append(out, w.nodes[n].hash)
	}
	return out
}

// holders counts the holders of all blocks.
func holders(t testing.TB, ix *Index) int {
	t.Helper()
	n := 0
	for i := range ix.shards {
		s := &ix.shards[i]
		inUse := 0
		used := 0
		for _, b := range s.blocks.entries {
			if b.first.slot == 0 {
				continue
			}
			used++
			require.Equal(t, b.block, s.blocks.get(b.hash))
			switch {
			case b.first.slot == crowded:
				inUse++
				c := s.crowds[b.first.node]
				n += len(c)
				require.Greater(t, len(c), 1)
				require.True(t, slices.IsSortedFunc(c, func(a, b holder) int { return int(a.slot) - int(b.slot) }))
			case b.second.slot != 0:
				n += 2
			default:
				n++
			}
		}
		require.Equal(t, s.blocks.used, used)
		require.Equal(t, len(s.crowds), inUse+len(s.free), "no crowd is lost")
	}
	return n
}
