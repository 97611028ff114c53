package cases

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refusal is a body that must not reach an engine.
type refusal struct {
	what, path string
	body       any // marshalled unless it is a string
}

func refusedBodies() []refusal {
	prompt := Body{"text": "Hello", "sampling_params": Greedy(2)}
	said, completion := Say("Hello", 2), Complete("Hello", 2)
	return []refusal{
		{"JSON that is cut short", "/generate", `{"text":"Hello","sampling_params":{`},
		{"JSON that goes on after its end", "/generate", `{"text":"Hello"} x`},
		{"a list instead of an object", "/generate", `[{"text":"Hello"}]`},
		{"a body of nothing", "/generate", ``},
		{"a number that JSON does not have", "/generate", `{"text":"Hello","sampling_params":{"temperature":NaN}}`},
		{"bytes that are not UTF-8", "/generate", "{\"text\":\"\xff\"}"},
		{"a body nested without end", "/generate", `{"text":"Hello","a":` + strings.Repeat("[", 200_000)},
		{"stream as a string", "/generate", prompt.With(Body{"stream": "true"})},
		{"return_logprob as a string", "/generate", prompt.With(Body{"return_logprob": "true"})},
		{"return_logprob as a list of strings", "/generate", prompt.With(Body{"return_logprob": []string{"true"}})},
		{"n as a string", "/generate", prompt.With(Body{"sampling_params": Body{"n": "2"}})},
		{"n above the limit", "/generate", prompt.With(Body{"sampling_params": Body{"n": 100_000}})},
		{"more top log probabilities than engines can pass on", "/generate", prompt.With(Body{"return_logprob": true, "top_logprobs_num": 129})},
		{"a session", "/generate", prompt.With(Body{"session_params": Body{"id": "s"}})},
		{"an empty batch of texts", "/generate", Body{"text": []string{}, "sampling_params": Greedy(2)}},
		{"an empty batch of tokens", "/generate", Body{"input_ids": [][]int{}, "sampling_params": Greedy(2)}},
		{"JSON of a chat that is cut short", chatPath, `{"messages":[`},
		{"n of a chat as a string", chatPath, said.With(Body{"n": "2"})},
		{"n of a chat as a fraction", chatPath, said.With(Body{"n": 1.5})},
		{"stream of a chat as a number", chatPath, said.With(Body{"stream": 1})},
		{"more top log probabilities of a chat than engines can pass on", chatPath, said.With(Body{"logprobs": true, "top_logprobs": 129})},
		{"n of a completion above the limit", completionsPath, completion.With(two).With(Body{"n": 100_000})},
		{"more log probabilities of a completion than engines can pass on", completionsPath, completion.With(Body{"logprobs": 129})},
		{"an empty list of prompts", completionsPath, Complete([]string{}, 2)},
	}
}

// requireOwnError requires an error of Tandem's own, in a shape that clients of
// the endpoint can read.
func requireOwnError(t *testing.T, answer Answer, status int) {
	t.Helper()
	require.Equal(t, status, answer.Status, "%.500s", answer.Body)
	assert.NotEmpty(t, answer.Header.Get("X-Tandem-Error"))
	assert.Contains(t, answer.Header.Get("Content-Type"), "application/json")
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	require.NoError(t, json.Unmarshal(answer.Body, &body), "%.500s", answer.Body)
	assert.NotEmpty(t, body.Error.Message)
}

// refusals are the cases of requests that end before an engine sees them.
func refusals() []Case {
	var table []Case
	for _, r := range refusedBodies() {
		table = append(table, Case{"refuses " + r.what, func(t *testing.T, b Backend) {
			requireOwnError(t, Post(t, b.Router+r.path, r.body), http.StatusBadRequest)
			RequireIdle(t, b, idleWithin)
		}})
	}
	return append(
		table,
		Case{"refuses a compressed body", func(t *testing.T, b Backend) {
			answer := Post(t, b.Router+"/generate", "\x1f\x8b", "Content-Encoding", "gzip")
			requireOwnError(t, answer, http.StatusUnsupportedMediaType)
		}},
		Case{"knows no other path", func(t *testing.T, b Backend) {
			requireOwnError(t, Get(t, b.Router+"/v1/no-such-thing"), http.StatusNotFound)
		}},
		Case{"takes no other method", func(t *testing.T, b Backend) {
			requireOwnError(t, Get(t, b.Router+chatPath), http.StatusMethodNotAllowed)
		}},
		Case{"passes an engine's own refusal", func(t *testing.T, b Backend) {
			answer := Post(t, b.Router+chatPath, Body{"model": "tiny", "max_tokens": 2})
			assert.Equal(t, http.StatusBadRequest, answer.Status, "%.500s", answer.Body)
			RequireIdle(t, b, idleWithin)
		}},
	)
}
