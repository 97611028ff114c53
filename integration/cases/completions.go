package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// completed posts to /v1/completions and requires n choices in order.
func completed(t *testing.T, b Backend, body Body, n int) Completion {
	t.Helper()
	var answer Completion
	Post(t, b.Router+completionsPath, body).Into(t, &answer)
	assert.Equal(t, "text_completion", answer.Object)
	require.Len(t, answer.Choices, n)
	for i, choice := range answer.Choices {
		assert.Equal(t, i, choice.Index)
		require.NotNil(t, choice.FinishReason)
		assert.Equal(t, "length", *choice.FinishReason)
	}
	return answer
}

func completedStream(t *testing.T, b Backend, body Body, n int) ([]Completion, joined) {
	t.Helper()
	events := EventsAs[Completion](t, Post(t, b.Router+completionsPath, body))
	return events, join(t, events, n)
}

// completions are the shapes that /v1/completions takes a prompt in.
func completions() []Case {
	return []Case{
		{"completes a string", func(t *testing.T, b Backend) {
			requireUsage(t, completed(t, b, Complete("Hello", 4), 1).Usage, 4)
		}},
		{"completes a list of tokens, which is one prompt", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete(Tokens(20, 15), 4), 1)
			requireUsage(t, answer.Usage, 4)
			assert.Equal(t, 15, answer.Usage.PromptTokens)
		}},
		{"completes a list of strings", func(t *testing.T, b Backend) {
			requireUsage(t, completed(t, b, Complete([]string{"Hello", "Good day"}, 4), 2).Usage, 8)
		}},
		{"completes a list of one string", func(t *testing.T, b Backend) {
			requireUsage(t, completed(t, b, Complete([]string{"Hello"}, 4), 1).Usage, 4)
		}},
		{"completes lists of tokens", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete([][]int{Tokens(21, 15), Tokens(22, 6)}, 4), 2)
			requireUsage(t, answer.Usage, 8)
			assert.Equal(t, 21, answer.Usage.PromptTokens)
		}},
		{"streams the completion of a string", func(t *testing.T, b Backend) {
			_, all := completedStream(t, b, Complete("Hello", 6).With(stream), 1)
			assert.Empty(t, all.usages)
		}},
		{"streams the same completion as it answers", func(t *testing.T, b Backend) {
			answer := completed(t, b, Complete(Tokens(23, 15), 12), 1)
			_, all := completedStream(t, b, Complete(Tokens(23, 15), 12).With(stream), 1)
			assert.Equal(t, answer.Choices[0].Text, all.contents[0])
		}},
		{"streams a list of strings and its usage", func(t *testing.T, b Backend) {
			events, all := completedStream(t, b, Complete([]string{"Hello", "Good day"}, 5).With(withUsage), 2)
			require.Len(t, all.usages, 1)
			requireUsage(t, events[len(events)-1].Usage, 10)
		}},
		{"streams lists of tokens", func(t *testing.T, b Backend) {
			completedStream(t, b, Complete([][]int{Tokens(24, 15), Tokens(25, 6)}, 5).With(stream), 2)
		}},
	}
}
