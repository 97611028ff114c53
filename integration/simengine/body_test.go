package simengine

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestABadBodyIsRefusedInTheWordsOfTheEngine(t *testing.T) {
	p := newPair(t, nil)
	f := func(name, path, body string, status int, words string) {
		t.Run(name, func(t *testing.T) {
			for _, e := range []*Engine{p.prefill, p.decode} {
				got := p.post(t.Context(), e, path, []byte(body))
				require.NoError(t, got.err)
				assert.Equal(t, status, got.status, "%s", got.body)
				assert.Contains(t, string(got.body), words)
			}
		})
	}
	const pairing = `"bootstrap_host":"127.0.0.1","bootstrap_port":1,`
	f("no JSON", "/generate", `{"text": nope`, 400, `"type":"Bad Request"`)
	f("no object", "/generate", `[]`, 400, `"type":"Bad Request"`)
	f("invalid UTF-8", "/generate", "{\"text\":\"\xff\"}", 400, `"type":"Bad Request"`)
	f("no prompt", "/generate", `{"rid":"a"}`, 400, `{"error":{"message":"Either text, input_ids or input_embeds should be provided."}}`)
	f("empty ids", "/generate", `{"input_ids":[]}`, 400, "input_ids cannot be empty.")
	f("no room", "/generate", `{"text":"a","rid":"r1"}`, 400, `Disaggregated request received without bootstrap room id. req.rid='r1'`)
	f("null room", "/generate", `{"text":"a",`+pairing+`"bootstrap_room":null}`, 400, "without bootstrap room id")
	f("room is a word", "/generate", `{"text":"a",`+pairing+`"bootstrap_room":"abc"}`, 400, "unable to parse string as an integer")
	f("room over 64 bits", "/generate", `{"text":"a",`+pairing+`"bootstrap_room":99999999999999999999999}`, 400, "valid integer")
	f("rooms too few", "/generate", `{"text":["a","b"],`+pairing+`"bootstrap_room":[1]}`, 500, "Internal Server Error")
	f("hosts too few", "/generate", `{"text":["a","b"],"bootstrap_host":["127.0.0.1"],"bootstrap_room":1}`, 500, "Internal Server Error")
	f("rooms too few, completions", "/v1/completions", `{"prompt":["a","b"],`+pairing+`"bootstrap_room":[1]}`, 500, `"type":"InternalServerError"`)
	f("rids of another number", "/generate", `{"text":["a","b"],"rid":["x"],`+pairing+`"bootstrap_room":1}`, 400, "rids length mismatch")
	f("a rid twice", "/generate", `{"text":["a","b"],"rid":["x","x"],`+pairing+`"bootstrap_room":1}`, 400, "Duplicate request IDs detected within the request")
	f("temperature", "/generate", `{"text":"a","sampling_params":{"temperature":-1}}`, 400, `{"error":{"message":"temperature must be a non-negative finite number, got -1."}}`)
	f("temperature, chat", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"temperature":-1}`, 400, `got -1.0.","type":"BadRequestError"`)
	f("no messages", "/v1/chat/completions", `{"model":"tiny"}`, 400, "Field required")
	f("no prompt, completions", "/v1/completions", `{"model":"tiny"}`, 400, "Field required")
	f("empty prompt", "/v1/completions", `{"prompt":""}`, 400, "Prompt cannot be empty")
	f("an adapter", "/v1/completions", `{"prompt":"a","model":"tiny:lora"}`, 400, "LoRA")
	f("prompt and output too long", "/generate", `{"text":"`+strings.Repeat("a", 1010)+`","sampling_params":{"max_new_tokens":40}}`, 400,
		"You requested a total of 1050 tokens: 1010 tokens from the input messages and 40 tokens for the completion.")
	f("a forced rank out of range", "/generate", `{"text":"a","routed_dp_rank":1,`+pairing+`"bootstrap_room":1}`, 400, "out of range")
}

func TestAStreamOfGenerateIs200EvenIfRefused(t *testing.T) {
	p := newPair(t, nil)
	got := p.post(t.Context(), p.decode, "/generate", object{"text": strings.Repeat("a", 1100), "stream": true})
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, []string{
		`{"error":{"message":"The input (1100 tokens) is longer than the model's context length (1024 tokens).","type":"invalid_request_error","code":400,"retryable":false}}`,
		"[DONE]",
	}, got.events())

	got = p.post(t.Context(), p.decode, "/v1/completions", object{"prompt": strings.Repeat("a", 1100), "stream": true})
	require.Equal(t, http.StatusBadRequest, got.status, "an OpenAI stream is refused before it begins")
}

