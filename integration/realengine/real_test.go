//go:build realengine

package realengine

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// patience is how long an engine may take to begin something.
const patience = time.Minute

// pinnedPrompt and pinned are a prompt and the tokens that the model of
// make_tiny.py answers greedily, on these engines and on others.
func pinnedPrompt() []int { return cases.Tokens(0, 100) }

func pinned() []int { return []int{262, 34, 262, 34, 273, 262, 34, 273} }

func pinnedBody() cases.Body {
	return cases.Body{"input_ids": pinnedPrompt(), "sampling_params": cases.Body{"temperature": 0, "max_new_tokens": 8}}
}

// tooLong is more than the engines' context.
func tooLong() []int { return cases.Tokens(300, 1500) }

// onRealEngines are the cases that need engines that compute.
func onRealEngines() []cases.Case {
	return slices.Concat(pinnedAnswers(), likeWholeEngines(), enginesRefusals(), crowds())
}

// pinnedAnswers hold Tandem to tokens that are known: KV that went astray, or
// went to another call, gives others.
func pinnedAnswers() []cases.Case {
	return []cases.Case{
		{Name: "answers with the tokens that the model is known for", Run: func(t *testing.T, b cases.Backend) {
			var answer cases.Generated
			cases.Post(t, b.Router+"/generate", pinnedBody()).Into(t, &answer)
			assert.Equal(t, pinned(), answer.OutputIDs)
		}},
		{Name: "streams the tokens that the model is known for", Run: func(t *testing.T, b cases.Backend) {
			answer := cases.Post(t, b.Router+"/generate", pinnedBody().With(cases.Body{"stream": true}))
			events := cases.EventsAs[cases.Generated](t, answer)
			assert.Equal(t, pinned(), events[len(events)-1].OutputIDs)
		}},
		{Name: "answers each prompt of a batch with the tokens that the model is known for", Run: func(t *testing.T, b cases.Backend) {
			body := pinnedBody().With(cases.Body{"input_ids": [][]int{pinnedPrompt(), pinnedPrompt(), pinnedPrompt()}})
			var answers []cases.Generated
			cases.Post(t, b.Router+"/generate", body).Into(t, &answers)
			require.Len(t, answers, 3)
			for _, answer := range answers {
				assert.Equal(t, pinned(), answer.OutputIDs)
			}
		}},
		{Name: "answers each of two samples with the tokens that the model is known for", Run: func(t *testing.T, b cases.Backend) {
			body := pinnedBody().With(cases.Body{"sampling_params": cases.Body{"temperature": 0, "max_new_tokens": 8, "n": 2}})
			var answers []cases.Generated
			cases.Post(t, b.Router+"/generate", body).Into(t, &answers)
			require.Len(t, answers, 2)
			for _, answer := range answers {
				assert.Equal(t, pinned(), answer.OutputIDs)
			}
		}},
		{Name: "completes with the text of the tokens that the model is known for", Run: func(t *testing.T, b cases.Backend) {
			var generated cases.Generated
			cases.Post(t, b.Router+"/generate", pinnedBody()).Into(t, &generated)
			var completed cases.Completion
			cases.Post(t, b.Router+"/v1/completions", cases.Complete(pinnedPrompt(), 8)).Into(t, &completed)
			require.Len(t, completed.Choices, 1)
			assert.Equal(t, generated.Text, completed.Choices[0].Text)
		}},
	}
}

// rawMeta is meta_info with its values as they came.
type rawMeta struct {
	Meta map[string]json.RawMessage `json:"meta_info"`
}

// likeWholeEngines hold a spliced answer to the engines' own words.
func likeWholeEngines() []cases.Case {
	return []cases.Case{
		{Name: "answers with prefill's log probabilities of the prompt, byte for byte", Run: func(t *testing.T, b cases.Backend) {
			body := cases.Body{
				"input_ids": cases.Tokens(301, 30), "sampling_params": cases.Greedy(4),
				"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": []int{5, 10},
			}
			fromPrefill, fromDecode := direct(t, "/generate", body)
			var p, d, got rawMeta
			fromPrefill.Into(t, &p)
			fromDecode.Into(t, &d)
			cases.Post(t, b.Router+"/generate", body).Into(t, &got)
			for _, key := range []string{"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"} {
				assert.Equal(t, string(p.Meta[key]), string(got.Meta[key]), key)
			}
			for _, key := range []string{"output_token_logprobs", "output_top_logprobs"} {
				assert.Equal(t, string(d.Meta[key]), string(got.Meta[key]), key)
			}
			// Decode knows nothing of its first token but what prefill's list holds.
			first := bytes.TrimSuffix(p.Meta["output_token_ids_logprobs"], []byte("]"))
			rest, ok := bytes.CutPrefix(d.Meta["output_token_ids_logprobs"], []byte("[null"))
			require.True(t, ok)
			assert.Equal(t, string(first)+string(rest), string(got.Meta["output_token_ids_logprobs"]))
		}},
		{Name: "completes with prefill's log probabilities before decode's", Run: func(t *testing.T, b cases.Backend) {
			body := cases.Complete(cases.Tokens(302, 20), 4).With(cases.Body{"echo": true, "logprobs": 2})
			fromPrefill, fromDecode := direct(t, "/v1/completions", body)
			var p, d, got cases.Completion
			fromPrefill.Into(t, &p)
			fromDecode.Into(t, &d)
			cases.Post(t, b.Router+"/v1/completions", body).Into(t, &got)
			prompt, output, whole := p.Choices[0].Logprobs, d.Choices[0].Logprobs, got.Choices[0].Logprobs
			require.NotNil(t, whole)
			assert.Equal(t, slices.Concat(prompt.Tokens[:20], output.Tokens), whole.Tokens)
			assert.Equal(t, slices.Concat(prompt.TokenLogprobs[:20], output.TokenLogprobs), whole.TokenLogprobs)
			assert.Equal(t, slices.Concat(prompt.TopLogprobs[:20], output.TopLogprobs), whole.TopLogprobs)
			assert.Equal(t, d.Choices[0].Text, got.Choices[0].Text)
		}},
		{Name: "passes an answer as decode wrote it", Run: func(t *testing.T, b cases.Backend) {
			body := cases.Say("Hello", 6)
			_, fromDecode := direct(t, "/v1/chat/completions", body)
			var d, got map[string]json.RawMessage
			fromDecode.Into(t, &d)
			cases.Post(t, b.Router+"/v1/chat/completions", body).Into(t, &got)
			assert.Equal(t, string(d["choices"]), string(got["choices"]))
			assert.Equal(t, string(d["metadata"]), string(got["metadata"]))
			assert.Len(t, got, len(d))
		}},
	}
}

