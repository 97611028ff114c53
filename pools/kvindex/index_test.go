package kvindex

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kib = 1 << 10

func TestLookupFindsHowMuchEachHolds(t *testing.T) {
	ix := New(Options{})
	a, b, c := ix.Join(0), ix.Join(0), ix.Join(0)
	system, one, two := text(1, 4*kib), text(2, 4*kib), text(3, 4*kib)
	assert.Equal(t, 0, a.Insert(chain(ix, system, one)))
	assert.Equal(t, 0, b.Insert(chain(ix, system, two)))

	assert.Equal(t, []int{16, 8, 0}, held(ix, chain(ix, system, one), a, b, c))
	assert.Equal(t, []int{8, 16, 0}, held(ix, chain(ix, system, two), a, b, c))
	assert.Equal(t, []int{8, 8, 0}, held(ix, chain(ix, system), a, b, c))
	assert.Equal(t, []int{8, 8, 0}, held(ix, chain(ix, system, text(4, 8*kib)), a, b, c))
	assert.Equal(t, []int{0, 0, 0}, held(ix, chain(ix, text(5, 8*kib)), a, b, c))
	assert.Equal(t, []int{0, 0, 0}, held(ix, nil, a, b, c))
	sound(t, ix)
}

func TestInsertSaysWhatWasHeld(t *testing.T) {
	ix := New(Options{})
	w := ix.Join(0)
	prompt, more := text(1, 20*kib), text(2, 20*kib)
	assert.Equal(t, 0, w.Insert(chain(ix, prompt)))
	assert.Equal(t, 22, w.Insert(chain(ix, prompt)))
	assert.Equal(t, 22, w.Insert(chain(ix, prompt, more)))
	assert.Equal(t, 32, w.Insert(chain(ix, prompt, more)))
	assert.Equal(t, 0, w.Insert(nil))
}

// A prompt's end is forgotten before its beginning, an old prompt before a new one.
func TestWhatWasNotUsedForLongestGoesFirst(t *testing.T) {
	ix := New(Options{})
	w := ix.Join(24) // three prompts of 8 blocks
	a, b, c, d := chain(ix, text(1, 4*kib)), chain(ix, text(2, 4*kib)), chain(ix, text(3, 4*kib)), chain(ix, text(4, 4*kib))
	for _, prompt := range [][]uint64{a, b, c, a} {
		w.Insert(prompt)
	}
	w.Insert(d[:3])
	assert.Equal(t, []int{8, 5, 8, 3}, []int{
		held(ix, a, w)[0], held(ix, b, w)[0], held(ix, c, w)[0], held(ix, d, w)[0],
	})
	assert.Equal(t, slices.Concat(d[:3], a, c, b[:5]), order(w))
	sound(t, ix)
}

func TestALargeBlockTakesTheRoomOfFour(t *testing.T) {
	ix := New(Options{})
	w := ix.Join(16 + 4*4)
	w.Insert(chain(ix, text(1, 4*kib)))
	long := chain(ix, text(2, 16*kib)) // 16 small and 4 large ones
	w.Insert(long)
	assert.Equal(t, []int{20}, held(ix, long, w))
	assert.Len(t, order(w), 20)
	sound(t, ix)
}

func TestOfAPromptThatDoesNotFitTheBeginningIsHeld(t *testing.T) {
	ix := New(Options{})
	w := ix.Join(10)
	w.Insert(chain(ix, text(1, 4*kib)))
	long := chain(ix, text(2, 16*kib))
	w.Insert(long)
	assert.Equal(t, long[:10], order(w))
	assert.Equal(t, 10, w.Insert(long))
	sound(t, ix)
}

func TestCapacityChanges(t *testing.T) {
	ix := New(Options{})
	w := ix.Join(16)
	a, b := chain(ix, text(1, 8*kib)), chain(ix, text(2, 8*kib))
	w.SetCapacity(32)
	w.Insert(a)
	w.Insert(b)
	assert.Len(t, order(w), 32)
	w.SetCapacity(20)
	w.SetCapacity(20)
	w.Insert(chain(ix, text(3, 2*kib)))
	w.Insert(chain(ix, text(4, 2*kib)))
	assert.Len(t, order(w), 20)
	sound(t, ix)
}

func TestOneThatLeavesHoldsNothing(t *testing.T) {
	ix := New(Options{})
	a, b := ix.Join(0), ix.Join(0)
	prompt := chain(ix, text(1, 8*kib))
	a.Insert(prompt)
	b.Insert(prompt)
	a.Leave()
	a.Leave()
	assert.Equal(t, []int{0, 16}, held(ix, prompt, a, b))
	assert.Equal(t, 0, a.Insert(prompt), "nothing is added for it")
	assert.Equal(t, []int{0, 16}, held(ix, prompt, a, b))
	sound(t, ix)
}

