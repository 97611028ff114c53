package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// generate are the shapes that /generate takes a prompt in.
func generate() []Case {
	return []Case{
		{"answers a text", func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"text": "Hello", "sampling_params": Greedy(4)})
			requireLength(t, answer, answer.Meta.PromptTokens, 4)
			assert.Positive(t, answer.Meta.PromptTokens)
		}},
		{"answers token ids", func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"input_ids": Tokens(1, 20), "sampling_params": Greedy(6)})
			requireLength(t, answer, 20, 6)
			assert.Nil(t, answer.Index)
		}},
		{"answers one token", func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"input_ids": Tokens(2, 20), "sampling_params": Greedy(1)})
			requireLength(t, answer, 20, 1)
		}},
		{"answers a PUT as a POST", func(t *testing.T, b Backend) {
			request := NewRequest(t, t.Context(), b.Router+"/generate", Body{"input_ids": Tokens(3, 5), "sampling_params": Greedy(2)})
			request.Method = "PUT"
			var answer Generated
			call(t, request).Into(t, &answer)
			requireLength(t, answer, 5, 2)
		}},
		{"streams a text", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"text": "Hello", "sampling_params": Greedy(5)})
			end := last(t, events, 1)[0]
			requireLength(t, end, end.Meta.PromptTokens, 5)
		}},
		{"streams token ids as they come", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"input_ids": Tokens(4, 20), "sampling_params": Greedy(32)})
			requireLength(t, last(t, events, 1)[0], 20, 32)
			assert.Greater(t, len(events), 1)
		}},
		{"answers a batch of token ids in the order of its prompts", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{"input_ids": [][]int{Tokens(5, 12), Tokens(6, 7)}, "sampling_params": Greedy(4)})
			require.Len(t, answers, 2)
			requireLength(t, answers[0], 12, 4)
			requireLength(t, answers[1], 7, 4)
		}},
		{"answers a batch of texts", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{"text": []string{"Hello", "Good day", "What"}, "sampling_params": Greedy(3)})
			require.Len(t, answers, 3)
			for _, answer := range answers {
				requireLength(t, answer, answer.Meta.PromptTokens, 3)
			}
		}},
		{"answers a batch of one with a list of one", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{"input_ids": [][]int{Tokens(7, 9)}, "sampling_params": Greedy(3)})
			require.Len(t, answers, 1)
			requireLength(t, answers[0], 9, 3)
		}},
		{"gives each prompt of a batch its own sampling parameters", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{
				"input_ids": [][]int{Tokens(8, 9), Tokens(9, 9)}, "sampling_params": []Body{Greedy(2), Greedy(5)},
			})
			require.Len(t, answers, 2)
			requireLength(t, answers[0], 9, 2)
			requireLength(t, answers[1], 9, 5)
		}},
		{"streams a batch, each event with its index", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"input_ids": [][]int{Tokens(10, 12), Tokens(11, 7)}, "sampling_params": Greedy(5)})
			for _, event := range events {
				require.NotNil(t, event.Index)
			}
			ends := last(t, events, 2)
			requireLength(t, ends[0], 12, 5)
			requireLength(t, ends[1], 7, 5)
		}},
		{"streams a batch of one", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"input_ids": [][]int{Tokens(12, 12)}, "sampling_params": Greedy(5)})
			requireLength(t, last(t, events, 1)[0], 12, 5)
		}},
		{"passes a field that it does not know", func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"input_ids": Tokens(13, 9), "sampling_params": Greedy(2), "a_later_field": Body{"a": 1}})
			requireLength(t, answer, 9, 2)
		}},
	}
}
