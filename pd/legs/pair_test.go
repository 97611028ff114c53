package legs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/pd"
)

var (
	prefillWorker = &pd.Worker{ID: "p", Role: pd.Prefill, CloseOnly: true}
	decodeWorker  = &pd.Worker{ID: "d", Role: pd.Decode, CloseOnly: true}
)

// pairTest is a pair whose legs are ended by the test, or by themselves when
// their socket is closed.
type pairTest struct {
	*Pair
	leave      context.CancelCauseFunc
	handedOver atomic.Bool

	mu       sync.Mutex
	ended    [][2]pd.Outcome
	released [2]int
	over     int
}

func newPairTest(ctx context.Context, t *testing.T) *pairTest {
	p := new(pairTest)
	release := func(r pd.Role) func(pd.Outcome) {
		return func(pd.Outcome) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.released[r]++
		}
	}
	plan := pd.NewPlan(pd.NewLease(prefillWorker, release(pd.Prefill), nil), pd.NewLease(decodeWorker, release(pd.Decode), nil),
		func(prefill, decode pd.Outcome) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ended = append(p.ended, [2]pd.Outcome{prefill, decode})
		})
	p.Pair = NewPair(plan, &Aborter{Transport: &engine{start: time.Now()}})
	p.HandedOver = p.handedOver.Load
	p.OnEnd = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.over++
	}
	req := newRequest(t, `{}`)
	p.Prefill = newLeg(ctx, req, plan.Prefill, []string{"r"}, p.Ended(pd.Prefill))
	p.Decode = newLeg(ctx, req, plan.Decode, []string{"r"}, p.Ended(pd.Decode))
	for _, l := range []*Leg{p.Prefill, p.Decode} {
		context.AfterFunc(l.Context(), func() { l.End(pd.Fault, nil) }) // its read fails
	}
	ctx, p.leave = context.WithCancelCause(ctx)
	p.Watch(ctx)
	return p
}

// outcomes asserts that the pair has ended, once, and how.
func (p *pairTest) outcomes(t *testing.T, prefill, decode pd.Outcome) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if assert.Len(t, p.ended, 1, "the plan ends once") {
		assert.Equal(t, [2]string{prefill.String(), decode.String()}, [2]string{p.ended[0][0].String(), p.ended[0][1].String()})
	}
	assert.Equal(t, [2]int{1, 1}, p.released)
	assert.Equal(t, 1, p.over)
}

func fault(k pd.Kind, from pd.Role) *Failure {
	return NewFailure(&pd.Error{Kind: k, Stage: pd.StageOf(from), Message: from.String()})
}

func echo(from pd.Role) *Failure {
	f := fault(pd.Failed, from)
	f.Echo = true
	f.Outcome, f.Other = pd.PairFault, pd.Echo
	return f
}

// pairCase runs one scenario in a bubble of its own.
func pairCase(t *testing.T, name string, f func(t *testing.T, p *pairTest)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPairTest(t.Context(), t)
			f(t, p)
			synctest.Wait()
			p.leave(nil)
			synctest.Wait()
		})
	})
}

