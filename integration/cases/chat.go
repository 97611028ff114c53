package cases

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// requireUsage requires whole counts for an answer of n tokens in all.
func requireUsage(t *testing.T, usage *Usage, n int) {
	t.Helper()
	require.NotNil(t, usage)
	assert.Positive(t, usage.PromptTokens)
	assert.Equal(t, n, usage.CompletionTokens)
	assert.Equal(t, usage.PromptTokens+n, usage.TotalTokens)
}

// joined is an OpenAI stream put together.
type joined struct {
	ids      []string // by index
	contents []string // by index
	finish   []string // by index
	usages   []Usage  // of events without choices
}

// join requires the events of n choices to end with one finish each, and those
// of one index to have one id.
func join(t *testing.T, events []Completion, n int) joined {
	t.Helper()
	all := joined{ids: make([]string, n), contents: make([]string, n), finish: make([]string, n)}
	for _, event := range events {
		if len(event.Choices) == 0 && event.Usage != nil {
			all.usages = append(all.usages, *event.Usage)
		}
		for _, choice := range event.Choices {
			require.Less(t, choice.Index, n)
			require.Empty(t, all.finish[choice.Index], "an event of index %d after its end", choice.Index)
			if all.ids[choice.Index] == "" {
				all.ids[choice.Index] = event.ID
			}
			require.Equal(t, all.ids[choice.Index], event.ID, "index %d", choice.Index)
			all.contents[choice.Index] += choice.Text
			if choice.Delta.Content != nil {
				all.contents[choice.Index] += *choice.Delta.Content
			}
			if choice.FinishReason != nil {
				all.finish[choice.Index] = *choice.FinishReason
			}
		}
	}
	for i, finish := range all.finish {
		require.Equal(t, "length", finish, "index %d", i)
	}
	return all
}

// chat are the cases of /v1/chat/completions.
func chat() []Case {
	return []Case{
		{"answers a chat", func(t *testing.T, b Backend) {
			var answer Completion
			Post(t, b.Router+chatPath, Say("Hello", 4)).Into(t, &answer)
			assert.Equal(t, "chat.completion", answer.Object)
			require.Len(t, answer.Choices, 1)
			assert.Equal(t, "assistant", answer.Choices[0].Message.Role)
			requireUsage(t, answer.Usage, 4)
		}},
		{"answers a chat that says n is one", func(t *testing.T, b Backend) {
			var answer Completion
			Post(t, b.Router+chatPath, Say("Hello", 4).With(Body{"n": 1})).Into(t, &answer)
			require.Len(t, answer.Choices, 1)
		}},
		{"answers a chat whose optional fields are null", func(t *testing.T, b Backend) {
			var answer Completion
			nulls := Body{"rid": nil, "seed": nil, "top_logprobs": nil, "stream_options": nil}
			Post(t, b.Router+chatPath, Say("Hello", 4).With(nulls)).Into(t, &answer)
			require.Len(t, answer.Choices, 1)
			requireUsage(t, answer.Usage, 4)
		}},
		{"streams a chat, the role first", func(t *testing.T, b Backend) {
			events := EventsAs[Completion](t, Post(t, b.Router+chatPath, Say("Hello", 6).With(stream)))
			require.NotEmpty(t, events[0].Choices)
			assert.Equal(t, "assistant", events[0].Choices[0].Delta.Role)
			assert.Empty(t, join(t, events, 1).usages)
		}},
		{"streams a chat's usage once, last", func(t *testing.T, b Backend) {
			events := EventsAs[Completion](t, Post(t, b.Router+chatPath, Say("Hello", 6).With(withUsage)))
			require.Len(t, join(t, events, 1).usages, 1)
			requireUsage(t, events[len(events)-1].Usage, 6)
		}},
		{"streams the same chat as it answers", func(t *testing.T, b Backend) {
			var answer Completion
			Post(t, b.Router+chatPath, Say("Once more", 12)).Into(t, &answer)
			require.Len(t, answer.Choices, 1)
			require.NotNil(t, answer.Choices[0].Message.Content)
			events := EventsAs[Completion](t, Post(t, b.Router+chatPath, Say("Once more", 12).With(stream)))
			assert.Equal(t, *answer.Choices[0].Message.Content, join(t, events, 1).contents[0])
		}},
		{"passes a field of a chat that it does not know", func(t *testing.T, b Backend) {
			answer := Post(t, b.Router+chatPath, Say("Hello", 2).With(Body{"a_later_field": []int{1}}))
			assert.Equal(t, 200, answer.Status)
		}},
		{"takes a body of which JSON allows every spelling", func(t *testing.T, b Backend) {
			body := " \n{\"model\" :\t\"tiny\", \"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 \\\"x\\\" " +
				strings.Repeat("é", 8) + "\"}], \"\\u006d\\u0061x_tokens\": 3, \"temperature\":0.0, \"ignore_eos\":true, \"\\u006e\":1} \n"
			var answer Completion
			Post(t, b.Router+chatPath, body).Into(t, &answer)
			require.Len(t, answer.Choices, 1)
			requireUsage(t, answer.Usage, 3)
		}},
	}
}
