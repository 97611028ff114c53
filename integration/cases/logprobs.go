package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withLogprobs asks for the log probabilities of a whole prompt, or of every
// prompt of a batch, and of the four tokens after it.
func withLogprobs(prompt any) Body {
	return Body{"input_ids": prompt, "sampling_params": Greedy(4), "return_logprob": true, "logprob_start_len": 0}
}

// requireLogprobs requires a log probability of every token of the prompt but
// the first, which has none, and of every token of the answer so far.
func requireLogprobs(t *testing.T, answer Generated, prompt []int) {
	t.Helper()
	require.Len(t, answer.Meta.InputLogprobs, len(prompt))
	for i, entry := range answer.Meta.InputLogprobs {
		assert.Equal(t, prompt[i], entry.Token)
		assert.Equal(t, i == 0, entry.Value == nil, "entry %d", i)
	}
	require.Len(t, answer.Meta.OutputLogprobs, len(answer.OutputIDs))
	for i, entry := range answer.Meta.OutputLogprobs {
		assert.Equal(t, answer.OutputIDs[i], entry.Token)
		assert.NotNil(t, entry.Value)
	}
}

// requireLists requires one list of n entries for each token, and null for the
// first token of a prompt.
func requireLists(t *testing.T, input, output [][]Logprob, prompt, answer, n int) {
	t.Helper()
	require.Len(t, input, prompt)
	require.Len(t, output, answer)
	assert.Nil(t, input[0])
	for i, list := range append(input[1:len(input):len(input)], output...) {
		assert.Len(t, list, n, "list %d", i)
	}
}

// logprobs are the cases of answers that hold what only prefill knows.
func logprobs() []Case {
	return []Case{
		{"splices the prompt's log probabilities into an answer", func(t *testing.T, b Backend) {
			requireLogprobs(t, generated(t, b, withLogprobs(Tokens(40, 14))), Tokens(40, 14))
		}},
		{"begins the prompt's log probabilities where the client asks", func(t *testing.T, b Backend) {
			answer := generated(t, b, withLogprobs(Tokens(41, 14)).With(Body{"logprob_start_len": 10}))
			require.Len(t, answer.Meta.InputLogprobs, 4)
			assert.Nil(t, answer.Meta.InputLogprobs[0].Value)
			assert.Equal(t, Tokens(41, 14)[10], answer.Meta.InputLogprobs[0].Token)
		}},
		{"has no log probabilities of the prompt unless they are asked for", func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"input_ids": Tokens(42, 14), "sampling_params": Greedy(4), "return_logprob": true})
			assert.Empty(t, answer.Meta.InputLogprobs)
			assert.Len(t, answer.Meta.OutputLogprobs, 4)
		}},
		{"splices into each answer of a batch its own", func(t *testing.T, b Backend) {
			prompts := [][]int{Tokens(43, 14), Tokens(44, 5), Tokens(45, 8)}
			answers := generatedBatch(t, b, withLogprobs(prompts))
			require.Len(t, answers, len(prompts))
			for i, prompt := range prompts {
				requireLogprobs(t, answers[i], prompt)
			}
		}},
		{"splices only into the answers of a batch that ask", func(t *testing.T, b Backend) {
			prompts := [][]int{Tokens(46, 7), Tokens(47, 5)}
			answers := generatedBatch(t, b, withLogprobs(prompts).With(Body{
				"return_logprob": []bool{false, true}, "logprob_start_len": []int{0, 0},
			}))
			require.Len(t, answers, 2)
			assert.Empty(t, answers[0].Meta.OutputLogprobs)
			requireLogprobs(t, answers[1], prompts[1])
		}},
		{"splices the likeliest tokens", func(t *testing.T, b Backend) {
			meta := generated(t, b, withLogprobs(Tokens(48, 12)).With(Body{"top_logprobs_num": 3})).Meta
			requireLists(t, meta.InputTopLogprobs, meta.OutputTopLogprobs, 12, 4, 3)
		}},
		{"splices the log probabilities of chosen tokens, the first answer token's too", func(t *testing.T, b Backend) {
			meta := generated(t, b, withLogprobs(Tokens(49, 12)).With(Body{"token_ids_logprob": []int{7, 20}})).Meta
			requireLists(t, meta.InputIDsLogprobs, meta.OutputIDsLogprobs, 12, 4, 2)
		}},
		{"splices the log probabilities of chosen tokens of every stream event", func(t *testing.T, b Backend) {
			for _, event := range generatedStream(t, b, withLogprobs(Tokens(50, 12)).With(Body{"token_ids_logprob": []int{7, 20}})) {
				requireLists(t, event.Meta.InputIDsLogprobs, event.Meta.OutputIDsLogprobs, 12, len(event.OutputIDs), 2)
			}
		}},
		{"splices texts as well when they are asked for", func(t *testing.T, b Backend) {
			answer := generated(t, b, withLogprobs(Tokens(51, 12)).With(Body{"return_text_in_logprobs": true}))
			requireLogprobs(t, answer, Tokens(51, 12))
			for _, entry := range append(answer.Meta.InputLogprobs, answer.Meta.OutputLogprobs...) {
				assert.NotNil(t, entry.Text)
			}
		}},
		{"splices into every event of a stream", func(t *testing.T, b Backend) {
			events := generatedStream(t, b, withLogprobs(Tokens(52, 14)).With(Body{"top_logprobs_num": 2}))
			for _, event := range events {
				requireLogprobs(t, event, Tokens(52, 14))
				requireLists(t, event.Meta.InputTopLogprobs, event.Meta.OutputTopLogprobs, 14, len(event.OutputIDs), 2)
			}
			requireLength(t, last(t, events, 1)[0], 14, 4)
		}},
		{"splices into every event of a batch's stream its own", func(t *testing.T, b Backend) {
			prompts := [][]int{Tokens(53, 14), Tokens(54, 5)}
			events := generatedStream(t, b, withLogprobs(prompts))
			for _, event := range events {
				require.NotNil(t, event.Index)
				requireLogprobs(t, event, prompts[*event.Index])
			}
			last(t, events, 2)
		}},
		{"passes a chat's log probabilities", func(t *testing.T, b Backend) {
			var answer Completion
			Post(t, b.Router+chatPath, Say("Hello", 4).With(Body{"logprobs": true, "top_logprobs": 2})).Into(t, &answer)
			require.Len(t, answer.Choices, 1)
			require.NotNil(t, answer.Choices[0].Logprobs)
			require.Len(t, answer.Choices[0].Logprobs.Content, 4)
			for _, token := range answer.Choices[0].Logprobs.Content {
				assert.Len(t, token.TopLogprobs, 2)
			}
		}},
		{"passes the log probabilities of a chat's stream", func(t *testing.T, b Backend) {
			body := Say("Hello", 8).With(Body{"logprobs": true, "top_logprobs": 2, "stream": true})
			tokens := 0
			for _, event := range EventsAs[Completion](t, Post(t, b.Router+chatPath, body)) {
				for _, choice := range event.Choices {
					if choice.Logprobs == nil {
						continue
					}
					tokens += len(choice.Logprobs.Content)
					for _, token := range choice.Logprobs.Content {
						assert.Len(t, token.TopLogprobs, 2)
					}
				}
			}
			// Engines leave out a last token that adds no text.
			assert.Contains(t, []int{7, 8}, tokens)
		}},
	}
}