func TestFirstFailureOrCommitDecides(t *testing.T) {
	pairCase(t, "both succeed", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		assert.Nil(t, p.Wait())
		p.PrefillDone()
		p.mu.Lock()
		assert.Equal(t, [2]int{1, 0}, p.released, "prefill's lease ends with prefill's answer")
		p.mu.Unlock()
		assert.True(t, p.Prefill.over())
		p.DecodeDone(pd.Success)
		p.outcomes(t, pd.Success, pd.Success)
		assert.Nil(t, p.Failed())
	})
	pairCase(t, "prefill fails, then decode is ready", func(t *testing.T, p *pairTest) {
		p.PrefillFailed(fault(pd.Refused, pd.Prefill))
		assert.False(t, p.Ready())
		assert.Equal(t, pd.Refused, p.Wait().Kind)
		synctest.Wait()
		p.outcomes(t, pd.ClientFlaw, pd.Echo)
	})
	pairCase(t, "decode is ready while prefill waits for its words", func(t *testing.T, p *pairTest) {
		time.AfterFunc(echoWait/2, func() { assert.False(t, p.Ready()) })
		p.PrefillFailed(echo(pd.Prefill))
		assert.Equal(t, "prefill", p.Wait().Message, "nothing is committed that would be broken off at once")
		synctest.Wait()
		p.outcomes(t, pd.PairFault, pd.Echo)
	})
	pairCase(t, "decode is ready, then prefill refuses", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		p.PrefillFailed(fault(pd.Refused, pd.Prefill))
		assert.Nil(t, p.Wait(), "it was committed")
		assert.Equal(t, pd.Refused, p.Failed().Kind)
		synctest.Wait()
		p.outcomes(t, pd.ClientFlaw, pd.Echo)
	})
	pairCase(t, "decode fails", func(t *testing.T, p *pairTest) {
		p.DecodeFailed(fault(pd.Overload, pd.Decode))
		assert.Equal(t, pd.Overload, p.Wait().Kind)
		synctest.Wait()
		p.outcomes(t, pd.Echo, pd.Overloaded)
	})
	pairCase(t, "both fail: the first is the answer", func(t *testing.T, p *pairTest) {
		p.DecodeFailed(fault(pd.Failed, pd.Decode))
		p.PrefillFailed(fault(pd.Refused, pd.Prefill))
		assert.Equal(t, "decode", p.Wait().Message)
		synctest.Wait()
		p.outcomes(t, pd.Echo, pd.Fault)
	})
	pairCase(t, "a loss after the commit that the client does not feel", func(t *testing.T, p *pairTest) {
		p.handedOver.Store(true)
		assert.True(t, p.Ready())
		p.PrefillFailed(fault(pd.Lost, pd.Prefill))
		assert.Nil(t, p.Failed())
		p.DecodeDone(pd.Success)
		p.outcomes(t, pd.Fault, pd.Success)
	})
	pairCase(t, "a loss after the commit that the client feels", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		p.PrefillFailed(fault(pd.Lost, pd.Prefill))
		assert.Equal(t, pd.Lost, p.Failed().Kind)
		synctest.Wait()
		p.outcomes(t, pd.Fault, pd.Echo)
	})
	pairCase(t, "a refusal after the commit ends it, whatever has been handed over", func(t *testing.T, p *pairTest) {
		p.handedOver.Store(true)
		assert.True(t, p.Ready())
		p.PrefillFailed(fault(pd.Failed, pd.Prefill))
		assert.Equal(t, pd.Failed, p.Failed().Kind)
	})
	pairCase(t, "decode breaks off after the commit", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		p.DecodeLost(fault(pd.Lost, pd.Decode))
		assert.Equal(t, pd.Lost, p.Failed().Kind)
		synctest.Wait()
		p.outcomes(t, pd.Echo, pd.Fault)
	})
}

// Prefill is heard first: however close the two are, a prefill failure that is
// known is never overtaken by a commit.
func TestPrefillIsHeardFirst(t *testing.T) {
	for range 200 {
		p := newPairTest(t.Context(), t)
		var told atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			p.fail(fault(pd.Refused, pd.Prefill), p.Prefill)
			told.Store(true)
			p.PrefillFailed(fault(pd.Refused, pd.Prefill))
		})
		wg.Go(func() {
			known := told.Load()
			ready := p.Ready()
			assert.False(t, known && ready)
		})
		wg.Wait()
		p.Leave()
		p.Aborts.Group.Wait()
	}
}

