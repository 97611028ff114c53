package policy

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// rig is a set whose prefills are chosen by cache.
type rig struct {
	testing.TB
	*pools.Set
	made int // prompts that nobody had before
}

func newRig(t testing.TB, prefills int, opt CacheAwareOptions) *rig {
	t.Helper()
	workers := []*pd.Worker{{ID: "decode", Role: pd.Decode}}
	for i := range prefills {
		workers = append(workers, prefillWorker(i))
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(NewCacheAware(opt), Random{})})
	require.NoError(t, err)
	return &rig{TB: t, Set: set}
}

func prefillWorker(i int) *pd.Worker {
	return &pd.Worker{ID: pd.WorkerID("w" + strconv.Itoa(i)), Role: pd.Prefill}
}

// promptRequest is a request with text as its prompt.
func promptRequest(t testing.TB, text string) *pd.Request {
	t.Helper()
	body, err := json.Marshal(map[string]string{"text": text})
	require.NoError(t, err)
	req, err := pd.NewRequest(pd.Generate, body)
	require.NoError(t, err)
	return req
}

// distinct is a text of n bytes that begins with key.
func distinct(key string, n int) string {
	return key + strings.Repeat(".", n-len(key))
}

// cold is a text of n bytes that was never sent before.
func (r *rig) cold(n int) string {
	r.made++
	return distinct(fmt.Sprintf("%08d", r.made), n)
}

// start sends a prompt, whose work goes on.
func (r *rig) start(text string) *pd.Plan {
	r.Helper()
	plans, err := r.Plan(r.Context(), promptRequest(r, text), 1, nil)
	require.NoError(r, err)
	return plans[0]
}

// send sends a prompt, waits for its end, and returns who had it.
func (r *rig) send(text string) pd.WorkerID {
	r.Helper()
	plan := r.start(text)
	plan.End(pd.Success, pd.Success)
	return plan.Prefill.Worker.ID
}

// startOn sends a prompt to one worker, whose work goes on.
func (r *rig) startOn(id pd.WorkerID, text string) *pd.Plan {
	r.Helper()
	for _, m := range prefills(r) {
		if m.Worker.ID != id {
			r.Drain(m.Worker.ID)
			defer r.Resume(m.Worker.ID)
		}
	}
	plan := r.start(text)
	require.Equal(r, id, plan.Prefill.Worker.ID)
	return plan
}

// count sends n prompts, one after the other, and counts who had them.
func (r *rig) count(n int, text func() string) map[pd.WorkerID]int {
	r.Helper()
	counts := map[pd.WorkerID]int{}
	for range n {
		counts[r.send(text())]++
	}
	return counts
}

// evenly checks that each of n workers had its part of all, give or take some.
func evenly(t testing.TB, counts map[pd.WorkerID]int, n int, delta float64) {
	t.Helper()
	all := 0
	for _, count := range counts {
		all += count
	}
	assert.Len(t, counts, n)
	for id, count := range counts {
		assert.InDelta(t, 1/float64(n), float64(count)/float64(all), delta, id)
	}
}

func TestAConversationStaysWhereItIs(t *testing.T) {
	r := newRig(t, 4, CacheAwareOptions{})
	history := make([]string, 40)
	home := map[int]pd.WorkerID{}
	for turn := range 10 {
		for i := range history {
			history[i] += r.cold(700)
			had := r.send(history[i])
			if turn == 0 {
				home[i] = had
			}
			assert.Equal(t, home[i], had, "conversation %d, turn %d", i, turn)
		}
	}
}

func TestTheLongerPrefixWins(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	system := r.cold(4 << 10)
	a := r.send(system + distinct("a", 4<<10))
	busy := r.start(system + distinct("a", 4<<10) + r.cold(16<<10)) // what follows goes elsewhere
	b := r.send(system + distinct("b", 8<<10))
	busy.End(pd.Success, pd.Success)
	require.NotEqual(t, a, b)
	for i := range 5 {
		assert.Equal(t, a, r.send(system+distinct("a", 4<<10)+strconv.Itoa(i)))
		assert.Equal(t, b, r.send(system+distinct("b", 8<<10)+strconv.Itoa(i)))
	}
}

func TestPromptsThatNobodyHoldsAreSpread(t *testing.T) {
	f := func(name string, n int, text func(r *rig) string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, n, CacheAwareOptions{})
			evenly(t, r.count(400, func() string { return text(r) }), n, 0.01)
		})
	}
	f("4 workers", 4, func(r *rig) string { return r.cold(2000) })
	f("5 workers", 5, func(r *rig) string { return r.cold(2000) })
	f("too short for a block", 4, func(r *rig) string { return r.cold(100) })
	f("always the same, too short for a block", 4, func(*rig) string { return "hello" })
	f("of all lengths", 4, func(r *rig) string { return r.cold(20 + r.made*37%9000) })
}

