package simengine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestThePrefixCache(t *testing.T) {
	text := func(letter string, blocks int) []int { return Tokenize(strings.Repeat(letter, blocks*cacheBlock)) }
	a, b, c := text("a", 4), text("b", 4), text("c", 4)

	t.Run("knows whole blocks, and never the last token", func(t *testing.T) {
		p := newPrefix(1024)
		p.add(a)
		assert.Equal(t, 4*cacheBlock-1, p.match(a))
		assert.Equal(t, 4*cacheBlock, p.match(append(slices.Clone(a), b...)))
		assert.Equal(t, cacheBlock, p.match(append(text("a", 1), b...)))
		assert.Zero(t, p.match(b))
		assert.Zero(t, p.match(nil))
	})
	t.Run("forgets what was used longest ago", func(t *testing.T) {
		p := newPrefix(8 * cacheBlock)
		p.add(a)
		p.add(b)
		p.match(a)
		p.add(c)
		assert.Equal(t, 4*cacheBlock-1, p.match(a))
		assert.Zero(t, p.match(b))
		assert.Equal(t, 4*cacheBlock-1, p.match(c))
	})
	t.Run("forgets a prompt from its end", func(t *testing.T) {
		p := newPrefix(8 * cacheBlock)
		p.add(a)
		p.add(b)
		p.add(text("c", 2))
		assert.Equal(t, 2*cacheBlock, p.match(a))
		assert.Equal(t, 4*cacheBlock-1, p.match(b))
	})
	t.Run("keeps the start of a prompt that does not fit", func(t *testing.T) {
		p := newPrefix(3 * cacheBlock)
		p.add(a)
		assert.Equal(t, 3*cacheBlock, p.match(a))
		assert.Len(t, p.blocks, 3)
	})
	t.Run("is empty after a flush", func(t *testing.T) {
		p := newPrefix(1024)
		p.add(a)
		p.flush()
		assert.Zero(t, p.match(a))
		assert.Zero(t, p.recent.Len())
	})
}
