package sglang_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

func TestFailuresOfRealStreams(t *testing.T) {
	for name, want := range map[string]struct {
		status  int
		aborted bool
	}{
		"lost_prefill_chat.sse":           {500, false},
		"lost_prefill_generate.sse":       {500, false},
		"too_long_generate.sse":           {400, false},
		"decode_running_aborted.sse":      {503, true},
		"decode_running_aborted_chat.sse": {503, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, ok := streamFailure(t, golden(t, "frames", name))
			require.True(t, ok)
			assert.Equal(t, want.status, f.Status)
			assert.Equal(t, want.aborted, f.Aborted)
			assert.NotEmpty(t, f.Message)
			assert.True(t, json.Valid(f.Body), "%s", f.Body)
		})
	}
}

func TestFailuresOfRealBodies(t *testing.T) {
	f, ok := sglang.BodyFailure(golden(t, "frames", "decode_running_aborted.json"))
	require.True(t, ok)
	assert.Equal(t, &sglang.Failure{Status: 503, Body: []byte(`{"error":{"message":"Aborted"}}`), Message: "Aborted", Aborted: true}, f)

	for name, status := range map[string]int{
		"flat_400_chat.json": 400, "nested_400_generate.json": 400, "too_long_completions.json": 400,
		"lost_prefill_transfer.json": 500, "prefill_waiting_aborted.json": 500,
	} {
		body := golden(t, "frames", name)
		f, ok := sglang.BodyFailure(body)
		require.True(t, ok, name)
		assert.Equal(t, status, f.Status, name)
		assert.Equal(t, string(body), string(f.Body), name)
	}
}

func TestRealAnswersAreNoFailures(t *testing.T) {
	for _, name := range []string{"generate.json", "generate_batch.json", "chat.json", "completions.json"} {
		_, ok := sglang.BodyFailure(golden(t, "frames", name))
		assert.False(t, ok, name)
	}
	for _, name := range []string{"generate.sse", "generate_batch.sse", "chat.sse", "chat_logprobs.sse", "completions.sse", "completions_batch.sse"} {
		_, ok := streamFailure(t, golden(t, "frames", name))
		assert.False(t, ok, name)
	}
}

