package workload

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// The hot prefix: the seed workload with one prefix more, which two requests of
// five begin with, and more than 8 requests in flight on each prefill.
const (
	hotShare  = 0.4
	hotAtOnce = 14 * seedPrefills
)

// hotRequests are n requests, over so many prefixes beside the hot one.
func hotRequests(n, prefixes, tokens int) (all []request) {
	r := rand.New(rand.NewPCG(4, 1))
	heads := make([]string, prefixes+1)
	for i := range heads {
		heads[i] = asText.words(r, tokens)
	}
	for range n {
		i := 0
		if r.Float64() >= hotShare {
			i = 1 + r.IntN(prefixes)
		}
		all = append(all, request{form: asText, head: heads[i], rest: question(r), key: fmt.Sprintf("prefix-%d", i)})
	}
	return all
}

// window is the mean of what each prefill has had in flight for a while.
type window map[pd.WorkerID]float64

// worst is how many times the mean the busiest has, and the mean.
func (w window) worst() (times, mean float64) {
	most := 0.0
	for _, held := range w {
		mean += held / float64(len(w))
		most = max(most, held)
	}
	return most / mean, mean
}

// watch samples what the status shows as in flight until stop is closed, and
// returns the windows that are whole.
func (f *fleet) watch(length time.Duration, stop <-chan struct{}) (windows []window) {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	sums, samples, began := window{}, 0.0, time.Now()
	for {
		select {
		case <-stop:
			return windows
		case <-tick.C:
		}
		for _, w := range f.router.Set.Status().Workers {
			if w.Worker.Role == pd.Prefill {
				sums[w.ID] += float64(w.InFlight)
			}
		}
		samples++
		if time.Since(began) < length {
			continue
		}
		for id := range sums {
			sums[id] /= samples
		}
		windows = append(windows, sums)
		sums, samples, began = window{}, 0, time.Now()
	}
}

// A hot prefix is on as many prefills as it keeps busy. In full, the mean is that of
// 10 s; where the workload must not take so long, it is that of two, which is
// stricter.
func TestHotPrefix(t *testing.T) {
	t.Parallel()
	prefixes, scale, n, length := 125, 4, 200, 2*time.Second
	// At random two requests of five find their prefix, and a tenth of the others.
	better := hotShare + (1-hotShare)*seedFits/seedPrefixes + 0.05
	if *long {
		prefixes, scale, n, length, better = seedPrefixes, 1, 2500, 10*time.Second, better+0.1
	}
	f := func(policy string, check func(t *testing.T, worst, hits float64)) {
		t.Run(policy, func(t *testing.T) {
			tokens := seedTokens / scale
			fleet := newFleet(t, shape{
				prefills: seedPrefills, decodes: 4, policy: policy, form: asText, cache: fits(prefixes) * tokens,
				prefill: simengine.Speed{ // slower than all that is around it
					PrefillDelay:    60 * time.Millisecond,
					PrefillPerToken: seedPerToken * time.Duration(scale) / time.Duration(asText.tokens()),
				},
			})
			requests := hotRequests(2*n, prefixes, tokens)
			stop := make(chan struct{})
			var windows []window
			var watcher sync.WaitGroup
			watcher.Go(func() { windows = fleet.watch(length, stop) })
			fleet.run(hotAtOnce, requests[:n])
			hits := fleet.run(hotAtOnce, requests[n:])
			close(stop)
			watcher.Wait()
			worst, full := 0.0, 0
			for _, w := range windows {
				if times, mean := w.worst(); mean >= 8 {
					worst, full = max(worst, times), full+1
				}
			}
			t.Logf("%-18s hit rate %.3f, the busiest has %.2f times the mean in the worst of %d windows", policy, hits, worst, full)
			require.Positive(t, full, "more than 8 are in flight on each")
			check(t, worst, hits)
		})
	}
	spread := func(t *testing.T, worst, hits float64) {
		assert.Less(t, worst, 2.0)
		assert.Greater(t, hits, better)
	}
	f("cache_aware", spread)
	f("prefix_hash", spread)
	if *long {
		shown := func(*testing.T, float64, float64) {}
		f("random", shown)
		f("consistent_hashing", shown)
		f("manual", shown)
	}
}