func TestASlotIsFreeWhenNothingIsLeftOfItsWorker(t *testing.T) {
	ix := New(Options{})
	a, b := ix.Join(0), ix.Join(0)
	old := chain(ix, text(1, 8*kib))
	a.Insert(old)
	slot := a.slot
	a.Leave()
	c := ix.Join(0)
	require.NotEqual(t, slot, c.slot)
	assert.Equal(t, []int{0, 0}, held(ix, old, b, c))

	for i := range 8 { // new blocks take the old ones away
		require.Equal(t, 16-2*i, int(a.size.Load()))
		b.Insert(chain(ix, text(uint64(100+i), 512)))
	}
	assert.Zero(t, a.size.Load())
	d := ix.Join(0)
	assert.Equal(t, slot, d.slot)
	assert.Equal(t, []int{0, 0, 0}, held(ix, old, b, c, d))
	sound(t, ix)
}

func TestOneThatNeverHeldAnythingLeavesNothing(t *testing.T) {
	ix := New(Options{})
	for range 1000 {
		ix.Join(0).Leave()
	}
	assert.EqualValues(t, 1, ix.old.slots)
	assert.Empty(t, *ix.live.Load())
}

func TestManyHoldOnePrompt(t *testing.T) {
	ix := New(Options{})
	prompt := chain(ix, text(1, 48*kib))
	var workers []*Worker
	want := []int{}
	for i := range 200 {
		w := ix.Join(0)
		part := prompt[:1+i%len(prompt)]
		w.Insert(part)
		workers = append(workers, w)
		want = append(want, len(part))
		if i < 40 {
			assert.Equal(t, want, held(ix, prompt, workers...))
		}
	}
	assert.Equal(t, want, held(ix, prompt, workers...))
	sound(t, ix)

	filler := uint64(1000)
	keeper := ix.Join(0)
	for i, w := range workers {
		w.Leave()
		want[i] = 0
		for range 20 { // what it leaves behind goes
			keeper.Insert(chain(ix, text(filler, 512)))
			filler++
		}
		if i%20 == 0 || i > 180 {
			assert.Equal(t, want, held(ix, prompt, workers...))
			sound(t, ix)
		}
	}
	assert.Zero(t, len(ix.old.workers))
}

func TestMemoryIsBounded(t *testing.T) {
	const most = 1000
	hits := 0
	ix := New(Options{Memory: most * entryBytes, Bound: func(name string) {
		assert.Equal(t, "kvindex", name)
		hits++
	}})
	a, b := ix.Join(10*most), ix.Join(10*most)
	for i := range uint64(200) {
		a.Insert(chain(ix, text(i, 8*kib)))
		assert.LessOrEqual(t, ix.entries.Load(), int64(most))
	}
	assert.EqualValues(t, most, a.size.Load(), "one alone may have it all")
	assert.Positive(t, hits)
	for i := range uint64(200) {
		b.Insert(chain(ix, text(1000+i, 8*kib)))
		assert.LessOrEqual(t, ix.entries.Load(), int64(most))
	}
	assert.EqualValues(t, most/2, a.size.Load(), "until there is another one")
	assert.EqualValues(t, most/2, b.size.Load())
	sound(t, ix)
}

func TestTheBoundIsNotHitByAFullCache(t *testing.T) {
	ix := New(Options{Bound: func(string) { t.Error("there was memory") }})
	w := ix.Join(100)
	for i := range uint64(100) {
		w.Insert(chain(ix, text(i, 8*kib)))
	}
	assert.EqualValues(t, 100, w.size.Load())
}

func TestWhatIsLeftOfOthersGoesFirstWhenMemoryIsShort(t *testing.T) {
	const most = 100
	ix := New(Options{Memory: most * entryBytes, Bound: func(string) { t.Error("there was memory") }})
	a, b := ix.Join(most), ix.Join(most)
	a.Leave()
	for i := range uint64(6) {
		b.Insert(chain(ix, text(i, 8*kib)))
	}
	b.Leave()
	c := ix.Join(most / 2)
	for i := range uint64(3) {
		c.Insert(chain(ix, text(100+i, 8*kib)))
		assert.LessOrEqual(t, ix.entries.Load(), int64(most))
	}
	assert.EqualValues(t, 48, c.size.Load())
	sound(t, ix)
}

func TestLookupUsesItsMemoryAgain(t *testing.T) {
	ix := New(Options{})
	for range 100 {
		ix.Join(0).Insert(chain(ix, text(1, 48*kib)))
	}
	prompt := chain(ix, text(1, 48*kib))
	var m Match
	ix.Lookup(prompt, &m)
	assert.Zero(t, testing.AllocsPerRun(10, func() { ix.Lookup(prompt, &m) }))
}