func TestEventFailure(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       sglang.Failure // Body "": the payload as it came
	}{
		{"code", `{"error":{"message":"no","code":503}}`, sglang.Failure{Status: 503, Message: "no"}},
		{"code as text", `{"error":{"message":"no","code":"429"}}`, sglang.Failure{Status: 429, Message: "no"}},
		{"status_code", `{"error":{"message":"no","code":null,"status_code":422}}`, sglang.Failure{Status: 422, Message: "no"}},
		{"a message only", `{"error":{"message":"no"}}`, sglang.Failure{Status: 400, Message: "no"}},
		{"a code that is a word", `{"error":{"message":"no","code":"model_not_found"}}`, sglang.Failure{Status: 400, Message: "no"}},
		{"a code that is no error", `{"error":{"message":"no","code":200}}`, sglang.Failure{Status: 400, Message: "no"}},
		{"a code above 599", `{"error":{"message":"no","code":600}}`, sglang.Failure{Status: 400, Message: "no"}},
		{"a bare message", `{"error":"no"}`, sglang.Failure{Status: 400, Message: "no"}},
		{"an escaped message", `{"error":{"message":"n\u006f \"x\""}}`, sglang.Failure{Status: 400, Message: `no "x"`}},
		{"flat", `{"object":"error","message":"no","type":"500","param":null,"code":500}`, sglang.Failure{Status: 500, Message: "no"}},
		{"white space around it goes", " {\"error\":{\"code\":500}}\n", sglang.Failure{Status: 500, Body: []byte(`{"error":{"code":500}}`)}},
		{
			"an abort with a status",
			`{"text":"","meta_info":{"id":"a","finish_reason":{"type":"abort","message":"lost \"x\"","status_code":500,"err_type":null}}}`,
			sglang.Failure{Status: 500, Body: []byte(`{"error":{"message":"lost \"x\""}}`), Message: `lost "x"`},
		},
		{
			"an abort without one",
			`{"meta_info":{"finish_reason":{"type":"abort","message":"Abort in waiting queue"}}}`,
			sglang.Failure{Status: 503, Body: []byte(`{"error":{"message":"Abort in waiting queue"}}`), Message: "Abort in waiting queue", Aborted: true},
		},
		{
			"an abort whose status is null",
			`{"meta_info":{"finish_reason":{"type":"abort","message":"Aborted","status_code":null}}}`,
			sglang.Failure{Status: 503, Body: []byte(`{"error":{"message":"Aborted"}}`), Message: "Aborted", Aborted: true},
		},
		{
			"an abort whose status is odd",
			`{"meta_info":{"finish_reason":{"type":"abort","message":"Aborted","status_code":0}}}`,
			sglang.Failure{Status: 500, Body: []byte(`{"error":{"message":"Aborted"}}`), Message: "Aborted"},
		},
		{
			"an abort without a message",
			`{"meta_info":{"finish_reason":{"type":"abort"}}}`,
			sglang.Failure{Status: 503, Body: []byte(`{"error":{"message":"The request was aborted on the engine."}}`), Message: "The request was aborted on the engine.", Aborted: true},
		},
		{
			"an aborted choice",
			`{"choices":[{"index":0,"finish_reason":null},{"index":1,"delta":{},"finish_reason":"abort"}]}`,
			sglang.Failure{
				Status: 503, Message: "The request was aborted on the engine.", Aborted: true,
				Body: []byte(`{"object":"error","message":"The request was aborted on the engine.","type":"ServiceUnavailable","param":null,"code":503}`),
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := []byte(c.data)
			f, ok := sglang.EventFailure(data)
			require.True(t, ok)
			if c.want.Body == nil {
				c.want.Body = []byte(c.data)
			}
			clear(data)
			assert.Equal(t, &c.want, f)
		})
	}
}

func TestWordsInAnswersAreNoFailures(t *testing.T) {
	for name, data := range map[string]string{
		"the words in text":           `{"text":"error abort \"error\" \"abort\"","meta_info":{"finish_reason":null}}`,
		"a frame in text":             `{"text":"{\"error\":{\"message\":\"no\",\"code\":500}}","meta_info":{}}`,
		"a frame in a delta":          `{"choices":[{"delta":{"content":"data: {\"error\":{\"code\":500}}"},"finish_reason":null}]}`,
		"the word as a whole text":    `{"text":"error","meta_info":{"finish_reason":{"type":"stop","matched":"abort"}}}`,
		"the word as a token":         `{"choices":[{"logprobs":{"tokens":["error","abort"]},"finish_reason":"stop"}]}`,
		"the key inside tool calls":   `{"choices":[{"message":{"tool_calls":[{"error":{"message":"x"}}]},"finish_reason":"stop"}]}`,
		"the key inside meta_info":    `{"meta_info":{"error":{"message":"x"},"finish_reason":{"type":"stop"}}}`,
		"an error that is null":       `{"id":"r","object":"response","error":null}`,
		"a message without an object": `{"message":"error","object":"chat.completion","x":"error"}`,
		"abort outside finish_reason": `{"text":"abort","meta_info":{"id":"abort","finish_reason":{"type":"length","length":1}}}`,
		"a choice that says type":     `{"choices":[{"finish_reason":{"type":"abort"}}]}`,
		"an item of a batch":          `[{"error":{"message":"x"}}]`,
		"[DONE]":                      `[DONE]`,
		"no JSON":                     `{"error":{"message":"no"}`,
		"more behind it":              `{"error":{"message":"no"}}{}`,
		"a text":                      `"error"`,
		"nothing":                     ``,
	} {
		t.Run(name, func(t *testing.T) {
			f, ok := sglang.EventFailure([]byte(data))
			assert.False(t, ok)
			assert.Nil(t, f)
		})
	}
}