func TestEchoes(t *testing.T) {
	pairCase(t, "prefill echoes, decode's own words come in time", func(t *testing.T, p *pairTest) {
		time.AfterFunc(echoWait-time.Millisecond, func() { p.DecodeFailed(fault(pd.Refused, pd.Decode)) })
		p.PrefillFailed(echo(pd.Prefill))
		assert.Equal(t, "decode", p.Wait().Message)
		synctest.Wait()
		p.outcomes(t, pd.Echo, pd.ClientFlaw)
	})
	pairCase(t, "prefill echoes, decode's own words come too late", func(t *testing.T, p *pairTest) {
		time.AfterFunc(echoWait+time.Millisecond, func() { p.DecodeFailed(fault(pd.Refused, pd.Decode)) })
		start := time.Now()
		p.PrefillFailed(echo(pd.Prefill))
		assert.Equal(t, "prefill", p.Wait().Message)
		assert.Equal(t, echoWait, time.Since(start))
		synctest.Wait()
		p.outcomes(t, pd.PairFault, pd.Echo)
		time.Sleep(time.Second)
	})
	pairCase(t, "decode echoes, prefill's own words come in time", func(t *testing.T, p *pairTest) {
		time.AfterFunc(10*time.Millisecond, func() { p.PrefillFailed(fault(pd.Failed, pd.Prefill)) })
		p.DecodeFailed(echo(pd.Decode))
		assert.Equal(t, "prefill", p.Wait().Message)
		synctest.Wait()
		p.outcomes(t, pd.Fault, pd.Echo)
	})
	pairCase(t, "decode echoes a prefill that is done", func(t *testing.T, p *pairTest) {
		p.PrefillDone()
		start := time.Now()
		p.DecodeFailed(echo(pd.Decode))
		assert.Zero(t, time.Since(start), "there is nothing to wait for")
		assert.Equal(t, "decode", p.Wait().Message)
		p.outcomes(t, pd.Success, pd.PairFault)
	})
	for name, prefillFirst := range map[string]bool{"prefill speaks first": true, "decode speaks first": false} {
		pairCase(t, "both echo, "+name, func(t *testing.T, p *pairTest) {
			prefill, decode := func() { p.PrefillFailed(echo(pd.Prefill)) }, func() { p.DecodeFailed(echo(pd.Decode)) }
			if prefillFirst {
				time.AfterFunc(10*time.Millisecond, decode)
				prefill()
			} else {
				time.AfterFunc(10*time.Millisecond, prefill)
				decode()
			}
			assert.Equal(t, "prefill", p.Wait().Message, "prefill is believed")
			synctest.Wait()
			p.outcomes(t, pd.PairFault, pd.Echo)
		})
	}
}

func TestWatch(t *testing.T) {
	pairCase(t, "the client leaves before the commit", func(t *testing.T, p *pairTest) {
		p.leave(nil)
		assert.Equal(t, pd.Cancelled, p.Wait().Kind)
		synctest.Wait()
		p.outcomes(t, pd.Left, pd.Left)
	})
	pairCase(t, "the client leaves after the commit", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		p.leave(nil)
		synctest.Wait()
		assert.Equal(t, pd.Cancelled, p.Failed().Kind)
		p.outcomes(t, pd.Left, pd.Left)
	})
	pairCase(t, "the caller ends it with an error of its own", func(t *testing.T, p *pairTest) {
		why := &pd.Error{Kind: pd.Overload, Status: 503}
		p.leave(why)
		assert.Same(t, why, p.Wait())
		synctest.Wait()
		p.outcomes(t, pd.Left, pd.Left)
	})
	pairCase(t, "a foreign cause is a client who left", func(t *testing.T, p *pairTest) {
		p.leave(errors.New("any"))
		assert.Equal(t, pd.Cancelled, p.Wait().Kind)
	})
	pairCase(t, "the answer is closed early", func(t *testing.T, p *pairTest) {
		assert.True(t, p.Ready())
		p.Leave()
		p.Leave()
		synctest.Wait()
		p.outcomes(t, pd.Left, pd.Left)
	})
}

