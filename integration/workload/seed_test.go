package workload

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// The seed workload: 8 prefills, 1000 prefixes of 2,048 tokens in equal demand, of
// which one prefill's cache holds 104. Whoever does not look at prompts finds 104
// of 1000 there; who sends each prefix to one prefill finds 8 times as many, less
// what chance puts more prefixes on one prefill than it holds. Prefills take the
// time that a GPU takes, some 86 ms for a prompt, and as many requests are in flight,
// most of them in decode, as come to the seed's 110 a second.
const (
	seedPrefills = 8
	seedPrefixes = 1000
	seedFits     = 104
	seedTokens   = 2048
	seedPerToken = 42 * time.Microsecond
)

// fits is how many of so many prefixes a prefill's cache holds.
func fits(prefixes int) int { return prefixes * seedFits / seedPrefixes }

// seedRequests are those that warm up, each prefix once, and n that count.
func seedRequests(f form, prefixes, tokens, n int) (warm, measured []request) {
	r := rand.New(rand.NewPCG(1, 1))
	heads := make([]string, prefixes)
	for i := range heads {
		heads[i] = f.words(r, tokens)
	}
	ask := func(i int) request {
		return request{form: f, head: heads[i], rest: question(r), key: fmt.Sprintf("prefix-%d", i)}
	}
	for _, i := range r.Perm(prefixes) {
		warm = append(warm, ask(i))
	}
	for range n {
		measured = append(measured, ask(r.IntN(prefixes)))
	}
	return warm, measured
}

// question is too short to have a block of its own in any cache.
func question(r *rand.Rand) string { return fmt.Sprintf("why %06d?", r.IntN(1e6)) }

// seedSize is how large the workload is; its ratios stay what they are.
type seedSize struct {
	prefixes, n int
	atOnce      int
	haste       int // engines take so many times less
	scale       int // prefixes are so many times shorter, and take as long
}

// TestSeedWorkload is the seed workload with a quarter of its prefixes and less in
// flight, so that a run takes seconds on a machine that has others to do: chance
// then has its say. With -long it is the whole, and chance has none.
func TestSeedWorkload(t *testing.T) {
	t.Parallel()
	chance := 0.15
	if *long {
		chance = 0
	}
	f := func(policy string, form form, least, most float64) {
		t.Run(policy+" "+string(form), func(t *testing.T) {
			size := seedSize{prefixes: 250, n: 150, atOnce: 16, haste: 2, scale: 4}
			if policy == "cache_aware" {
				size.scale = 1 // it weighs lengths
			}
			if *long {
				size = seedSize{prefixes: seedPrefixes, n: 3000, atOnce: 32, haste: 1, scale: 1}
			}
			hits := seedHits(t, policy, form, size)
			assert.GreaterOrEqual(t, hits, least-chance)
			assert.LessOrEqual(t, hits, most+chance)
		})
	}
	f("round_robin", asText, 0.07, 0.14)
	f("cache_aware", asText, 0.80, 1)
	f("prefix_hash", asChat, 0.80, 1)
	f("consistent_hashing", asIDs, 0.80, 1)
	if !*long {
		return
	}
	f("cache_aware", asChat, 0.80, 1)
	f("cache_aware", asIDs, 0.80, 1)
	f("prefix_hash", asText, 0.80, 1)
	f("prefix_hash", asIDs, 0.80, 1)
	f("consistent_hashing", asText, 0.80, 1)
	f("consistent_hashing", asChat, 0.80, 1)
	f("random", asText, 0.07, 0.14)
	for _, shown := range []string{"power_of_two", "bucket", "manual"} {
		f(shown, asText, 0, 1)
	}
}

// seedHits runs the seed workload.
func seedHits(t *testing.T, policy string, form form, size seedSize) float64 {
	tokens := seedTokens / size.scale
	fleet := newFleet(t, shape{
		prefills: seedPrefills, decodes: 4, policy: policy, form: form, cache: fits(size.prefixes) * tokens,
		prefill: simengine.Speed{
			PrefillDelay:    4 * time.Millisecond / time.Duration(size.haste),
			PrefillPerToken: seedPerToken * time.Duration(size.scale) / time.Duration(form.tokens()*size.haste),
		},
		decode: simengine.Speed{TokenInterval: 40 * time.Millisecond / time.Duration(size.haste)},
	})
	warm, measured := seedRequests(form, size.prefixes, tokens, size.n)
	began := time.Now()
	// All are new at first: with more in flight, queues would send prefixes elsewhere,
	// and those would take room there for long.
	fleet.run(size.atOnce/2, warm)
	hits := fleet.run(size.atOnce, measured)
	t.Logf("%-18s %-22s hit rate %.3f, %v", policy, form, hits, time.Since(began).Round(time.Second/10))
	return hits
}
