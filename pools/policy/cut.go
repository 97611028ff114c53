package policy

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// Lengths are counted in bins, eight for each doubling: what is in one bin
// differs by an eighth at most. The last holds all from 4 GB on.
const (
	bins      = 240
	perDouble = 8
)

// What parts two kinds of length: more than a factor of four that nearly nothing
// lies between. A bin with less than a stray's share both of the requests and of
// the bytes is nearly nothing.
const (
	gap   = 2 * perDouble
	stray = 1.0 / 256
)

// strain is how many times an equal share of the bytes a member may get for the
// sake of keeping kinds apart.
const strain = 1.5

// cut says which part of the work each length is: bin by bin, shortest first, it
// lays the bytes seen on the line from 0 to 1, which the members then divide
// equally. So a length that makes up much of the work is shared by members, and
// no two of them share more than the length at which their ranges meet.
//
// Where lengths fall into kinds, as short questions and whole documents do,
// members are of one kind only: each kind gets as many as come closest to its
// share of the bytes, and at least one. The longest two count as one kind as long
// as some member would get too much more than its share; see strain. A cut never
// changes.
type cut struct {
	upTo [bins]float64 // share of the bytes in this bin and those before it
	kind [bins]int     // by number, the shortest is 0
	ends []float64     // share of the bytes in this kind and those before it
}

// newCut makes the cut of the bytes seen in each bin; there are some.
func newCut(bytes *[bins]float64) *cut {
	c := new(cut)
	var sum, requests float64
	for i, n := range bytes {
		sum += n
		requests += n / float64(binStart(i))
	}
	last := -1 // bin that was not a stray
	kind, labelled := 0, 0
	var done float64
	for i, n := range bytes {
		done += n
		c.upTo[i] = done / sum
		if n < stray*sum && n/float64(binStart(i)) < stray*requests {
			continue
		}
		if last >= 0 && i-last > gap {
			middle := (last + i + 1) / 2 // strays go with the kind they are closer to
			for ; labelled < middle; labelled++ {
				c.kind[labelled] = kind
			}
			kind++
			c.ends = append(c.ends, c.upTo[middle-1])
		}
		last = i
	}
	for ; labelled < bins; labelled++ {
		c.kind[labelled] = kind
	}
	c.ends = append(c.ends, 1)
	return c
}

// like reports whether c parts lengths as old does, give or take a share of the
// bytes.
func (c *cut) like(old *cut, tolerance float64) bool {
	if old == nil || len(old.ends) != len(c.ends) {
		return false
	}
	for i := range c.upTo {
		if math.Abs(c.upTo[i]-old.upTo[i]) > tolerance {
			return false
		}
	}
	return true
}

// span is a stretch of a pool's members, as real numbers: member i is from i to
// i+1. last is the last member that may be meant.
type span struct {
	from, to float64
	last     int
}

// draw is one of the span's members, each as often as it has a part in it.
func (s span) draw() int {
	return min(int(s.from+rand.Float64()*(s.to-s.from)), s.last)
}

// drawTwo is two of the span's members, different ones if it has as many.
func (s span) drawTwo() (one, other int) {
	one = s.draw()
	start, end := max(s.from, float64(one)), min(s.to, float64(one+1))
	left := s.to - s.from - (end - start)
	if left <= 0 {
		return one, one
	}
	at := s.from + rand.Float64()*left
	if at >= start {
		at += end - start
	}
	return one, min(int(at), s.last)
}

// span is where the lengths of a bin belong among n members.
func (c *cut) span(bin, n int) span {
	groups := min(len(c.ends), n)
	for groups > 1 && !c.bearable(groups, n) {
		groups--
	}
	first, count, start, end := c.group(min(c.kind[bin], groups-1), groups, n)
	from := 0.0
	if bin > 0 {
		from = c.upTo[bin-1]
	}
	place := func(share float64) float64 {
		return float64(first) + (min(max(share, start), end)-start)/(end-start)*float64(count)
	}
	return span{place(from), place(c.upTo[bin]), first + count - 1}
}

// group is the members of kind g, where kinds from groups-1 on are one, and the
// stretch of the bytes that is theirs.
func (c *cut) group(g, groups, n int) (first, count int, start, end float64) {
	for i := range groups {
		first, start = first+count, end
		if i == groups-1 {
			return first, n - first, start, 1
		}
		end = c.ends[i]
		fair := int(math.Round((end - start) / (1 - start) * float64(n-first)))
		count = min(max(1, fair), n-first-(groups-1-i))
		if i == g {
			break
		}
	}
	return first, count, start, end
}

// bearable reports whether no member of n gets too much where the kinds make so
// many groups.
func (c *cut) bearable(groups, n int) bool {
	for g := range groups {
		_, count, start, end := c.group(g, groups, n)
		if (end-start)*float64(n) > strain*float64(count) {
			return false
		}
	}
	return true
}

// binOf is the bin of a length.
func binOf(length int) int {
	octave := bits.Len64(uint64(length)) - 1
	if octave < 3 {
		return max(0, length)
	}
	return min((octave-2)*perDouble+length>>(octave-3)&7, bins-1)
}

// binStart is the shortest length of a bin, and 1 for the first.
func binStart(bin int) int {
	if bin < perDouble {
		return max(1, bin)
	}
	return (perDouble + bin%perDouble) << (bin/perDouble - 1)
}