func TestPrefillIsDrainedAfterDecode(t *testing.T) {
	committed := func(p *pairTest) {
		p.handedOver.Store(true)
		p.Ready()
		p.DecodeDone(pd.Success)
		p.leave(nil) // as a server does with the context of a request that is answered
		synctest.Wait()
	}
	pairCase(t, "its answer ends in time", func(t *testing.T, p *pairTest) {
		committed(p)
		time.Sleep(drainAfter - time.Millisecond)
		assert.NoError(t, p.Prefill.Context().Err(), "it is still read")
		p.PrefillDone()
		p.outcomes(t, pd.Success, pd.Success)
	})
	pairCase(t, "its answer does not end", func(t *testing.T, p *pairTest) {
		committed(p)
		time.Sleep(drainAfter)
		synctest.Wait()
		p.outcomes(t, pd.Success, pd.Success)
	})
	pairCase(t, "it fails in the meantime", func(t *testing.T, p *pairTest) {
		committed(p)
		p.PrefillFailed(fault(pd.Lost, pd.Prefill))
		p.outcomes(t, pd.Fault, pd.Success)
	})
}

func TestExpire(t *testing.T) {
	pairCase(t, "before the commit", func(t *testing.T, p *pairTest) {
		p.Expire(p.Decode, true, pd.WaitFirstEvent, time.Minute)
		assert.Equal(t, pd.Late, p.Wait().Kind)
		assert.Equal(t, "the first event of decode worker d did not come within 1m0s", p.Wait().Message)
		synctest.Wait()
		p.outcomes(t, pd.Echo, pd.Fault)
	})
	pairCase(t, "an early deadline leaves a committed pair alone", func(t *testing.T, p *pairTest) {
		p.Ready()
		p.Expire(p.Decode, true, pd.WaitFirstEvent, time.Minute)
		assert.Nil(t, p.Failed())
		p.Expire(p.Decode, false, pd.WaitNextEvent, time.Minute)
		assert.Equal(t, pd.Deadline, p.Failed().Kind)
	})
	pairCase(t, "of prefill's answer leaves a client alone that has all it needs of prefill", func(t *testing.T, p *pairTest) {
		p.handedOver.Store(true)
		p.Ready()
		p.Expire(p.Prefill, false, pd.WaitAnswer, time.Minute)
		synctest.Wait()
		assert.True(t, p.Prefill.over())
		assert.Nil(t, p.Failed())
		p.DecodeDone(pd.Success)
		p.outcomes(t, pd.PairFault, pd.Success)
	})
	pairCase(t, "of prefill's answer ends a committed pair that still needs it", func(t *testing.T, p *pairTest) {
		p.Ready()
		p.Expire(p.Prefill, false, pd.WaitAnswer, time.Minute)
		assert.Equal(t, pd.Deadline, p.Failed().Kind)
		synctest.Wait()
		p.outcomes(t, pd.PairFault, pd.Echo)
	})
	pairCase(t, "of a leg that has ended means nothing", func(t *testing.T, p *pairTest) {
		p.PrefillDone()
		p.Expire(p.Prefill, false, pd.WaitAnswer, time.Minute)
		assert.Nil(t, p.Failed())
	})
}

// A leg that we give up although its engine may still be at work: the engine is
// told before the socket closes.
func TestEngineThatIsStillAtWorkIsTold(t *testing.T) {
	for name, end := range map[string]func(p *pairTest, f *Failure){
		"prefill":                 func(p *pairTest, f *Failure) { p.PrefillFailed(f) },
		"decode":                  func(p *pairTest, f *Failure) { p.DecodeFailed(f) },
		"decode after the commit": func(p *pairTest, f *Failure) { p.Ready(); p.DecodeLost(f) },
	} {
		pairCase(t, name, func(t *testing.T, p *pairTest) {
			e := &engine{start: time.Now()}
			p.Aborts.Transport = e
			leg, role := p.Prefill, pd.Prefill
			if name != "prefill" {
				leg, role = p.Decode, pd.Decode
			}
			w := *leg.Call.Worker
			w.CloseOnly = false
			leg.Call.Worker = &w
			go run(leg, e)
			time.Sleep(time.Second)
			f := fault(pd.Broken, role)
			f.Running = true
			end(p, f)
			synctest.Wait()
			assert.Equal(t, []seen{{"abort r", time.Second}, {"closed", time.Second}}, e.log)
			want := [2]pd.Outcome{pd.Echo, pd.Echo}
			want[role] = pd.Fault
			p.outcomes(t, want[0], want[1])
		})
	}
}