// enginesRefusals are requests that both engines refuse, each in its way.
func enginesRefusals() []cases.Case {
	refusals := []struct {
		what, path string
		body       cases.Body
		says       string
	}{
		{"a prompt that is too long", "/generate", cases.Body{"input_ids": tooLong()}, "longer than"},
		{"a batch with one prompt that is too long", "/generate", cases.Body{"input_ids": [][]int{cases.Tokens(303, 9), tooLong()}}, "longer than"},
		{"two samples of a prompt that is too long", "/generate", cases.Body{"input_ids": tooLong(), "sampling_params": cases.Body{"n": 2}}, "longer than"},
		{"a chat that is too long", "/v1/chat/completions", cases.Say(strings.Repeat("z", 1500), 2), "longer than"},
		{"a completion that is too long", "/v1/completions", cases.Complete(tooLong(), 2), "longer than"},
		{"a temperature that is not one", "/generate", cases.Body{"text": "Hello", "sampling_params": cases.Body{"temperature": -1}}, "temperature"},
		{"a sampling parameter that engines do not know", "/generate", cases.Body{"text": "Hello", "sampling_params": cases.Body{"a_later_one": 1}}, "a_later_one"},
	}
	var table []cases.Case
	for _, r := range refusals {
		for _, streamed := range []bool{false, true} {
			name := "refuses " + r.what
			if streamed {
				name += ", streamed"
			}
			table = append(table, cases.Case{Name: name, Run: func(t *testing.T, b cases.Backend) {
				answer := cases.Post(t, b.Router+r.path, r.body.With(cases.Body{"stream": streamed}))
				assert.Equal(t, http.StatusBadRequest, answer.Status, "%.500s", answer.Body)
				assert.Contains(t, answer.Header.Get("Content-Type"), "application/json")
				assert.True(t, json.Valid(answer.Body), "%.500s", answer.Body)
				assert.Contains(t, string(answer.Body), r.says)
				cases.RequireIdle(t, b, 5*time.Second)
			}})
		}
	}
	return table
}

// crowds are cases of several calls at once.
func crowds() []cases.Case {
	return []cases.Case{
		{Name: "gives each of many calls at once its own prompt's data", Run: func(t *testing.T, b cases.Backend) {
			const calls = 24
			var pending []*cases.Pending
			for i := range calls {
				body := cases.Body{
					"input_ids": cases.Tokens(310+i, 20+i), "sampling_params": cases.Greedy(5 + i%4),
					"return_logprob": true, "logprob_start_len": 0,
				}
				pending = append(pending, cases.Begin(cases.NewRequest(t, t.Context(), b.Router+"/generate", body)))
			}
			for i, call := range pending {
				var answer cases.Generated
				call.Answer(t).Into(t, &answer)
				assert.Len(t, answer.OutputIDs, 5+i%4)
				var tokens []int
				for _, entry := range answer.Meta.InputLogprobs {
					tokens = append(tokens, entry.Token)
				}
				assert.Equal(t, cases.Tokens(310+i, 20+i), tokens)
			}
		}},
		{Name: "lets a call wait for KV room, and passes the answer to its abort", Run: func(t *testing.T, b cases.Backend) {
			calls, empty := fill(t)
			defer empty()
			rid := cases.NewRid()
			body := cases.Body{"input_ids": cases.Tokens(340, 600), "sampling_params": cases.Greedy(4), "rid": rid}
			waiting := cases.Begin(cases.NewRequest(t, t.Context(), b.Router+"/generate", body))
			cases.Await(t, decode, patience, func(l cases.Load) bool { return l.Waiting > calls })
			assert.Equal(t, http.StatusOK, cases.Post(t, b.Router+"/abort_request", cases.Body{"rid": rid}).Status)
			answer := waiting.Answer(t)
			assert.Equal(t, http.StatusInternalServerError, answer.Status, "%.500s", answer.Body)
			assert.Contains(t, string(answer.Body), "Aborted by AbortReq")
			cases.Await(t, prefill, 5*time.Second, func(l cases.Load) bool { return l.Total() == 0 })
		}},
		{Name: "answers a call that has waited for KV room", Run: func(t *testing.T, b cases.Backend) {
			calls, empty := fill(t)
			body := cases.Body{"input_ids": cases.Tokens(341, 600), "sampling_params": cases.Greedy(4)}
			waiting := cases.Begin(cases.NewRequest(t, t.Context(), b.Router+"/generate", body))
			cases.Await(t, decode, patience, func(l cases.Load) bool { return l.Waiting > calls })
			empty()
			var answer cases.Generated
			waiting.Answer(t).Into(t, &answer)
			assert.Len(t, answer.OutputIDs, 4)
		}},
	}
}
