package simengine

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPromptLogprobsComeFromPrefillOnly(t *testing.T) {
	p := newPair(t, nil)
	f := func(name string, start any, wantInput int) {
		t.Run(name, func(t *testing.T) {
			pre, dec := p.both("/generate", p.routed(len(p.decode.Records())+1, object{
				"input_ids": []int{5, 6, 7, 8}, "return_logprob": true, "logprob_start_len": start, "return_text_in_logprobs": true,
				"top_logprobs_num": 2, "token_ids_logprob": []int{9, 10}, "sampling_params": object{"max_new_tokens": 3, "ignore_eos": true},
			}))
			a, b := pre.object(t)["meta_info"].(object), dec.object(t)["meta_info"].(object)
			for _, key := range []string{"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"} {
				assert.Len(t, a[key], wantInput, key)
				assert.Equal(t, []any{}, b[key], key)
			}
			if wantInput > 0 {
				first := a["input_token_logprobs"].([]any)[0].([]any)
				assert.Nil(t, first[0])
				assert.Nil(t, a["input_top_logprobs"].([]any)[0])
			}
			assert.Len(t, b["output_token_logprobs"], 3)
			assert.Len(t, b["output_top_logprobs"], 3)
			ids := b["output_token_ids_logprobs"].([]any)
			require.Len(t, ids, 3)
			assert.Nil(t, ids[0], "the first token's are not transferred")
			assert.NotNil(t, ids[1])
			assert.Equal(t, a["output_token_logprobs"], b["output_token_logprobs"].([]any)[:1], "both sides agree on the first token")
			assert.Equal(t, 3.0, b["output_token_logprobs_length"])
		})
	}
	f("whole prompt", 0, 4)
	f("from the third token on", 2, 2)
	f("of the output only", nil, 0)
}

func TestFramesOfGenerateAreCumulativeUnlessIncremental(t *testing.T) {
	want := Expected(Tokenize("a"), Params{MaxNewTokens: 5, IgnoreEOS: true})
	f := func(name string, incremental bool) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(_, d *Config) { d.Incremental = incremental })
			_, dec := p.both("/generate", p.routed(1, object{
				"text": "a", "stream": true, "return_logprob": true, "sampling_params": object{"max_new_tokens": 5, "ignore_eos": true},
			}))
			events := dec.events()
			require.Len(t, events, 6)
			text := ""
			for i, e := range events[:5] {
				frame := decodeObject(t, []byte(e))
				meta := frame["meta_info"].(object)
				assert.Equal(t, float64(i+1), meta["completion_tokens"])
				assert.Equal(t, []any{}, meta["input_token_logprobs"])
				if incremental {
					assert.Len(t, frame["output_ids"], 1)
					assert.Len(t, meta["output_token_logprobs"], 1)
					text += frame["text"].(string)
					continue
				}
				assert.Len(t, frame["output_ids"], i+1)
				assert.Len(t, meta["output_token_logprobs"], i+1)
				text = frame["text"].(string)
			}
			assert.Equal(t, want.Text, text)
			assert.Equal(t, "[DONE]", events[5])
		})
	}
	f("cumulative", false)
	f("incremental", true)
}

func TestAStreamedBatchNumbersItsFrames(t *testing.T) {
	p := newPair(t, nil)
	_, dec := p.both("/generate", p.routed(1, object{"text": []string{"a", "b", "c"}, "stream": true, "sampling_params": object{"max_new_tokens": 4}}))
	events := dec.events()
	require.Equal(t, "[DONE]", events[len(events)-1])
	texts := map[float64]string{}
	for _, e := range events[:len(events)-1] {
		frame := decodeObject(t, []byte(e))
		texts[frame["index"].(float64)] = frame["text"].(string)
	}
	for i, prompt := range []string{"a", "b", "c"} {
		assert.Equal(t, Expected(Tokenize(prompt), Params{MaxNewTokens: 4}).Text, texts[float64(i)])
	}
}

func TestStreamsOfOpenAIJoinToThePlainAnswer(t *testing.T) {
	p := newPair(t, nil)
	f := func(name, path string, body object, text func(choice object) string) {
		t.Run(name, func(t *testing.T) {
			join := func(stream bool) (out string, usage any) {
				body["stream"], body["stream_options"] = stream, object{"include_usage": true}
				_, dec := p.both(path, p.routed(len(p.decode.Records())+1, body))
				require.Equal(t, http.StatusOK, dec.status, "%s", dec.body)
				parts := dec.events()
				if !stream {
					parts = []string{string(dec.body)}
				}
				for _, part := range parts {
					if part == "[DONE]" {
						continue
					}
					frame := decodeObject(t, []byte(part))
					for _, c := range frame["choices"].([]any) {
						out += text(c.(object))
					}
					if frame["usage"] != nil {
						usage = frame["usage"].(object)["completion_tokens"]
					}
				}
				return out, usage
			}
			plain, plainUsage := join(false)
			streamed, streamedUsage := join(true)
			assert.Equal(t, plain, streamed)
			assert.NotEmpty(t, plain)
			assert.Equal(t, plainUsage, streamedUsage)
		})
	}
	content := func(from string) func(object) string {
		return func(c object) string {
			for _, key := range []string{from, "delta"} {
				if m, ok := c[key].(object); ok {
					s, _ := m["content"].(string)
					return s
				}
			}
			return ""
		}
	}
	f("chat", "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": "hello"}}, "max_tokens": 9, "logprobs": true, "top_logprobs": 2}, content("message"))
	f("completions with echo", "/v1/completions", object{"prompt": "he said \"<hi>\"\n", "echo": true, "max_tokens": 9, "seed": 3}, func(c object) string { return c["text"].(string) })
	f("completions of token ids", "/v1/completions", object{"prompt": Tokenize("né"), "echo": true, "max_tokens": 9}, func(c object) string { return c["text"].(string) })
}

