package policy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// believed is how many bytes of a prompt the policy takes each of w0, w1 ... to have.
func believed(p *CacheAware, text string, members ...*pools.Member) []int64 {
	s := &scratch{}
	chain := p.index.Chain(nil, []byte(text))
	p.index.Lookup(chain, &s.match)
	s.gather(p.pool.Load(), members, int64(len(text)), 1)
	var held []int64
	for _, o := range s.offers {
		held = append(held, o.held)
	}
	return held
}

// textOf is the prompt of a request as the policies see it.
func textOf(req *pd.Request) string { return string(req.Prompt()) }

// What a worker has room for may come to be known late: its engine says so.
func TestAWorkerHoldsWhatItsCacheHasRoomFor(t *testing.T) {
	r := newRig(t, 1, CacheAwareOptions{})
	p := NewCacheAware(CacheAwareOptions{})
	send := func(text string) string {
		m := r.Find("w0")
		req := promptRequest(t, text)
		p.Follow([]*pools.Member{m})
		p.Chosen(req, m)
		return textOf(req)
	}
	held := func(text string) int64 { return believed(p, text, r.Find("w0"))[0] }
	old := send(r.cold(4 << 10))
	for range 4 {
		send(r.cold(4 << 10))
	}
	assert.EqualValues(t, 4096, held(old), "nothing is known of its cache")

	w := *prefillWorker(0)
	w.KVTokens = 6 << 10 / bytesPerToken
	require.NoError(t, r.Update(&w))
	last := send(r.cold(4 << 10))
	send(r.cold(1 << 10))
	assert.Zero(t, held(old), "there are 6 KiB")
	assert.EqualValues(t, 4096, held(last))

	w = *prefillWorker(0)
	w.KVTokens = 64 << 10
	require.NoError(t, r.Update(&w))
	for range 8 {
		send(r.cold(8 << 10))
	}
	assert.EqualValues(t, 4096, held(last), "and now there are many")
}

// An engine that was started anew has nothing in its cache.
func TestAWorkerThatWasDeadHoldsNothing(t *testing.T) {
	f := func(name string, out, back func(r *rig, id pd.WorkerID), want bool) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3, CacheAwareOptions{})
			prompt := r.cold(8 << 10)
			home := r.send(prompt)
			out(r, home)
			other := r.send(r.cold(100))
			require.NotEqual(t, home, other)
			back(r, home)
			r.startOn(home, r.cold(100))
			assert.Equal(t, want, r.send(prompt) == home)
		})
	}
	f("dead", func(r *rig, id pd.WorkerID) { r.Find(id).Down("went away") },
		func(r *rig, id pd.WorkerID) { r.Find(id).Up() }, false)
	f("draining", func(r *rig, id pd.WorkerID) { r.Drain(id) },
		func(r *rig, id pd.WorkerID) { r.Resume(id) }, true)
	f("removed and added again", func(r *rig, id pd.WorkerID) { require.NoError(r, r.Remove(id)) },
		func(r *rig, id pd.WorkerID) { require.NoError(r, r.Add(&pd.Worker{ID: id, Role: pd.Prefill})) }, false)
}

// One whose breaker is open has its cache still.
func TestABreakerThatOpensMakesNobodyForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, CacheAwareOptions{})
		prompt := r.cold(8 << 10)
		home := r.send(prompt)
		for range 10 {
			r.Find(home).Blame()
		}
		for range 5 {
			require.NotEqual(t, home, r.send(prompt[:1<<10]))
		}
		time.Sleep(2 * time.Minute)
		for range 3 { // trials
			r.sendTo(home, r.cold(100))
		}
		assert.Equal(t, home, r.send(prompt))
	})
}

// F80: what an engine says of its cache is believed when it says it again and again.
func TestAnEngineThatHasLostItsCacheIsForgotten(t *testing.T) {
	f := func(name string, cached []int, forgotten bool) {
		t.Run(name, func(t *testing.T) {
			p := NewCacheAware(CacheAwareOptions{})
			members := idle(t, 2)
			p.Follow(members)
			prefix := distinct("system", 8<<10)
			var text string
			for i, n := range append([]int{0}, cached...) { // the first is new to it
				req := promptRequest(t, prefix+fmt.Sprintf("%-4000d", i))
				text = textOf(req)
				p.Chosen(req, members[1])
				if n >= 0 {
					p.Learned(req, members[1].Worker.ID, 3000, n)
					p.Learned(req, members[1].Worker.ID, 3000, n) // it counts once
				}
			}
			held := believed(p, text, members...)
			assert.Equal(t, forgotten, held[1] == 0)
			assert.Zero(t, held[0])
		})
	}
	f("it has nothing, five times", []int{0, 0, 0, 0, 0}, true)
	f("it has little, five times", []int{100, 100, 0, 100, 0}, true)
	f("four times", []int{0, 0, 0, 0}, false)
	f("with one that it had between them", []int{0, 0, 0, 2000, 0, 0}, false)
	f("five and some that nobody spoke of", []int{0, -1, 0, 0, -1, 0, 0}, true)
	f("it has all", []int{2000, 2000, 2000, 2000, 2000, 2000}, false)
}

func TestWhatNobodyExpectedIsNotMissed(t *testing.T) {
	p := NewCacheAware(CacheAwareOptions{})
	members := idle(t, 1)
	p.Follow(members)
	id := members[0].Worker.ID
	req := promptRequest(t, distinct("kept", 8<<10))
	p.Chosen(req, members[0])
	for i := range 200 {
		fresh := promptRequest(t, distinct(fmt.Sprint("new ", i), 2000))
		p.Chosen(fresh, members[0])
		p.Learned(fresh, id, 500, 0)
	}
	for range 10 {
		p.Learned(promptRequest(t, "never sent"), id, 500, 0)
		p.Learned(req, id, 0, 0)
		p.Learned(req, "stranger", 500, 0)
		p.Learned(nil, id, 500, 0)
	}
	assert.Positive(t, believed(p, textOf(req), members...)[0])
}

// F71: what is in flight counts by its size, in whatever order it ends.
func TestWorkInFlightIsWhatIsThere(t *testing.T) {
	f := func(name string, run func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, CacheAwareOptions{})
			run(r)
			for range 20 {
				assert.Equal(t, pd.WorkerID("w1"), r.send(r.cold(400)))
			}
		})
	}
	f("one long prompt and three short ones", func(r *rig) {
		r.startOn("w0", r.cold(480_000))
		for range 3 {
			r.startOn("w1", r.cold(400))
		}
	})
	f("short ones that came later are done", func(r *rig) {
		r.startOn("w0", r.cold(480_000))
		for range 10 {
			r.startOn("w1", r.cold(400))
		}
		for range 30 {
			r.sendTo("w0", r.cold(400))
		}
	})
	f("long ones that came later are done", func(r *rig) {
		for range 3 {
			r.startOn("w1", r.cold(400))
		}
		r.startOn("w0", r.cold(40_000))
		for range 10 {
			r.sendTo("w1", r.cold(480_000))
		}
	})
	f("long prompts that are cached are little work", func(r *rig) {
		long := r.cold(480_000)
		r.sendTo("w1", long)
		r.startOn("w0", r.cold(40_000))
		for i := range 3 {
			r.startOn("w1", long+fmt.Sprint(i))
		}
	})
}

// sendTo sends a prompt to one worker and waits for its end.
func (r *rig) sendTo(id pd.WorkerID, text string) {
	r.Helper()
	r.startOn(id, text).End(pd.Success, pd.Success)
}
