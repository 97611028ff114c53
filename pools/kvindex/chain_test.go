package kvindex

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOnlyWholeBlocksCount(t *testing.T) {
	ix := New(Options{})
	f := func(bytes, blocks int) {
		t.Run(fmt.Sprintf("%d bytes", bytes), func(t *testing.T) {
			assert.Len(t, ix.Chain(nil, text(1, bytes)), blocks)
		})
	}
	f(0, 0)
	f(511, 0)
	f(512, 1)
	f(1023, 1)
	f(8<<10-1, 15)
	f(8<<10, 16)
	f(8<<10+2047, 16) // larger ones from here on
	f(8<<10+2048, 17)
	f(48<<10, 36)
	f(400<<10, 212)
	f(Bytes(maxChain), maxChain)
	f(Bytes(maxChain)+10*coarseSize, maxChain)
}

func TestBytesIsTheLengthOfTheFirstBlocks(t *testing.T) {
	assert.Equal(t, 0, Bytes(0))
	assert.Equal(t, 512, Bytes(1))
	assert.Equal(t, 8192, Bytes(16))
	assert.Equal(t, 8192+2048, Bytes(17))
}

func TestAHashStandsForAllBeforeIt(t *testing.T) {
	ix := New(Options{})
	prompt := text(1, 20<<10)
	whole := ix.Chain(nil, prompt)
	require.Len(t, whole, 22)
	f := func(changed, same int) {
		t.Run(fmt.Sprintf("byte %d", changed), func(t *testing.T) {
			other := append([]byte(nil), prompt...)
			other[changed] ^= 1
			chain := ix.Chain(nil, other)
			assert.Equal(t, whole[:same], chain[:same])
			for i := same; i < len(whole); i++ {
				assert.NotEqual(t, whole[i], chain[i], "block %d", i)
			}
		})
	}
	f(0, 0)
	f(511, 0)
	f(512, 1)
	f(8191, 15)
	f(8192, 16)
	f(12000, 17)
}

func TestAPromptThatGoesOnKeepsItsChain(t *testing.T) {
	ix := New(Options{})
	prompt := text(1, 100<<10)
	whole := ix.Chain(nil, prompt)
	for n := 0; n <= len(prompt); n += 1000 {
		part := ix.Chain(nil, prompt[:n])
		assert.True(t, slices.Equal(whole[:len(part)], part), "%d bytes", n)
	}
}

func TestEqualBlocksInOtherPlacesDiffer(t *testing.T) {
	ix := New(Options{})
	seen := map[uint64]bool{}
	for _, hash := range ix.Chain(nil, make([]byte, 100<<10)) {
		assert.False(t, seen[hash])
		seen[hash] = true
	}
}

func TestHashesAreKnownToOneIndexOnly(t *testing.T) {
	prompt := text(1, 4096)
	assert.NotEqual(t, New(Options{}).Chain(nil, prompt), New(Options{}).Chain(nil, prompt))
}

func TestAChainUsesTheMemoryGiven(t *testing.T) {
	ix := New(Options{})
	prompt := text(1, 48<<10)
	buf := ix.Chain(nil, prompt)
	assert.Zero(t, testing.AllocsPerRun(10, func() { buf = ix.Chain(buf, prompt) }))
}
