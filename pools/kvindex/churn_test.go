package kvindex

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var long = flag.Bool("long", false, "run the test of memory with millions of prompts")

// Whatever happens at the same time, nothing is lost and nothing is held twice.
func TestAllAtOnce(t *testing.T) {
	const most = 3000
	ix := New(Options{Memory: most * entryBytes, Bound: func(string) {}})
	var wg sync.WaitGroup
	for g := range uint64(6) {
		wg.Go(func() {
			w := newWorld(g)
			mine := ix.Join(500)
			var m Match
			var buf []uint64
			for i := range 400 {
				buf = ix.Chain(buf, w.prompt())
				ix.Lookup(buf, &m)
				if n := m.Blocks(mine); n > len(buf) {
					t.Errorf("%d blocks of %d", n, len(buf))
				}
				mine.Insert(buf)
				everybody := *ix.workers.Load()
				somebody := everybody[w.r.IntN(len(everybody))]
				somebody.Insert(buf)
				somebody.SetCapacity(300 + w.r.IntN(1000))
				if i%20 == 19 {
					mine.Leave()
					mine = ix.Join(500)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, ix.entries.Load(), int64(most+6), "one more for each at a time")
	sound(t, ix)

	keeper := ix.Join(0)
	for _, w := range *ix.workers.Load() {
		if w != keeper {
			w.Leave()
		}
	}
	for i := range uint64(most) {
		keeper.Insert(chain(ix, text(1<<20+i, 512)))
	}
	assert.Empty(t, ix.old.workers, "what was left behind is gone")
	assert.Equal(t, holders(t, ix), int(keeper.size.Load()))
	sound(t, ix)
}

// Workers come and go and prompts never come twice: memory stays what it was.
func TestMemoryStaysFlat(t *testing.T) {
	const live = 64
	workers, prompts, memory := 400, 20_000, int64(1<<20)
	if *long {
		workers, prompts, memory = 10_000, 5_000_000, DefaultMemory
	}
	before := resident()
	ix := New(Options{Memory: memory})
	r := rand.New(rand.NewPCG(1, 2))
	var pool []*Worker
	for range live {
		pool = append(pool, ix.Join(1<<20)) // bounded by memory alone
	}
	prompt := make([]byte, 10*kib)
	var buf []uint64
	var m Match
	var early uint64
	for i := range prompts {
		binary.LittleEndian.PutUint64(prompt, uint64(i)) // differs from its first block on
		buf = ix.Chain(buf, prompt)
		ix.Lookup(buf, &m)
		pool[r.IntN(live)].Insert(buf)
		if i%(prompts/workers) == 0 {
			j := r.IntN(live / 2) // the others stay, and use what memory there is
			pool[j].Leave()
			pool[j] = ix.Join(1 << 20)
		}
		switch i {
		case prompts / 10:
			early = resident()
		case prompts / 2:
			require.Less(t, resident(), before+uint64(memory)+150<<20)
		}
	}
	late := resident()
	t.Logf("%d MiB before, %d MiB after a tenth, %d MiB at the end", before>>20, early>>20, late>>20)
	assert.Less(t, late, before+uint64(memory)+150<<20)
	assert.Less(t, float64(late), 1.1*float64(early)+4<<20)
	assert.LessOrEqual(t, ix.entries.Load(), memory/entryBytes)
	assert.LessOrEqual(t, ix.old.slots, uint32(10*live), "slots are used again")
	runtime.KeepAlive(ix)
}

// resident is the memory that the process has of the system.
func resident() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Sys - m.HeapReleased
}