func TestBlameByKind(t *testing.T) {
	for k, want := range map[pd.Kind][3]any{ // of the leg that failed, of the other, explicit
		pd.Invalid:     {pd.ClientFlaw, pd.Echo, true},
		pd.Refused:     {pd.ClientFlaw, pd.Echo, true},
		pd.Overload:    {pd.Overloaded, pd.Echo, true},
		pd.Failed:      {pd.Fault, pd.Echo, true},
		pd.Unavailable: {pd.Unreachable, pd.Echo, false},
		pd.Lost:        {pd.Fault, pd.Echo, false},
		pd.Late:        {pd.Fault, pd.Echo, false},
		pd.Broken:      {pd.Fault, pd.Echo, false},
		pd.Deadline:    {pd.Fault, pd.Echo, false},
		pd.Stale:       {pd.Unused, pd.Unused, false},
		pd.Internal:    {pd.Unused, pd.Unused, false},
		pd.Aborted:     {pd.Left, pd.Left, true},
		pd.Cancelled:   {pd.Left, pd.Left, false},
	} {
		f := NewFailure(&pd.Error{Kind: k})
		assert.Equal(t, want, [3]any{f.Outcome, f.Other, f.Explicit}, k.String())
	}
	silence := NewFailure(&pd.Error{Kind: pd.Unavailable, Status: 504})
	assert.Equal(t, pd.Fault, silence.Outcome, "a connection that is not taken in time may be that of a busy machine")
}

// What is lost over a body may have been lost by it: the other of the pair has had
// it too, and another attempt does without both.
func TestAFailureTellsOfTheOtherLeg(t *testing.T) {
	f := func(k pd.Kind, wrote bool, ran bool, avoid ...pd.WorkerID) {
		pairCase(t, fmt.Sprintf("%s, written to the other %t", k, wrote), func(t *testing.T, p *pairTest) {
			if wrote {
				go run(p.Decode, &engine{start: time.Now()})
				synctest.Wait()
			}
			p.PrefillFailed(fault(k, pd.Prefill))
			err := p.Wait()
			assert.Equal(t, ran, err.Ran)
			assert.Equal(t, avoid, err.Avoid)
			p.Aborts.Group.Wait()
			synctest.Wait()
		})
	}
	both := []pd.WorkerID{prefillWorker.ID, decodeWorker.ID}
	f(pd.Unavailable, true, true)
	f(pd.Unavailable, false, false)
	f(pd.Lost, true, false, both...)
	f(pd.Stale, true, false, both...)
	f(pd.Failed, true, false)
}

// The pools have hooks of their own, which run as a lease or a plan ends.
func TestPairGivesEverythingBackWhenAHookPanics(t *testing.T) {
	boom := func() { panic("boom") }
	for name, plan := range map[string]*pd.Plan{
		"behind a lease": pd.NewPlan(pd.NewLease(prefillWorker, func(pd.Outcome) { boom() }, nil), leaseOn(decodeWorker), nil),
		"behind a plan":  pd.NewPlan(leaseOn(prefillWorker), leaseOn(decodeWorker), func(_, _ pd.Outcome) { boom() }),
	} {
		t.Run(name, func(t *testing.T) {
			over := 0
			p := NewPair(plan, &Aborter{Transport: &engine{start: time.Now()}})
			p.OnEnd = func() { over++ }
			p.Prefill = newLeg(t.Context(), newRequest(t, `{}`), plan.Prefill, []string{"r"}, p.Ended(pd.Prefill))
			p.Decode = newLeg(t.Context(), newRequest(t, `{}`), plan.Decode, []string{"r"}, p.Ended(pd.Decode))
			p.Watch(t.Context())
			panics := 0
			for _, l := range []*Leg{p.Prefill, p.Decode} {
				func() {
					defer func() {
						if recover() != nil {
							panics++
						}
					}()
					l.End(pd.Success, nil)
				}()
			}
			assert.Equal(t, 1, panics)
			assert.Equal(t, 1, over)
		})
	}
}
