package cases

import (
	"crypto/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tokens is a prompt of n token ids. Prompts of different seeds share no prefix.
func Tokens(seed, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = (i*37+seed*101+11)%500 + 6
	}
	return ids
}

// Greedy are sampling parameters for exactly n tokens, the same every time.
func Greedy(n int) Body {
	return Body{"temperature": 0, "max_new_tokens": n, "ignore_eos": true}
}

// Say is a chat of one message that is answered with exactly n tokens.
func Say(text string, n int) Body {
	return Body{
		"model": "tiny", "messages": []Body{{"role": "user", "content": text}},
		"temperature": 0, "max_tokens": n, "ignore_eos": true,
	}
}

// Complete is a call of /v1/completions for exactly n tokens.
func Complete(prompt any, n int) Body {
	return Body{"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": n, "ignore_eos": true}
}

// NewRid is a request id that no other call has, and that no other one starts
// with.
func NewRid() string { return "case-" + rand.Text() }

// What a body is given with [Body.With].
var (
	stream    = Body{"stream": true}
	withUsage = Body{"stream": true, "stream_options": Body{"include_usage": true}}
	two       = Body{"n": 2}                      // samples on the OpenAI endpoints
	withEcho  = Body{"echo": true, "logprobs": 2} // of the whole prompt too
)

// generated posts to /generate and decodes one answer.
func generated(t *testing.T, b Backend, body Body) Generated {
	t.Helper()
	var answer Generated
	Post(t, b.Router+"/generate", body).Into(t, &answer)
	return answer
}

// generatedBatch posts to /generate and decodes a list of answers.
func generatedBatch(t *testing.T, b Backend, body Body) []Generated {
	t.Helper()
	var answers []Generated
	Post(t, b.Router+"/generate", body).Into(t, &answers)
	return answers
}

// generatedStream posts to /generate with stream set.
func generatedStream(t *testing.T, b Backend, body Body) []Generated {
	t.Helper()
	return EventsAs[Generated](t, Post(t, b.Router+"/generate", body.With(stream)))
}

// requireLength requires a whole answer of n tokens to a prompt of known length.
func requireLength(t *testing.T, answer Generated, prompt, n int) {
	t.Helper()
	require.NotNil(t, answer.Meta.Finish)
	assert.Equal(t, "length", answer.Meta.Finish.Type)
	assert.Equal(t, prompt, answer.Meta.PromptTokens)
	assert.Equal(t, n, answer.Meta.CompletionTokens)
	assert.Len(t, answer.OutputIDs, n)
}

// last requires the events of each index to add to what came before until one
// names a finish, and returns the last event of each of n indexes. An event without an
// index counts as the first.
func last(t *testing.T, events []Generated, n int) []Generated {
	t.Helper()
	ends := make([]Generated, n)
	for _, event := range events {
		i := 0
		if event.Index != nil {
			i = *event.Index
		}
		require.Less(t, i, n)
		require.Nil(t, ends[i].Meta.Finish, "an event of index %d after its end", i)
		before := len(ends[i].OutputIDs)
		require.GreaterOrEqual(t, len(event.OutputIDs), before, "index %d", i)
		require.True(t, slices.Equal(ends[i].OutputIDs, event.OutputIDs[:before]), "index %d", i)
		ends[i] = event
	}
	for i, end := range ends {
		require.NotNil(t, end.Meta.Finish, "index %d has no end", i)
	}
	return ends
}
