package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// seen is a cut of so many bytes at each length.
func seen(bytes map[int]float64) *cut {
	var all [bins]float64
	for length, n := range bytes {
		all[binOf(length)] += n
	}
	return newCut(&all)
}

func TestWhereALengthBelongs(t *testing.T) {
	f := func(name string, bytes map[int]float64, members int, want map[int]string) {
		t.Run(name, func(t *testing.T) {
			c := seen(bytes)
			got := map[int]string{}
			for length := range want {
				s := c.span(binOf(length), members)
				got[length] = fmt.Sprintf("%.2f to %.2f", s.from, s.to)
			}
			assert.Equal(t, want, got)
		})
	}
	f("one length is everybody's", map[int]float64{1000: 7}, 4, map[int]string{1000: "0.00 to 4.00"})
	f("neighbours meet within a member", map[int]float64{1000: 3, 2000: 5}, 4,
		map[int]string{1000: "0.00 to 1.50", 2000: "1.50 to 4.00"})
	f("kinds meet between members", map[int]float64{1000: 3, 100_000: 5}, 4,
		map[int]string{1000: "0.00 to 2.00", 100_000: "2.00 to 4.00"})
	f("the shortest have a member", map[int]float64{1000: 1, 100_000: 99}, 4,
		map[int]string{1000: "0.00 to 1.00", 100_000: "1.00 to 4.00"})
	f("and the longest", map[int]float64{1000: 95, 100_000: 5}, 4,
		map[int]string{1000: "0.00 to 3.00", 100_000: "3.00 to 4.00"})
	f("unless the others would get too much", map[int]float64{1000: 1, 100_000: 99}, 2,
		map[int]string{1000: "0.00 to 0.02", 100_000: "0.02 to 2.00"})
	f("three kinds", map[int]float64{100: 1, 10_000: 4, 1_000_000: 4}, 5,
		map[int]string{100: "0.00 to 1.00", 10_000: "1.00 to 3.00", 1_000_000: "3.00 to 5.00"})
	f("the longest two are one", map[int]float64{100: 50, 10_000: 48, 1_000_000: 2}, 4,
		map[int]string{100: "0.00 to 2.00", 10_000: "2.00 to 3.92", 1_000_000: "3.92 to 4.00"})
	f("one member has all", map[int]float64{100: 1, 10_000: 4}, 1,
		map[int]string{100: "0.00 to 0.20", 10_000: "0.20 to 1.00"})
	f("strays part nothing", map[int]float64{1000: 3000, 3000: 1, 9000: 1, 27_000: 1, 100_000: 5000}, 4,
		map[int]string{1000: "0.00 to 2.00", 100_000: "2.00 to 4.00"})
	f("few long ones are a kind", map[int]float64{1000: 9900, 100_000: 5000}, 3,
		map[int]string{1000: "0.00 to 2.00", 100_000: "2.00 to 3.00"})
	f("many short ones are a kind", map[int]float64{1000: 1, 10_000_000: 1000}, 4,
		map[int]string{1000: "0.00 to 1.00", 10_000_000: "1.00 to 4.00"})
	f("what was never seen", map[int]float64{1000: 1, 100_000: 1}, 4,
		map[int]string{1: "0.00 to 0.00", 1300: "2.00 to 2.00", 60_000: "2.00 to 2.00", 1 << 40: "4.00 to 4.00"})
}

func TestWhatWasNeverSeenJoinsTheKindItIsCloserTo(t *testing.T) {
	c := seen(map[int]float64{1000: 1, 100_000: 1})
	f := func(length, want int) {
		t.Helper()
		s := c.span(binOf(length), 4)
		assert.Equal(t, want, s.draw())
	}
	f(1, 0)
	f(2000, 1)
	f(9000, 1)
	f(12_000, 2)
	f(60_000, 2)
	f(1<<40, 3)
}

// Whatever was seen, and however many members there are: longer prompts never go
// to a member before one of shorter ones, and none gets too much.
func TestEveryCutIsFairAndInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	for range 1000 {
		var bytes [bins]float64
		for range 1 + r.IntN(40) {
			at := r.IntN(bins)
			for at < bins && r.IntN(4) > 0 {
				bytes[at] += math.Exp(12 * r.Float64())
				at++
			}
		}
		bytes[100]++
		c, n := newCut(&bytes), 1+r.IntN(70)
		given, at := make([]float64, n), 0.0
		before := 0.0
		for bin := range bins {
			s := c.span(bin, n)
			if s.from < at-1e-9 || s.to < s.from || s.to > float64(n)+1e-9 {
				t.Fatalf("bin %d of %d members is at %v, the one before ends at %v", bin, n, s, at)
			}
			at = s.to
			share := c.upTo[bin] - before
			before = c.upTo[bin]
			for m := int(s.from); m < n && float64(m) < s.to && s.from < s.to; m++ {
				part := min(s.to, float64(m+1)) - max(s.from, float64(m))
				given[m] += share * part / (s.to - s.from)
			}
			if m := s.draw(); m < int(s.from-1e-9) || m > int(s.to+1e-9) || m >= n {
				t.Fatalf("member %d of %d is not in %v", m, n, s)
			}
		}
		for m, share := range given {
			require.LessOrEqual(t, share*float64(n), strain+1e-6, "member %d of %d, %d kinds", m, n, len(c.ends))
		}
	}
}

func TestBinsCoverAllLengths(t *testing.T) {
	for bin := range bins {
		start := binStart(bin)
		if bin > 0 {
			assert.Equal(t, bin, binOf(start), "%d", start)
		}
		if bin > 1 {
			assert.Equal(t, bin-1, binOf(start-1), "%d", start)
		}
	}
	assert.Equal(t, 0, binOf(0))
	assert.Equal(t, bins-1, binOf(math.MaxInt))
}
