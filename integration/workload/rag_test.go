package workload

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The RAG workload: 40 tenants, whose prompts begin with 2,048 tokens of their own
// and go on with 8,192 that nobody has asked before, over prefills that remember
// 428,569 tokens each. A fifth of a prompt is all that can ever be cached.
const (
	ragTenants = 40
	ragHead    = 2048
	ragRest    = 8192
	ragCache   = 428_569
)

// ragRequests are those that fill the caches and n that count, with all sizes
// divided by scale.
func ragRequests(prefills, scale, n int) (warm, measured []request) {
	r := rand.New(rand.NewPCG(2, 1))
	heads := make([]string, ragTenants)
	for i := range heads {
		heads[i] = asText.words(r, ragHead/scale)
	}
	all := make([]request, prefills*ragCache/(ragHead+ragRest)*9/8+n)
	for i := range all {
		all[i] = request{form: asText, head: heads[r.IntN(ragTenants)], rest: asText.words(r, ragRest/scale)}
	}
	return all[:len(all)-n], all[len(all)-n:]
}

// A prefix is worth what it saves, however long the rest is. A rule that asks for
// three tenths of a prompt sees nothing here, and does as well as chance.
func TestRAGWithALongUniqueRest(t *testing.T) {
	t.Parallel()
	prefills, scale, n := 4, 4, 100
	chance := 0.02 // of so few requests
	if *long {
		prefills, scale, n, chance = 8, 1, 2000, 0
	}
	atOnce := 2 * prefills
	warm, measured := ragRequests(prefills, scale, n)
	rule := newRatioRule(prefills, ragCache/scale*asText.tokens(), atOnce).hits(warm, measured)
	t.Logf("%-12s hit rate %.3f", "ratio rule", rule)
	assert.InDelta(t, 0.137, rule, 0.005+chance)
	f := func(policy string, least float64) {
		t.Run(policy, func(t *testing.T) {
			fleet := newFleet(t, shape{prefills: prefills, decodes: 2, policy: policy, form: asText, cache: ragCache / scale})
			fleet.run(atOnce, warm)
			hits := fleet.run(atOnce, measured)
			t.Logf("%-12s hit rate %.3f", policy, hits)
			assert.GreaterOrEqual(t, hits, least-chance)
			if least > 0 {
				assert.Greater(t, hits, rule)
			}
		})
	}
	f("cache_aware", 0.15)
	if *long {
		f("prefix_hash", 0.15)
		f("random", 0)
		f("round_robin", 0)
	}
}
