package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pools/policy"
)

func TestEveryPolicyServesEveryEndpoint(t *testing.T) {
	t.Parallel()
	for _, name := range policy.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 3, decodes: 3, policy: name})
			for range 4 {
				for _, c := range calls(2) {
					s.ok(c)
				}
			}
		})
	}
}

// roomy takes prompts of several thousand tokens.
func roomy(c *simengine.Config) { c.ContextLength, c.MaxTotalTokens = 8<<10, 64<<10 }

// longText is a prompt of more than one block, which begins as it is told.
func longText(head string) string {
	return head + strings.Repeat(" and so on", 120)
}

// What has the same beginning goes to the worker that has computed it, though all
// are idle.
func TestPromptsThatBeginAlikeShareAPrefill(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cache_aware", "prefix_hash"} {
		for _, c := range calls(2) {
			t.Run(name+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{prefills: 4, decodes: 1, policy: name, prefill: roomy, decode: roomy})
				for i := range 12 {
					s.ok(asking(c, longText("a system prompt"), fmt.Sprintf("question %d", i)))
					s.idle() // what waits somewhere speaks against it
				}
				served := 0
				for _, p := range s.prefills {
					if n := len(generations(p)); n > 0 {
						served++
						assert.Equal(t, 12, n)
					}
				}
				assert.Equal(t, 1, served)
			})
		}
	}
}

// asking is a call of the same kind whose prompt has a head and a question.
func asking(c call, head, question string) call {
	switch {
	case strings.Contains(c.path, "chat"):
		return c.with(object{"messages": []object{{"role": "system", "content": head}, {"role": "user", "content": question}}})
	case strings.Contains(c.path, "completions"):
		return c.with(object{"prompt": head + question})
	default:
		return c.with(object{"text": head + question})
	}
}

func TestASessionStaysWhereItIs(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 4, decodes: 4, policy: "consistent_hashing"})
	for i := range 10 {
		s.post(asking(generateCall(2), fmt.Sprint(i), ""), "X-SMG-Routing-Key", "tenant-7", "Authorization", fmt.Sprintf("Bearer %d", i))
	}
	s.idle()
	for _, pool := range [][]int{counts(s, true), counts(s, false)} {
		assert.Contains(t, pool, 10, "one worker has them all: %v", pool)
	}
}

func counts(s *stack, prefill bool) (n []int) {
	engines := s.decodes
	if prefill {
		engines = s.prefills
	}
	for _, e := range engines {
		n = append(n, len(generations(e)))
	}
	return n
}
