package workload

import (
	"container/list"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// ratioRule is a model of a gateway's cache_aware that goes by the share of a
// prompt that is known: above the threshold to who was sent that prefix, else to
// who has the least in flight. Its engines are caches of so many tokens and nothing
// else, and a request is in flight until so many others have come.
type ratioRule struct {
	threshold float64
	inFlight  int
	caches    []*lru
	tenants   map[string]int // worker of each head
	flying    []int          // workers
	load      []int
	random    *rand.Rand
}

func newRatioRule(workers, cache, inFlight int) *ratioRule {
	m := &ratioRule{
		threshold: 0.3, inFlight: inFlight, tenants: make(map[string]int), load: make([]int, workers),
		random: rand.New(rand.NewPCG(3, 1)),
	}
	for range workers {
		m.caches = append(m.caches, &lru{room: cache, at: make(map[string]*list.Element)})
	}
	return m
}

// send sends a request and returns how many tokens of it were cached.
func (m *ratioRule) send(r request) int {
	to, known := m.tenants[r.head]
	share := float64(len(r.head)) / float64(len(r.head)+len(r.rest))
	if !known || share <= m.threshold {
		to = m.idlest()
	}
	m.tenants[r.head] = to
	m.load[to]++
	m.flying = append(m.flying, to)
	if len(m.flying) > m.inFlight {
		m.load[m.flying[0]]--
		m.flying = m.flying[1:]
	}
	cached := m.caches[to].use(r.head)
	m.caches[to].use(r.rest)
	return cached
}

// idlest is any of those with the least in flight.
func (m *ratioRule) idlest() int {
	best, equals := 0, 0
	for i, n := range m.load {
		switch {
		case n < m.load[best]:
			best, equals = i, 1
		case n == m.load[best]:
			if equals++; m.random.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// hits is the share of the tokens of requests that were cached, behind a warm-up.
func (m *ratioRule) hits(warm, measured []request) float64 {
	for _, r := range warm {
		m.send(r)
	}
	prompt, cached := 0, 0
	for _, r := range measured {
		prompt += len(r.head) + len(r.rest)
		cached += m.send(r)
	}
	return float64(cached) / float64(prompt)
}

// lru remembers texts, so many bytes of them, those used last.
type lru struct {
	room, held int
	used       list.List // of string, the last first
	at         map[string]*list.Element
}

// use returns the length of text if it was remembered, and remembers it.
func (c *lru) use(text string) int {
	if e := c.at[text]; e != nil {
		c.used.MoveToFront(e)
		return len(text)
	}
	c.at[text] = c.used.PushFront(text)
	for c.held += len(text); c.held > c.room; {
		last := c.used.Remove(c.used.Back()).(string)
		delete(c.at, last)
		c.held -= len(last)
	}
	return 0
}

func TestTheModelOfARatioRule(t *testing.T) {
	ask := func(head, rest int) request {
		return request{head: strings.Repeat("h", head), rest: strings.Repeat("r", rest)}
	}
	m := newRatioRule(2, 1000, 1)
	assert.Zero(t, m.send(ask(40, 60)))
	assert.Equal(t, 40, m.send(ask(40, 50)), "two fifths are known: it goes there though the other is idle")
	m = newRatioRule(2, 1000, 1)
	assert.Zero(t, m.send(ask(30, 70)))
	assert.Zero(t, m.send(ask(30, 71)), "three tenths are known: it goes to the idle one")
	assert.Equal(t, 30, m.send(ask(30, 72)))

	c := &lru{room: 10, at: make(map[string]*list.Element)}
	for _, text := range []string{"aaaa", "bbbb", "aaaa", "cccc"} {
		c.use(text)
	}
	assert.Zero(t, c.use("bbbb"))
	assert.Equal(t, 4, c.use("cccc"))
}
