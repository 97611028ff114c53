package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lists are the parallel lists of one choice, put together over a stream.
type lists struct {
	tokens  []string
	values  []*float64
	tops    []map[string]float64
	offsets []int
}

func (l *lists) add(more *ChoiceLogprobs) {
	if more == nil {
		return
	}
	l.tokens = append(l.tokens, more.Tokens...)
	l.values = append(l.values, more.TokenLogprobs...)
	l.tops = append(l.tops, more.TopLogprobs...)
	l.offsets = append(l.offsets, more.TextOffset...)
}

// require requires a list entry for each of n tokens, and no value for the first.
func (l *lists) require(t *testing.T, n int) {
	t.Helper()
	assert.Len(t, l.tokens, n)
	assert.Len(t, l.offsets, n)
	require.Len(t, l.values, n)
	require.Len(t, l.tops, n)
	for i := range n {
		assert.Equal(t, i == 0, l.values[i] == nil, "value %d", i)
		assert.Equal(t, i == 0, l.tops[i] == nil, "top %d", i)
	}
}

// echoes are the cases of completions that repeat their prompt.
func echoes() []Case {
	return []Case{
		{"repeats a prompt", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete("Hello you", 4).With(Body{"echo": true}), 1)
			assert.Contains(t, answer.Choices[0].Text, "Hello you")
			assert.Nil(t, answer.Choices[0].Logprobs)
		}},
		{"splices the prompt's log probabilities into a completion", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete(Tokens(55, 12), 4).With(withEcho), 1)
			var all lists
			all.add(answer.Choices[0].Logprobs)
			all.require(t, 16)
		}},
		{"splices into each completion of a list its own", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete([][]int{Tokens(56, 12), Tokens(57, 5)}, 4).With(withEcho), 2)
			for i, prompt := range []int{12, 5} {
				var all lists
				all.add(answer.Choices[i].Logprobs)
				all.require(t, prompt+4)
			}
		}},
		{"splices into the stream of a list once for each index", func(t *testing.T, b Backend) {
			body := Complete([][]int{Tokens(58, 12), Tokens(59, 5)}, 4).With(withEcho).With(stream)
			events, _ := completedStream(t, b, body, 2)
			all := make([]lists, 2)
			for _, event := range events {
				for _, choice := range event.Choices {
					all[choice.Index].add(choice.Logprobs)
				}
			}
			all[0].require(t, 16)
			all[1].require(t, 9)
		}},
		{"passes a completion's log probabilities without the prompt's", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete(Tokens(60, 12), 4).With(Body{"logprobs": 2}), 1)
			require.NotNil(t, answer.Choices[0].Logprobs)
			assert.Len(t, answer.Choices[0].Logprobs.Tokens, 4)
		}},
	}
}
