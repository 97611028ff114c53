package simengine

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// whole is a regular engine and its client.
type whole struct {
	*pair
	e *Engine
}

// newWhole starts a regular engine. The pair has no other.
func newWhole(t *testing.T, change func(*Config)) *whole {
	t.Helper()
	cfg := Config{Role: Regular, ID: "whole", TimeScale: 0.005, HealthDelay: -1}
	if change != nil {
		change(&cfg)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: patience}
	return &whole{&pair{t: t, client: client}, start(t, cfg)}
}

func (w *whole) call(path string, body any) reply {
	return w.post(w.t.Context(), w.e, path, body)
}

func TestARegularEngineAnswersAlone(t *testing.T) {
	w := newWhole(t, nil)
	f := func(name, path, body string) {
		t.Run(name, func(t *testing.T) {
			want, err := ExpectedFor(path, []byte(body))
			require.NoError(t, err)
			got := w.call(path, []byte(body))
			require.Equal(t, http.StatusOK, got.status, "%s", got.body)
			for _, out := range want {
				require.Contains(t, string(got.body), string(appendString(nil, out.Text)))
			}
		})
	}
	f("text", "/generate", `{"text":"Hi","sampling_params":{"max_new_tokens":8}}`)
	f("batch", "/generate", `{"text":["a","b"],"sampling_params":{"max_new_tokens":8}}`)
	f("stream", "/generate", `{"text":"Hi","stream":true,"sampling_params":{"max_new_tokens":8}}`)
	f("samples", "/generate", `{"text":["a","b"],"sampling_params":{"max_new_tokens":8,"n":3}}`)
	f("chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}],"max_tokens":8}`)
	f("samples of a chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hello"}],"max_tokens":8,"n":4}`)
	f("completions", "/v1/completions", `{"prompt":"hello","max_tokens":8}`)
	f("samples of completions", "/v1/completions", `{"prompt":["hello","you"],"max_tokens":8,"n":2}`)
	f("a room means nothing", "/generate", `{"text":"Hi","bootstrap_host":"10.0.0.1","bootstrap_port":1,"bootstrap_room":7}`)
	f("not even a bad one", "/generate", `{"text":"Hi","bootstrap_room":[-7]}`)
	require.NoError(t, w.e.Fatal())
	assert.Equal(t, Loads{Served: w.e.Loads().Served}, w.e.Loads())
}

func TestSamplesOfARegularEngineAreNumberedAndCountOnePrompt(t *testing.T) {
	w := newWhole(t, nil)
	plain := object{"messages": []object{{"role": "user", "content": "hello"}}, "max_tokens": 4, "n": 3, "ignore_eos": true}
	got := w.call("/v1/chat/completions", plain).object(t)
	for i, choice := range got["choices"].([]any) {
		assert.Equal(t, float64(i), choice.(object)["index"])
	}
	assert.Len(t, got["choices"], 3)
	usage := got["usage"].(object)
	assert.Equal(t, float64(len("user:hello\nassistant:")), usage["prompt_tokens"])
	assert.Equal(t, 12.0, usage["completion_tokens"])

	plain["stream"] = true
	seen := map[float64]bool{}
	events := w.call("/v1/chat/completions", plain).events()
	for _, e := range events[:len(events)-1] {
		for _, choice := range decodeObject(t, []byte(e))["choices"].([]any) {
			seen[choice.(object)["index"].(float64)] = true
		}
	}
	assert.Equal(t, map[float64]bool{0: true, 1: true, 2: true}, seen)
	assert.Equal(t, "[DONE]", events[len(events)-1])

	var list []object
	native := w.call("/generate", object{"text": "a", "rid": "mine", "sampling_params": object{"n": 2, "max_new_tokens": 4}})
	require.NoError(t, json.Unmarshal(native.body, &list))
	require.Len(t, list, 2)
	assert.NotEqual(t, "mine", list[0]["meta_info"].(object)["id"], "samples have ids of their own")
	assert.Equal(t, http.StatusBadRequest, w.call("/generate", object{"text": "a", "sampling_params": object{"n": 1 << 20}}).status)
}

func TestPromptLogprobsComeFromARegularEngineWithTheRest(t *testing.T) {
	w := newWhole(t, nil)
	meta := w.call("/generate", object{
		"input_ids": []int{5, 6, 7, 8}, "return_logprob": true, "logprob_start_len": 0, "token_ids_logprob": []int{9},
		"sampling_params": object{"max_new_tokens": 3, "ignore_eos": true},
	}).object(t)["meta_info"].(object)
	assert.Len(t, meta["input_token_logprobs"], 4)
	assert.Len(t, meta["output_token_logprobs"], 3)
	ids := meta["output_token_ids_logprobs"].([]any)
	assert.NotNil(t, ids[0])
	assert.Equal(t, 3.0, meta["completion_tokens"])
	assert.Equal(t, 3.0, meta["finish_reason"].(object)["length"])
}

func TestARegularEngineFreesWhatIsAborted(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.Speed.TokenInterval = 50 * time.Millisecond })
	slow := object{"text": "a", "rid": "r", "stream": true, "sampling_params": object{"max_new_tokens": 900, "ignore_eos": true}}
	running := func() { w.until(w.e, func(l Loads) bool { return l.Running == 1 }) }

	call := w.start(t.Context(), w.e, "/generate", slow)
	running()
	assert.Equal(t, 901, w.e.Loads().UsedTokens)
	require.Equal(t, http.StatusOK, w.call("/abort_request", object{"rid": "r"}).status)
	got := <-call
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, string(got.body), `"type":"abort"`)

	ctx, leave := context.WithCancel(t.Context())
	call = w.start(ctx, w.e, "/generate", slow)
	running()
	leave()
	<-call
	w.idle(w.e)
	assert.Equal(t, Loads{Served: 2}, w.e.Loads())
	assert.Equal(t, "aborted", w.e.Records()[2].End)
}

func TestARegularEngineServesWhatItHasRoomFor(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.MaxTotalTokens, c.Speed.TokenInterval = 100, 20*time.Millisecond })
	body := func(rid string) object {
		return object{"text": "a", "rid": rid, "sampling_params": object{"max_new_tokens": 60, "ignore_eos": true}}
	}
	first := w.start(t.Context(), w.e, "/generate", body("x"))
	w.until(w.e, func(l Loads) bool { return l.Running == 1 })
	second, third := w.start(t.Context(), w.e, "/generate", body("y")), w.start(t.Context(), w.e, "/generate", body("z"))
	w.until(w.e, func(l Loads) bool { return l.Waiting == 2 })
	require.Equal(t, http.StatusOK, w.call("/abort_request", object{"rid": "y"}).status)
	got := <-second
	assert.Equal(t, http.StatusOK, got.status)
	assert.Contains(t, string(got.body), "Abort in waiting queue")
	assert.Equal(t, http.StatusOK, (<-first).status)
	assert.Equal(t, http.StatusOK, (<-third).status)
	assert.Equal(t, http.StatusBadRequest, w.call("/generate", object{"text": strings.Repeat("a", 101)}).status)
}

func TestACachedPromptIsQuicker(t *testing.T) {
	t.Parallel()
	w := newWhole(t, func(c *Config) { c.Speed.PrefillPerToken = 2 * time.Millisecond })
	body := object{"prompt": strings.Repeat("a", 960), "max_tokens": 1}
	cold := w.call("/v1/completions", body)
	warm := w.call("/v1/completions", body)
	assert.GreaterOrEqual(t, cold.took, 960*2*time.Millisecond)
	assert.Less(t, warm.took, time.Second)
	cached := warm.object(t)["usage"].(object)["prompt_tokens_details"].(object)["cached_tokens"]
	assert.Equal(t, 959.0, cached)
	meta := w.call("/generate", object{"text": strings.Repeat("a", 40)}).object(t)["meta_info"].(object)
	assert.Equal(t, 32.0, meta["cached_tokens"])
	tokens, hits := w.e.Prompts()
	assert.Equal(t, []int{960 + 960 + 40, 959 + 32}, []int{tokens, hits})
	require.Equal(t, http.StatusOK, w.call("/flush_cache", object{}).status)
	meta = w.call("/generate", object{"text": strings.Repeat("a", 40)}).object(t)["meta_info"].(object)
	assert.Equal(t, 0.0, meta["cached_tokens"])
}

func TestOnePromptIsComputedAtATime(t *testing.T) {
	t.Parallel()
	const perToken = time.Millisecond
	began := time.Now()
	f := func(name string, answers func(t *testing.T, bodies []object) []<-chan reply) {
		t.Run(name, func(t *testing.T) {
			var bodies []object
			for _, letter := range []string{"a", "b", "c"} {
				bodies = append(bodies, object{"text": strings.Repeat(letter, 300), "sampling_params": object{"max_new_tokens": 1}})
			}
			began = time.Now()
			for _, answer := range answers(t, bodies) {
				require.Equal(t, http.StatusOK, (<-answer).status)
			}
			assert.GreaterOrEqual(t, time.Since(began), 900*perToken)
		})
	}
	f("regular", func(t *testing.T, bodies []object) (answers []<-chan reply) {
		w := newWhole(t, func(c *Config) { c.Speed.PrefillPerToken = perToken })
		for _, body := range bodies {
			answers = append(answers, w.start(t.Context(), w.e, "/generate", body))
		}
		return answers
	})
	f("prefill", func(t *testing.T, bodies []object) (answers []<-chan reply) {
		p := newPair(t, func(a, _ *Config) { a.Speed.PrefillPerToken = perToken })
		for i, body := range bodies {
			routed := p.routed(i+1, body)
			answers = append(answers, p.start(t.Context(), p.prefill, "/generate", routed), p.start(t.Context(), p.decode, "/generate", routed))
		}
		return answers
	})
}

func TestAnItemThatWaitsForItsTurnToComputeCanBeAborted(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.Speed.PrefillPerToken = time.Hour })
	first := w.start(t.Context(), w.e, "/generate", object{"text": "a", "rid": "x"})
	second := w.start(t.Context(), w.e, "/generate", object{"text": "b", "rid": "y"})
	w.until(w.e, func(l Loads) bool { return l.Waiting == 2 })
	require.Equal(t, http.StatusOK, w.call("/abort_request", object{"abort_all": true}).status)
	for _, call := range []<-chan reply{first, second} {
		assert.Contains(t, string((<-call).body), "Abort in waiting queue")
	}
	w.idle(w.e)
	assert.Equal(t, 1, w.e.current().gpu.free)
}

func TestTheRanksOfARegularEngine(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.DPSize = 3 })
	rank := func(body object) any {
		body["text"] = "a"
		return w.call("/generate", body).object(t)["meta_info"].(object)["dp_rank"]
	}
	assert.Equal(t, []any{0.0, 1.0, 2.0, 0.0}, []any{rank(object{}), rank(object{"bootstrap_room": 5}), rank(object{}), rank(object{})})
	assert.Equal(t, 2.0, rank(object{"routed_dp_rank": 2}))
	assert.Equal(t, http.StatusBadRequest, w.call("/generate", object{"text": "a", "routed_dp_rank": 3}).status)
}