func TestTheOpenAIEndpointsWantJSON(t *testing.T) {
	p := newPair(t, nil)
	req, err := http.NewRequest(http.MethodPost, p.decode.URL()+"/v1/completions", strings.NewReader(`{"prompt":"a"}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "text/plain")
	require.Equal(t, http.StatusBadRequest, p.do(req).status)
}

func TestABatchSpreadsScalarsOverItsItems(t *testing.T) {
	p := newPair(t, nil)
	f := func(name string, body object, rooms []Room, rids []string) {
		t.Run(name, func(t *testing.T) {
			body["text"] = []string{"a", "b", "c"}
			pre, dec := p.both("/generate", p.routed(body["bootstrap_room"], body))
			require.Equal(t, http.StatusOK, pre.status, "%s", pre.body)
			require.Equal(t, http.StatusOK, dec.status, "%s", dec.body)
			for _, e := range []*Engine{p.prefill, p.decode} {
				all := e.Records()
				last := all[len(all)-1]
				assert.Equal(t, rooms, last.Rooms)
				if rids != nil {
					assert.Equal(t, rids, last.Rids)
				}
			}
		})
	}
	f("one room", object{"bootstrap_room": 100, "rid": "r"}, []Room{"100", "101", "102"}, []string{"r_0", "r_1", "r_2"})
	f("a list of rooms", object{"bootstrap_room": []int{7, 5, 9}, "rid": []string{"x", "y", "z"}}, []Room{"7", "5", "9"}, []string{"x", "y", "z"})
	f("a room as text", object{"bootstrap_room": "200"}, []Room{"200", "201", "202"}, nil)
	f("more rooms than items", object{"bootstrap_room": []int{21, 22, 23, 24}}, []Room{"21", "22", "23"}, nil)
}

func TestABatchOfOneAnswersWithAList(t *testing.T) {
	p := newPair(t, nil)
	_, dec := p.both("/generate", p.routed([]int{5}, object{"text": []string{"a"}}))
	require.Equal(t, byte('['), dec.body[0])
	empty := p.post(t.Context(), p.decode, "/generate", object{"text": []string{}})
	require.Equal(t, "[]", string(empty.body))
}

func TestARidInUseIsRefused(t *testing.T) {
	p := newPair(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := p.start(ctx, p.decode, "/generate", p.routed(1, object{"text": "a", "rid": "same", "stream": true}))
	require.NoError(t, p.decode.Wait(t.Context(), 1))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
	again := p.post(t.Context(), p.decode, "/generate", p.routed(2, object{"text": "a", "rid": "same"}))
	require.Equal(t, http.StatusBadRequest, again.status)
	require.Equal(t, `{"error":{"message":"Duplicate request ID detected: same"}}`, string(again.body))
	cancel()
	<-waiting
}

func TestSeveralSamplesHangBothSides(t *testing.T) {
	p := newPair(t, nil)
	f := func(path string, body object) {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		body = p.routed(len(p.decode.Records())+1, body)
		pre := p.start(ctx, p.prefill, path, body)
		require.ErrorIs(t, p.post(ctx, p.decode, path, body).err, context.DeadlineExceeded)
		require.ErrorIs(t, (<-pre).err, context.DeadlineExceeded)
	}
	f("/generate", object{"text": "a", "sampling_params": object{"n": 2}})
	f("/v1/completions", object{"prompt": "a", "n": 2})
	f("/v1/completions", object{"prompt": "a", "n": "2"})
	require.NoError(t, p.prefill.WaitIdle(t.Context()))
	require.NoError(t, p.decode.WaitIdle(t.Context()))
	assert.Equal(t, 3, p.prefill.Loads().Inflight, "prefill never forgets them")
	assert.Equal(t, 0, p.decode.Loads().Transfer)
}

func TestHeadersReplaceFieldsOnlyWhereTheEngineIsToldTo(t *testing.T) {
	send := func(p *pair, e *Engine) reply {
		req, err := http.NewRequest(http.MethodPost, e.URL()+"/generate", strings.NewReader(`{"text":"a","bootstrap_room":"abc"}`))
		require.NoError(t, err)
		req.Header.Set("x-override-bootstrap-room", "9")
		req.Header.Set("x-override-bootstrap-host", fakeHost)
		req.Header.Set("x-override-rid", "mine")
		return p.do(req)
	}
	off := newPair(t, nil)
	require.Equal(t, http.StatusBadRequest, send(off, off.decode).status)
	on := newPair(t, func(_, d *Config) { d.HeaderOverrides = true })
	got := send(on, on.decode)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	require.Equal(t, "mine", got.object(t)["meta_info"].(object)["id"])
}

func FuzzParse(f *testing.F) {
	for _, body := range []string{
		`{"text":"a","bootstrap_room":1,"bootstrap_host":"h","bootstrap_port":null,"rid":"r"}`,
		`{"text":["a","b"],"bootstrap_room":[1,2],"rid":["x","y"],"sampling_params":[{"n":1},{"stop":["a"]}]}`,
		`{"input_ids":[[1],[2,3]],"bootstrap_room":18446744073709551615,"return_logprob":[true,false],"token_ids_logprob":[[1],[2]]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"n":"2","stream":"true","stream_options":{"include_usage":1}}`,
		`{"prompt":[[1],[2]],"echo":true,"logprobs":2,"bootstrap_room":-1,"max_tokens":1}`,
		`{"input":"a","instructions":"b","store":false,"query":"q","documents":["d"],"items":["i"],"label_token_ids":[3]}`,
		`{"input":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"a"}],"system":[{"text":"s"}],"max_tokens":2}`,
		`{"text":[],"bootstrap_room":[]}`, `[]`, `null`, "{\"text\":\"\xff\"}", `{"text":{}}`, `{"prompt":"a","stop":7}`,
	} {
		f.Add(string(epGenerate), []byte(body))
		f.Add(string(epChat), []byte(body))
		f.Add(string(epCompletions), []byte(body))
		for path := range wholeBodies {
			f.Add(path, []byte(body))
		}
	}
	l := &life{cfg: &Config{ContextLength: 64, DPSize: 2}}
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		req, err := l.parse(endpoint(path), body, nil)
		if err != nil {
			require.NotEmpty(t, schemaError(endpoint(path), err))
			return
		}
		require.True(t, req.batch || len(req.items) == 1)
		rids := map[string]bool{}
		for i, it := range req.items {
			require.Equal(t, i, it.index)
			require.NotEmpty(t, it.prompt)
			require.LessOrEqual(t, len(it.prompt)+it.params.MaxNewTokens, 64)
			require.False(t, rids[it.rid])
			rids[it.rid] = true
			require.GreaterOrEqual(t, it.room.rank(2), 0)
		}
	})
}
