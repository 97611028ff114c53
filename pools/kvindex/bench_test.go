package kvindex

import (
	"fmt"
	"testing"
)

// million is an index with about a million blocks, of 64 workers.
func million(b *testing.B) (*Index, []*Worker) {
	b.Helper()
	ix := New(Options{})
	var workers []*Worker
	for range 64 {
		workers = append(workers, ix.Join(1<<20))
	}
	for i := range uint64(1_000_000 / 36) {
		workers[i%64].Insert(chain(ix, text(1<<32+i, 48*kib)))
	}
	b.ResetTimer()
	return ix, workers
}

// BenchmarkChainAndLookup is what a request costs before it is sent.
func BenchmarkChainAndLookup(b *testing.B) {
	ix, workers := million(b)
	for _, size := range []int{8, 48, 400} {
		for _, holders := range []int{0, 1, 64} {
			b.Run(fmt.Sprintf("KiB=%d/holders=%d", size, holders), func(b *testing.B) {
				prompt := text(uint64(size*100+holders), size*kib)
				buf := ix.Chain(nil, prompt)
				for _, w := range workers[:holders] {
					w.Insert(buf)
				}
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					var m Match
					var buf []uint64
					for pb.Next() {
						buf = ix.Chain(buf, prompt)
						ix.Lookup(buf, &m)
					}
				})
			})
		}
	}
}

// BenchmarkLookup is of prompts that differ, so that no cache of the machine holds
// their blocks.
func BenchmarkLookup(b *testing.B) {
	ix, workers := million(b)
	var chains [][]uint64
	for i := range uint64(2000) {
		chains = append(chains, chain(ix, text(1<<40+i, 48*kib)))
		workers[i%64].Insert(chains[i])
	}
	b.ReportAllocs()
	var m Match
	for i := 0; b.Loop(); i++ {
		ix.Lookup(chains[i%len(chains)], &m)
	}
}

func BenchmarkInsert(b *testing.B) {
	ix, workers := million(b)
	f := func(name string, prompt func(i int) []byte) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []uint64
			for i := 0; b.Loop(); i++ {
				buf = ix.Chain(buf, prompt(i))
				workers[i%64].Insert(buf)
			}
		})
	}
	same := text(7, 48*kib)
	f("held", func(int) []byte { return same })
	next := text(8, 48*kib)
	f("new", func(i int) []byte {
		next[0], next[1], next[2], next[3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
		return next
	})
}

func BenchmarkChurn(b *testing.B) {
	ix, workers := million(b)
	prompt := text(9, 48*kib)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		workers[i%64].Leave()
		workers[i%64] = ix.Join(1 << 20)
		workers[i%64].Insert(ix.Chain(nil, prompt))
	}
}