// What all workers hold says nothing about where to go.
func TestAPrefixThatAllHoldDoesNotCount(t *testing.T) {
	r := newRig(t, 4, CacheAwareOptions{})
	system := r.cold(4 << 10)
	var plans []*pd.Plan
	for range 16 {
		plans = append(plans, r.start(system+r.cold(8<<10)))
	}
	for _, plan := range plans {
		plan.End(pd.Success, pd.Success)
	}
	evenly(t, r.count(400, func() string { return system + r.cold(2000) }), 4, 0.01)
}

func TestPromptsGoToTheIdle(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	for range 50 {
		r.startOn("w1", r.cold(2000))
	}
	idle := 0
	for range 20 {
		if r.start(r.cold(2000)).Prefill.Worker.ID == "w0" {
			idle++
		}
	}
	assert.GreaterOrEqual(t, idle, 18)
}

func TestConcurrentPromptsAreSpread(t *testing.T) {
	f := func(name string, text func(r *rig) string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3, CacheAwareOptions{})
			counts := map[pd.WorkerID]int{}
			for range 300 {
				counts[r.start(text(r)).Prefill.Worker.ID]++
			}
			evenly(t, counts, 3, 0.05)
		})
	}
	f("distinct", func(r *rig) string { return r.cold(3000) })
	f("one and the same", func(*rig) string { return distinct("same", 3000) })
	f("one and the same, of whole blocks", func(*rig) string { return distinct("same", 4091) })
	f("one and the same, too short for a block", func(*rig) string { return "hello" })
	f("on one long prefix", func(r *rig) string { return distinct("same", 9000) + r.cold(500) })
}

// Not how many requests there are counts, but how much work they are.
func TestOneLongPromptWeighsMoreThanManyShortOnes(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	for range 100 {
		r.send(r.cold(400)) // what was before does not count
	}
	long := r.start(r.cold(480 << 10)).Prefill.Worker.ID
	for range 20 {
		assert.NotEqual(t, long, r.start(r.cold(400)).Prefill.Worker.ID)
	}
}

func TestALongQueueIsNotWorthAShortPrefix(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	prefix := r.cold(2 << 10)
	home := r.send(prefix)
	for range 4 {
		r.start(r.cold(20 << 10))
	}
	had := r.start(prefix + r.cold(500)).Prefill.Worker.ID
	assert.Equal(t, home, had, "both have as long a queue")
	r.startOn(home, r.cold(4<<10))
	counts := r.count(10, func() string { return prefix + r.cold(500) })
	assert.Len(t, counts, 1)
	assert.Zero(t, counts[home], "it is quicker to compute it anew")
}

func TestWithoutItsWorkerAPromptGoesToTheNextThatHoldsIt(t *testing.T) {
	f := func(name string, out func(r *rig, id pd.WorkerID)) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 4, CacheAwareOptions{})
			prompt := r.cold(8 << 10)
			first := r.send(prompt)
			busy := r.start(prompt + r.cold(64<<10))
			second := r.send(prompt[:6<<10])
			busy.End(pd.Success, pd.Success)
			require.NotEqual(t, first, second)
			require.Equal(t, first, r.send(prompt))

			out(r, first)
			assert.Equal(t, second, r.send(prompt))
			out(r, second)
			assert.NotContains(t, []pd.WorkerID{first, second}, r.send(prompt))
		})
	}
	f("draining", func(r *rig, id pd.WorkerID) { r.Drain(id) })
	f("dead", func(r *rig, id pd.WorkerID) { r.Find(id).Down("went away") })
	f("removed", func(r *rig, id pd.WorkerID) { require.NoError(r, r.Remove(id)) })
}

func TestOneThatComesBackHoldsWhatItHeld(t *testing.T) {
	r := newRig(t, 4, CacheAwareOptions{})
	prompt := r.cold(8 << 10)
	home := r.send(prompt)
	r.Drain(home)
	require.NotEqual(t, home, r.send(prompt[:1<<10]))
	r.Resume(home)
	assert.Equal(t, home, r.send(prompt))
	require.NoError(t, r.Update(&pd.Worker{ID: home, Role: pd.Prefill, APIKey: "new"}))
	assert.Equal(t, home, r.send(prompt))
}