func TestPromptEntriesOfEchoedLogprobsComeFromPrefillOnly(t *testing.T) {
	p := newPair(t, nil)
	pre, dec := p.both("/v1/completions", p.routed(1, object{"prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 4, "ignore_eos": true}))
	lp := func(r reply) object { return r.object(t)["choices"].([]any)[0].(object)["logprobs"].(object) }
	for _, key := range []string{"tokens", "token_logprobs", "top_logprobs", "text_offset"} {
		assert.Len(t, lp(pre)[key], 3+1, key)
		assert.Len(t, lp(dec)[key], 4, key)
	}
	assert.Nil(t, lp(pre)["token_logprobs"].([]any)[0])
}

func TestTheSeedAndTheStopWordsCount(t *testing.T) {
	p := newPair(t, nil)
	prompt := Tokenize("a")
	base := Expected(prompt, Params{MaxNewTokens: 6, IgnoreEOS: true})
	word := strings.Fields(base.Text)[3]
	f := func(name string, sampling object, want Output) {
		t.Run(name, func(t *testing.T) {
			sampling["max_new_tokens"], sampling["ignore_eos"] = 6, true
			_, dec := p.both("/generate", p.routed(len(p.decode.Records())+1, object{"text": "a", "sampling_params": sampling}))
			got := dec.object(t)
			assert.Equal(t, want.Text, got["text"])
			assert.Equal(t, want.Finish, got["meta_info"].(object)["finish_reason"].(object)["type"])
		})
	}
	f("a seed", object{"sampling_seed": 5}, Expected(prompt, Params{MaxNewTokens: 6, Seed: 5, IgnoreEOS: true}))
	f("a stop word", object{"stop": word}, Expected(prompt, Params{MaxNewTokens: 6, IgnoreEOS: true, Stop: []string{word}}))
	f("a stop token", object{"stop_token_ids": base.IDs[2:3]}, Expected(prompt, Params{MaxNewTokens: 6, IgnoreEOS: true, StopTokenIDs: base.IDs[2:3]}))
	require.NotEqual(t, base.Text, Expected(prompt, Params{MaxNewTokens: 6, Seed: 5, IgnoreEOS: true}).Text)
	require.True(t, strings.HasPrefix(base.Text, Expected(prompt, Params{MaxNewTokens: 6, IgnoreEOS: true, Stop: []string{word}}).Text))
}

func TestSomeOutputsEndByThemselves(t *testing.T) {
	ended := 0
	for seed := range int64(200) {
		out := Expected(Tokenize("a"), Params{MaxNewTokens: 64, Seed: seed})
		if out.Finish == "stop" {
			ended++
			require.Equal(t, eosToken, out.IDs[len(out.IDs)-1])
			require.Equal(t, eosToken, out.Matched)
		}
	}
	require.Greater(t, ended, 10)
	require.Less(t, ended, 190)
}

func TestTheTokenizerGoesBothWays(t *testing.T) {
	p := newPair(t, nil)
	const text = "né \u0000\"x"
	require.Equal(t, text, Detokenize(Tokenize(text)))
	got := p.post(t.Context(), p.decode, "/v1/tokenize", object{"prompt": text}).object(t)
	back := p.post(t.Context(), p.decode, "/v1/detokenize", object{"tokens": got["tokens"]}).object(t)
	require.Equal(t, text, back["text"])
	several := p.post(t.Context(), p.decode, "/v1/tokenize", object{"prompt": []string{"ab", "c"}}).object(t)
	require.Equal(t, []any{2.0, 1.0}, several["count"])
	texts := p.post(t.Context(), p.decode, "/v1/detokenize", object{"tokens": several["tokens"]}).object(t)
	require.Equal(t, []any{"ab", "c"}, texts["text"])
}

func TestCachedTokensComeFromPrefill(t *testing.T) {
	p := newPair(t, nil)
	cached := func(text string) (any, any) {
		pre, dec := p.both("/generate", p.routed(len(p.decode.Records())+1, object{"text": text}))
		return pre.object(t)["meta_info"].(object)["cached_tokens"], dec.object(t)["meta_info"].(object)["cached_tokens"]
	}
	prompt := strings.Repeat("word ", 20)
	f := func(text string, want float64) {
		t.Helper()
		pre, dec := cached(text)
		assert.Equal(t, want, pre)
		assert.Equal(t, want, dec)
	}
	f(prompt, 0)
	f(prompt, 96)
	f(prompt[:50]+"other", 48)
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/flush_cache", object{}).status)
	f(prompt, 0)
}

func TestStringsAreWrittenAsJSON(t *testing.T) {
	for _, s := range []string{"", "plain", "quote \" and \\", "line\nbreak", "<&>", "né", "\u2028", "\x7f"} {
		var back string
		require.NoError(t, json.Unmarshal(appendString(nil, s), &back))
		require.Equal(t, s, back)
	}
}
