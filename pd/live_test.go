package pd

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

var (
	workerA = &Worker{ID: "a", Role: Prefill, URL: "http://a"}
	workerB = &Worker{ID: "b", Role: Decode, URL: "http://b"}
)

// liveRequest is a request among the live ones of s.
func liveRequest(s *liveSet, name string) *Request {
	return &Request{live: s.add(name, nil, func(error) {})}
}

func TestRidsOfOursAreOfOneLengthAndNeverThePrefixOfAnother(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		rid := NewRid()
		assert.Len(t, rid, 32)
		seen[rid] = true
	}
	assert.Len(t, seen, 1000)
}

func TestMayAbort(t *testing.T) {
	var s liveSet
	own, other := liveRequest(&s, "own"), liveRequest(&s, "other")
	own.Rid, other.Rids = "a", []string{"b", "ba"}
	h := own.Hold(workerA, []string{"a"})
	f := func(what string, want bool) {
		t.Helper()
		assert.Equal(t, want, h.MayAbort("a"), what)
	}
	f("nobody else is live", true)
	unrelated := other.Hold(workerA, []string{"b", "ba"})
	f("an unrelated rid", true)
	shorter := other.Hold(workerA, []string{""})
	f("a rid that ours starts with is not hit by ours", true)
	longer := other.Hold(workerB, []string{"x", "ab"})
	f("another request's rid starts with ours", false)
	longer.Release()
	longer.Release()
	f("that request is over", true)
	same := other.Hold(workerA, []string{"a"})
	f("another request has the very same rid", false)
	same.Release()

	twin := own.Hold(workerB, []string{"a"})
	f("the other leg of the same exchange, on another worker", true)
	h.Release()
	f("still may, when the leg itself is over", true)
	next := own.Hold(workerA, []string{"a"})
	f("the next attempt of the same request on the same worker", false)
	next.Release()
	rank := own.Hold(&Worker{ID: "a@1", Role: workerA.Role, URL: workerA.URL}, []string{"a"})
	f("or on another rank of the same engine", false)
	for _, x := range []*Hold{unrelated, shorter, twin, rank} {
		x.Release()
	}
}

// The set's lock is held by another, as by the walk over many rids.
func TestMayAbortOfARidOfOursLooksAtNoOther(t *testing.T) {
	var s liveSet
	rid := NewRid()
	h := liveRequest(&s, "own").Hold(workerA, []string{rid})
	s.mu.Lock()
	may := make(chan bool, 1)
	go func() { may <- h.MayAbort(rid) }()
	select {
	case got := <-may:
		assert.True(t, got)
	case <-time.After(10 * time.Second):
		assert.Fail(t, "it waits for the lock")
	}
	s.mu.Unlock()
	h.Release()
}

func TestAbortMarksWhatTheEnginesWouldHit(t *testing.T) {
	setup := func() (*liveSet, map[string]*Request) {
		s := new(liveSet)
		r := map[string]*Request{"mine": liveRequest(s, "mine"), "fan": liveRequest(s, "fan"), "ours": liveRequest(s, "r0")}
		r["mine"].Hold(workerA, []string{"mine"})
		r["mine"].Hold(workerB, []string{"mine"})
		r["fan"].Hold(workerA, []string{"f1"})
		r["fan"].Hold(workerA, []string{"f2"})
		r["ours"].Hold(workerB, []string{"r0_0", "r0_1"})
		return s, r
	}
	f := func(name, rid string, all bool, marked []string, targets ...target) {
		t.Run(name, func(t *testing.T) {
			s, requests := setup()
			assert.ElementsMatch(t, targets, s.mark(rid, all))
			for name, r := range requests {
				assert.Equal(t, slices.Contains(marked, name), r.Aborted(), name)
			}
		})
	}
	f("the client's own rid, on both workers", "mine", false, []string{"mine"}, target{workerA, "mine"}, target{workerB, "mine"})
	f("the beginning of it, which some engines match, is not completed for them", "mi", false, []string{"mine"})
	f("a longer one is another", "mine2", false, nil)
	f("the name of a fan-out means every sample", "fan", false, []string{"fan"}, target{workerA, "f1"}, target{workerA, "f2"})
	f("the name of a batch means every item", "r0", false, []string{"ours"}, target{workerB, "r0_0"}, target{workerB, "r0_1"})
	f("one item of a batch", "r0_1", false, []string{"ours"}, target{workerB, "r0_1"})
	f("nobody has it", "x", false, nil)
	f("an empty rid is nobody's", "", false, nil)
	f("all", "", true, []string{"mine", "fan", "ours"},
		target{workerA, "mine"}, target{workerB, "mine"}, target{workerA, "f1"}, target{workerA, "f2"}, target{workerB, "r0_0"}, target{workerB, "r0_1"})
}

func TestCallLivesUntilItsAnswerAndItsLegsAreOver(t *testing.T) {
	for name, order := range map[string]func(s *liveSet, r *Request, h *Hold){
		"the leg ends first":    func(s *liveSet, r *Request, h *Hold) { h.Release(); s.leave(r.live) },
		"the answer ends first": func(s *liveSet, r *Request, h *Hold) { s.leave(r.live); h.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			var s liveSet
			r := liveRequest(&s, "x")
			h := r.Hold(workerA, []string{"x"})
			assert.Len(t, s.calls, 1)
			order(&s, r, h)
			assert.Empty(t, s.calls)
			h.Release()
			assert.Empty(t, s.calls)
		})
	}
}

func TestSettledWaitsForEveryHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s liveSet
		r := liveRequest(&s, "x")
		start := time.Now()
		r.live.settled(t.Context(), ridSettle)
		assert.Zero(t, time.Since(start), "nothing is held")

		a, b := r.Hold(workerA, []string{"x"}), r.Hold(workerB, []string{"x"})
		time.AfterFunc(100*time.Millisecond, a.Release)
		time.AfterFunc(300*time.Millisecond, b.Release)
		r.live.settled(t.Context(), ridSettle)
		assert.Equal(t, 300*time.Millisecond, time.Since(start))

		c := r.Hold(workerA, []string{"x"})
		r.live.settled(t.Context(), ridSettle)
		assert.Equal(t, 300*time.Millisecond+ridSettle, time.Since(start), "no longer than that")

		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		r.live.settled(ctx, ridSettle)
		assert.Equal(t, 1300*time.Millisecond+ridSettle, time.Since(start), "nor longer than the client")
		c.Release()
	})
}

func TestRequestThatIsNotLiveHoldsNothing(t *testing.T) {
	r := &Request{Rid: "x"}
	h := r.Hold(workerA, []string{"x"})
	assert.True(t, h.MayAbort("x"))
	h.Release()
	assert.False(t, r.Aborted())
	assert.Equal(t, "x", r.PublicID())
}