func TestAWorkerThatWasRemovedHoldsNothing(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	prompt := r.cold(8 << 10)
	home := r.send(prompt)
	worker := r.Find(home).Worker
	require.NoError(t, r.Remove(home))
	require.NoError(t, r.Add(worker))
	r.startOn(home, r.cold(100))
	assert.NotEqual(t, home, r.send(prompt), "both have to compute it, and the other one has nothing else to do")
}

// Only what must move moves when workers come and go.
func TestMembershipChangesMoveLittle(t *testing.T) {
	r := newRig(t, 8, CacheAwareOptions{})
	var prompts []string
	home := map[string]pd.WorkerID{}
	for range 200 {
		prompt := r.cold(4 << 10)
		prompts = append(prompts, prompt)
		home[prompt] = r.send(prompt)
	}
	moved := func() (n int) {
		for _, prompt := range prompts {
			if had := r.send(prompt); had != home[prompt] {
				home[prompt] = had
				n++
			}
		}
		return n
	}
	require.NoError(t, r.Add(prefillWorker(8)))
	assert.Zero(t, moved(), "one that came takes nothing away")
	require.NoError(t, r.Remove("w3"))
	assert.Equal(t, 25, moved(), "of one that went, its own")
	assert.Zero(t, moved())
}

func TestANewWorkerGetsNewPrompts(t *testing.T) {
	r := newRig(t, 3, CacheAwareOptions{})
	r.count(100, func() string { return r.cold(2000) })
	require.NoError(t, r.Add(prefillWorker(3)))
	evenly(t, r.count(400, func() string { return r.cold(2000) }), 4, 0.01)
}

func TestShortMemoryIsTold(t *testing.T) {
	var told []string
	r := newRig(t, 2, CacheAwareOptions{Memory: 10_000, Bound: func(name string) { told = append(told, name) }})
	for range 50 {
		r.send(r.cold(8 << 10))
	}
	require.NotEmpty(t, told)
	assert.Equal(t, "kvindex", told[0])
}

func TestPoliciesShareNothing(t *testing.T) {
	r := newRig(t, 2, CacheAwareOptions{})
	members := []*pools.Member{r.Find("w0"), r.Find("w1")}
	req := promptRequest(t, r.cold(8<<10))
	one, other := NewCacheAware(CacheAwareOptions{}), NewCacheAware(CacheAwareOptions{})
	one.Follow(members)
	other.Follow(members)
	one.Pick(promptRequest(t, "turn"), members)
	require.Same(t, members[1], one.Pick(req, members))
	one.Chosen(req, members[1])
	assert.Same(t, members[1], one.Pick(req, members))
	assert.Same(t, members[0], other.Pick(req, members))
}

func TestStrangersAreChosenByLoadAlone(t *testing.T) {
	members := loaded(t, 3, 1, 2)
	p := NewCacheAware(CacheAwareOptions{})
	req := promptRequest(t, distinct("a", 4000))
	assert.Same(t, members[1], p.Pick(req, members))
	p.Chosen(req, members[1])
	assert.Same(t, members[1], p.Pick(nil, members))
	assert.Nil(t, p.Pick(req, nil))
	members = idle(t, 3)
	for i := range 6 {
		assert.NotSame(t, p.Pick(req, members), p.Pick(req, members), "pair %d", i)
	}
}

// F77: each role has a policy of its own.
func TestPrefillByCacheDecodeByLoad(t *testing.T) {
	var workers []*pd.Worker
	for i := range 4 {
		workers = append(workers, prefillWorker(i), decoder(i))
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(NewCacheAware(CacheAwareOptions{}), PowerOfTwo{})})
	require.NoError(t, err)
	prefill, decode := map[pd.WorkerID]int{}, map[pd.WorkerID]int{}
	var streams []*pd.Plan
	for i := range 100 {
		plan := send(t, set, promptRequest(t, distinct("system", 8<<10)+strconv.Itoa(i)))
		plan.Prefill.End(pd.Success) // while decode goes on
		prefill[plan.Prefill.Worker.ID]++
		decode[plan.Decode.Worker.ID]++
		streams = append(streams, plan)
	}
	assert.Len(t, prefill, 1)
	evenly(t, decode, 4, 0.06)
	finish(streams)
}

// prefills are the prefills of a set.
func prefills(r *rig) []*pools.Member {
	var out []*pools.Member
	for _, m := range r.Members() {
		if m.Worker.Role == pd.Prefill {
			out = append(out, m)
		}
	}
	return out
}
