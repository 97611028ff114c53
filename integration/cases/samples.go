package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// greedyTwice are sampling parameters for two samples of n tokens each.
func greedyTwice(n int) Body { return Greedy(n).With(two) }

// samples are the cases of n above one, which engines cannot serve in pairs and
// Tandem serves as calls of one sample each.
func samples() []Case {
	return []Case{
		{"answers one sample that n asks for as a single answer", func(t *testing.T, b Backend) {
			requireLength(t, generated(t, b, Body{"input_ids": Tokens(30, 9), "sampling_params": Greedy(3).With(Body{"n": 1})}), 9, 3)
		}},
		{"answers two samples with a list of two", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{"input_ids": Tokens(31, 9), "sampling_params": greedyTwice(4)})
			require.Len(t, answers, 2)
			requireLength(t, answers[0], 9, 4)
			requireLength(t, answers[1], 9, 4)
			assert.Equal(t, answers[0].OutputIDs, answers[1].OutputIDs, "greedy samples are equal")
		}},
		{"answers two samples of each prompt in the order of the prompts", func(t *testing.T, b Backend) {
			answers := generatedBatch(t, b, Body{"input_ids": [][]int{Tokens(32, 9), Tokens(33, 5)}, "sampling_params": greedyTwice(3)})
			require.Len(t, answers, 4)
			for i, prompt := range []int{9, 9, 5, 5} {
				requireLength(t, answers[i], prompt, 3)
			}
		}},
		{"streams two samples, each with its index", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"input_ids": Tokens(34, 9), "sampling_params": greedyTwice(6)})
			for _, event := range events {
				require.NotNil(t, event.Index)
			}
			for _, end := range last(t, events, 2) {
				requireLength(t, end, 9, 6)
			}
		}},
		{"streams two samples of each prompt in the order of the prompts", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, Body{"input_ids": [][]int{Tokens(35, 9), Tokens(36, 5)}, "sampling_params": greedyTwice(4)})
			ends := last(t, events, 4)
			for i, prompt := range []int{9, 9, 5, 5} {
				requireLength(t, ends[i], prompt, 4)
			}
		}},
		{"splices the prompt's log probabilities into each sample", func(t *testing.T, b Backend) {
			prompt := Tokens(37, 9)
			answers := generatedBatch(t, b, withLogprobs(prompt).With(Body{"sampling_params": greedyTwice(3)}))
			require.Len(t, answers, 2)
			for _, answer := range answers {
				requireLogprobs(t, answer, prompt)
			}
		}},
		{"answers two samples of a chat with one id and whole usage", func(t *testing.T, b Backend) {
			var answer Completion
			Post(t, b.Router+chatPath, Say("Hello", 5).With(two)).Into(t, &answer)
			require.Len(t, answer.Choices, 2)
			for i, choice := range answer.Choices {
				assert.Equal(t, i, choice.Index)
			}
			requireUsage(t, answer.Usage, 10)
			var single Completion
			Post(t, b.Router+chatPath, Say("Hello", 5)).Into(t, &single)
			assert.Equal(t, single.Usage.PromptTokens, answer.Usage.PromptTokens, "the prompt counts once")
		}},
		{"streams two samples of a chat with one id and one usage", func(t *testing.T, b Backend) {
			events := EventsAs[Completion](t, Post(t, b.Router+chatPath, Say("Hello", 5).With(two).With(withUsage)))
			all := join(t, events, 2)
			assert.Equal(t, all.ids[0], all.ids[1])
			require.Len(t, all.usages, 1)
			requireUsage(t, events[len(events)-1].Usage, 10)
		}},
		{"answers two samples of each completion in the order of the prompts", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete([][]int{Tokens(38, 9), Tokens(39, 5)}, 4).With(two), 4)
			requireUsage(t, answer.Usage, 16)
			assert.Equal(t, 14, answer.Usage.PromptTokens, "each prompt counts once")
			assert.Equal(t, answer.Choices[0].Text, answer.Choices[1].Text, "greedy samples are equal")
			assert.Equal(t, answer.Choices[2].Text, answer.Choices[3].Text, "greedy samples are equal")
		}},
		{"streams two samples of a completion with one id and one usage", func(t *testing.T, b Backend) {
			events, all := completedStream(t, b, Complete("Hello", 5).With(two).With(withUsage), 2)
			assert.Equal(t, all.ids[0], all.ids[1])
			require.Len(t, all.usages, 1)
			requireUsage(t, events[len(events)-1].Usage, 10)
		}},
	}
}
