package health_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

func panics(*http.Request) (*http.Response, error) { panic("oh") }

func TestProbesAreNotInStep(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, names(pd.Decode, 50), nil)
		f.pass(67 * time.Second)
		second := map[time.Duration]bool{}
		for i := range 50 {
			asked := f.asks(fmt.Sprintf("decode-%d", i))
			waits(t, asked, seconds(60)...)
			second[asked[1]] = true
		}
		assert.Greater(t, len(second), 40, "after the first, no two at once")
	})
}

func TestParallelBoundsTheProbesUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		scripts := map[string]reply{}
		for i := range 4 {
			scripts[fmt.Sprintf("decode-%d", i)] = silence
		}
		f := newFleet(t, health.Options{Parallel: 2}, names(pd.Decode, 6), scripts)
		assert.Equal(t, []string{"bound probes", "bound probes", "bound probes", "bound probes"}, f.told(), "for each that waits")
		f.pass(30 * time.Second)
		f.is("decode-4", pools.Ready, "")
		f.is("decode-5", pools.Ready, "")
		assert.Equal(t, 2, f.max)
		for i := range 4 {
			assert.NotEmpty(t, f.asks(fmt.Sprintf("decode-%d", i)), "none is forgotten")
		}
	})
}

func TestTheLongestDueIsProbedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		scripts := map[string]reply{}
		for i := range 4 {
			scripts[fmt.Sprintf("decode-%d", i)] = silence
		}
		f := newFleet(t, health.Options{Parallel: 1}, names(pd.Decode, 4), scripts)
		f.pass(16 * time.Second)
		for host := range scripts {
			assert.Len(t, f.asks(host), 1, host)
		}
		f.told()
		f.pass(200 * time.Second) // 40 more probes, each after a wait
		assert.InDelta(t, 40, len(f.told()), 4, "each wait is told once")
	})
}

func TestAProbeThatHangsDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		opt := health.Options{Interval: time.Second, Timeout: time.Hour, Parallel: 3}
		f := newFleet(t, opt, names(pd.Decode, 3), map[string]reply{"decode-0": silence, "decode-1": silence})
		f.pass(100 * time.Second)
		assert.InDelta(t, 100, len(f.asks("decode-2")), 12)
		assert.Empty(t, f.told())
	})
}

func TestAPanicIsAFailedProbeOfOneWorker(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFleet(t, health.Options{}, four(), nil)
		f.becomes("decode-0", panics)
		f.until("decode-0", pools.Dead)
		assert.Equal(t, []string{"panic oh true", "panic oh true", "panic oh true"}, f.told())
		f.is("decode-0", pools.Dead, "health check: no usable answer")
		f.becomes("decode-0", ok)
		f.until("decode-0", pools.Ready)
	})
}

func TestRunEndsWhenItsProbesHave(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		slow := func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			time.Sleep(3 * time.Second) // a transport that takes its time
			return nil, req.Context().Err()
		}
		f := newFleet(t, health.Options{}, pair(), map[string]reply{"decode-0": slow})
		began := time.Now()
		f.stop()
		<-f.ended
		assert.Equal(t, 3*time.Second, time.Since(began))
		f.is("decode-0", pools.Starting, "")
		assert.Len(t, f.probed, 1, "a probe that was called off says nothing")
	})
}

func TestSuspectNeverBlocks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := health.New(health.Options{Transport: http.DefaultTransport})
		for range 1000 {
			m.Suspect() // nobody listens yet
		}
		set, err := pools.New(nil, pools.Options{Policies: pools.Share(picker{}, picker{}), Suspect: m.Suspect})
		assert.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.Run(ctx, set)
		}()
		synctest.Wait()
		for range 1000 {
			m.Suspect()
		}
		cancel()
		<-ended
	})
}
