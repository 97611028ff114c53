package legs

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/pd"
)

// Whatever happens to a pair, in whatever order and at once: both legs end,
// and everything is given back once.
func TestPairEndsOnceWhateverHappens(t *testing.T) {
	for i := range 400 {
		ctx, cancel := context.WithCancel(t.Context())
		p := newPairTest(ctx, t)
		p.handedOver.Store(i%2 == 0)
		kinds := []pd.Kind{pd.Refused, pd.Lost, pd.Aborted, pd.Broken}
		some := func(r pd.Role) *Failure {
			f := fault(kinds[rand.IntN(len(kinds))], r)
			f.Echo = rand.IntN(8) == 0
			f.Running = rand.IntN(4) == 0
			return f
		}
		var wg sync.WaitGroup
		pause := func() {
			if rand.IntN(2) == 0 {
				time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
			}
		}
		wg.Go(func() { // prefill's leg
			pause()
			if rand.IntN(2) == 0 {
				p.PrefillFailed(some(pd.Prefill))
			} else {
				p.PrefillDone()
			}
		})
		wg.Go(func() { // decode's leg, and its answer
			pause()
			switch {
			case rand.IntN(3) == 0:
				p.DecodeFailed(some(pd.Decode))
			case !p.Ready():
				p.Leave()
			case rand.IntN(2) == 0:
				p.DecodeDone(pd.Success)
			case rand.IntN(2) == 0:
				p.DecodeLost(some(pd.Decode))
			default:
				p.Leave()
			}
		})
		wg.Go(func() { // a deadline
			pause()
			if rand.IntN(4) == 0 {
				p.Expire(p.Decode, rand.IntN(2) == 0, pd.WaitAnswer, time.Second)
			}
		})
		wg.Go(func() { // the client
			pause()
			switch rand.IntN(8) {
			case 0:
				cancel()
			case 1: // or whoever takes a worker out of service
				p.leave(&pd.Error{Kind: pd.Unavailable, Stage: pd.StagePlan})
			}
		})
		wg.Go(func() { _ = p.Wait() })
		wg.Wait()
		p.Aborts.Group.Wait()
		<-p.Prefill.Context().Done()
		<-p.Decode.Context().Done()
		assert.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.over == 1
		}, 5*time.Second, time.Millisecond)
		p.mu.Lock()
		assert.Len(t, p.ended, 1)
		assert.Equal(t, [2]int{1, 1}, p.released)
		p.mu.Unlock()
		cancel()
	}
}