func TestBodyFailureOfABatch(t *testing.T) {
	const (
		fine    = `{"meta_info":{"finish_reason":{"type":"stop"}}}`
		aborted = `{"meta_info":{"finish_reason":{"type":"abort","message":"Aborted","status_code":null}}}`
		lost    = `{"meta_info":{"finish_reason":{"type":"abort","message":"lost","status_code":500}}}`
		busy    = `{"meta_info":{"finish_reason":{"type":"abort","message":"busy","status_code":503}}}`
	)
	for body, want := range map[string]string{
		"[" + fine + "," + lost + "," + busy + "]": "lost",
		"[" + fine + "," + aborted + "]":           "Aborted",
		"[" + aborted + "," + busy + "]":           "busy",
		"[" + busy + "," + aborted + "]":           "busy",
	} {
		f, ok := sglang.BodyFailure([]byte(body))
		require.True(t, ok, body)
		assert.Equal(t, want, f.Message, body)
	}
}

func TestUsage(t *testing.T) {
	type counts struct{ prompt, completion, cached int }
	for name, want := range map[string]counts{
		"generate.json":       {40, 6, 0},
		"generate_batch.json": {22, 12, 20},
		"chat.json":           {5, 5, 0},
		"completions.json":    {2, 4, 0},
	} {
		var got counts
		var ok bool
		got.prompt, got.completion, got.cached, ok = sglang.Usage(golden(t, "frames", name))
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	t.Run("in a stream", func(t *testing.T) {
		for name, want := range map[string]counts{"chat.sse": {5, 4, 4}, "completions.sse": {2, 4, 1}, "generate.sse": {2, 4, 1}} {
			var last counts
			for _, event := range eventsOf(t, golden(t, "frames", name)) {
				if prompt, completion, cached, ok := sglang.Usage(sse.Data(event)); ok {
					last = counts{prompt, completion, cached}
				}
			}
			assert.Equal(t, want, last, name)
		}
	})
	f := func(payload string, want counts) {
		t.Helper()
		prompt, completion, cached, ok := sglang.Usage([]byte(payload))
		assert.True(t, ok, payload)
		assert.Equal(t, want, counts{prompt, completion, cached}, payload)
	}
	const response = `"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":5},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":1},"total_tokens":10}`
	f(`{"object":"response","output":[{"usage":{"output_tokens":9}}],`+response+`}`, counts{7, 3, 5})
	f(`{"type":"response.completed","response":{"object":"response",`+response+`}}`, counts{7, 3, 5})
	const message = `"usage":{"input_tokens":7,"cache_creation_input_tokens":2,"cache_read_input_tokens":5,"output_tokens":3}`
	f(`{"type":"message","content":[],`+message+`}`, counts{7, 3, 5})
	f(`{"type":"message_start","message":{"type":"message",`+message+`}}`, counts{7, 3, 5})
	f(`{"type":"message_delta","delta":{},"usage":{"output_tokens":3}}`, counts{0, 3, 0})
	f(`{"usage":{"input_tokens":2,"cache_read_input_tokens":5,"output_tokens":3}}`, counts{7, 3, 5}) // the cached ones are not in it
	for _, none := range []string{
		`{"input_tokens":7}`, `{"type":"response.created","response":{"usage":null,"max_output_tokens":3}}`,
		`{"message":"\"output_tokens\": 3","max_tokens":1}`, `{"choices":[{"message":{"usage":{"output_tokens":3}}}]}`,
		``, `[DONE]`, `{"choices":[],"usage":null}`, `{"text":"\"completion_tokens\": 3"}`,
		`{"choices":[{"tokens":["completion_tokens"]}]}`, `{"usage":{"completion_tokens":3}`,
	} {
		_, _, _, ok := sglang.Usage([]byte(none))
		assert.False(t, ok, none)
	}
}

func streamFailure(t testing.TB, stream []byte) (*sglang.Failure, bool) {
	t.Helper()
	for _, event := range eventsOf(t, stream) {
		if f, ok := sglang.EventFailure(sse.Data(event)); ok {
			return f, true
		}
	}
	return nil, false
}
