package kvindex

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive is one worker as a plain list of what it holds, the block used last first.
type naive struct {
	capacity int
	list     []uint64
}

func (n *naive) insert(chain []uint64) (held int) {
	for i, hash := range chain {
		if at := slices.Index(n.list, hash); at >= 0 {
			n.list = slices.Insert(slices.Delete(n.list, at, at+1), i, hash)
			held++
			continue
		}
		for n.weight()+weight(hash) > n.capacity && len(n.list) > i {
			n.list = n.list[:len(n.list)-1]
		}
		if n.weight()+weight(hash) > n.capacity {
			return held
		}
		n.list = slices.Insert(n.list, i, hash)
	}
	return held
}

func (n *naive) weight() (sum int) {
	for _, hash := range n.list {
		sum += weight(hash)
	}
	return sum
}

func (n *naive) holds(chain []uint64) int {
	for i, hash := range chain {
		if !slices.Contains(n.list, hash) {
			return i
		}
	}
	return len(chain)
}

// world makes prompts that share their beginnings.
type world struct {
	r      *rand.Rand
	bodies [][]byte
}

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1))}
	for i := range 6 {
		w.bodies = append(w.bodies, text(uint64(i), 24*kib))
	}
	return w
}

func (w *world) prompt() []byte {
	one, other := w.bodies[w.r.IntN(len(w.bodies))], w.bodies[w.r.IntN(len(w.bodies))]
	head := one[:w.r.IntN(len(one))]
	return append(slices.Clip(head), other[:w.r.IntN(len(other)/(1+w.r.IntN(20)))]...)
}

// The index says of any prompt, at any time, what plain lists say.
func TestTheIndexIsWhatPlainListsAre(t *testing.T) {
	for seed := range uint64(12) {
		ix := New(Options{})
		w := newWorld(seed)
		model := map[*Worker]*naive{}
		var workers []*Worker
		for range 400 {
			switch {
			case len(workers) == 0 || w.r.IntN(12) == 0:
				capacity := 1 + w.r.IntN(200)
				worker := ix.Join(capacity)
				workers = append(workers, worker)
				model[worker] = &naive{capacity: capacity}
			case w.r.IntN(20) == 0:
				i := w.r.IntN(len(workers))
				workers[i].Leave()
				workers = slices.Delete(workers, i, i+1)
			default:
				worker := workers[w.r.IntN(len(workers))]
				prompt := chain(ix, w.prompt())
				require.Equal(t, model[worker].insert(prompt), worker.Insert(prompt), "seed %d", seed)
				require.Equal(t, len(model[worker].list), len(order(worker)))
			}
			probe := chain(ix, w.prompt())
			want := make([]int, len(workers))
			for i, worker := range workers {
				want[i] = model[worker].holds(probe)
			}
			require.Equal(t, want, held(ix, probe, workers...), "seed %d", seed)
		}
		sound(t, ix)
		for _, worker := range workers {
			require.True(t, slices.Equal(model[worker].list, order(worker)))
		}
	}
}
