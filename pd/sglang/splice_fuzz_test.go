package sglang_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

// FuzzSpliceEvent holds that a splice changes nothing but the values it is about,
// leaves no JSON worse than it was, and treats a body as it treats an event.
func FuzzSpliceEvent(f *testing.F) {
	for _, name := range []string{"generate_stream_pair", "generate_stream_whole", "generate_stream_batch", "completions_stream"} {
		prefill := sse.Data(eventsOf(f, golden(f, "splice", name+".prefill.sse"))[0])
		for _, event := range eventsOf(f, golden(f, "splice", name+".decode.sse")) {
			for ep := range pd.Completions + 1 {
				f.Add(uint8(ep), prefill, sse.Data(event))
			}
		}
	}
	for _, name := range []string{"generate_batch", "generate_token_ids_pair", "completions_whole"} {
		for ep := range pd.Completions + 1 {
			f.Add(uint8(ep), golden(f, "splice", name+".prefill.json"), golden(f, "splice", name+".decode.json"))
		}
	}
	f.Add(uint8(1), []byte(`{"sglext":{"routed_experts":"UFBQUA=="}}`), []byte(`{"sglext":{"routed_experts":"MDAwMERERA=="}}`))
	f.Fuzz(func(t *testing.T, endpoint uint8, prefill, decode []byte) {
		ep := pd.Endpoint(endpoint % uint8(pd.Completions+1))
		p, err := sglang.ReadPrompt(ep, prefill)
		if err != nil {
			p = new(sglang.PromptData)
		}
		before := bytes.Clone(decode)
		body, err := p.Body(ep, decode)
		require.Equal(t, before, decode)
		if !isJSON(decode) {
			require.Equal(t, decode, body)
			return
		}
		require.NoError(t, err)
		requireOnlySpliced(t, decode, body)

		sglang.EventIndex(ep, decode)
		if bytes.ContainsAny(decode, "\r\n") {
			return // an event's payload is one line
		}
		event := append(append([]byte("data: "), decode...), "\n\n"...)
		spliced, err := p.Event(ep, event)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(spliced, []byte("data: ")) && bytes.HasSuffix(spliced, []byte("\n\n")))
		requireOnlySpliced(t, decode, spliced[len("data: "):len(spliced)-2])
	})
}

// splicedValues are the values that a splice may change, by their JSON pointer.
var splicedValues = regexp.MustCompile(`^(/\d+)?/meta_info/(input_token_logprobs|input_top_logprobs\w*|input_token_ids_logprobs|output_token_ids_logprobs|routed_experts)$|` +
	`^/choices/\d+/logprobs/(tokens|token_logprobs|top_logprobs|text_offset)$|^/sglext/routed_experts$`)

func requireOnlySpliced(t *testing.T, before, after []byte) {
	t.Helper()
	if bytes.Equal(before, after) {
		return
	}
	require.True(t, isJSON(after), "%q became %q", before, after)
	require.Equal(t, string(withoutSpliced(t, before)), string(withoutSpliced(t, after)))
}

// withoutSpliced returns the payload without the values that a splice may change.
func withoutSpliced(t *testing.T, payload []byte) (rest []byte) {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewBuffer(payload), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	from := 0
	for dec.PeekKind() > 0 {
		tok, err := dec.ReadToken()
		require.NoError(t, err)
		kind, length := dec.StackIndex(dec.StackDepth())
		if tok.Kind() != '"' || kind != '{' || length%2 == 0 || !splicedValues.MatchString(string(dec.StackPointer())) {
			continue // no member's name, or one of no interest
		}
		value, err := dec.ReadValue()
		require.NoError(t, err)
		end := int(dec.InputOffset())
		rest = append(rest, payload[from:end-len(value)]...)
		from = end
	}
	return append(rest, payload[from:]...)
}

func isJSON(payload []byte) bool {
	return jsontext.Value(payload).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// FuzzEventFailure holds that a failure can always be answered with, and that no
// payload makes the readers panic.
func FuzzEventFailure(f *testing.F) {
	for _, name := range []string{
		"lost_prefill_chat.sse", "lost_prefill_generate.sse", "too_long_generate.sse",
		"decode_running_aborted.sse", "decode_running_aborted_chat.sse", "generate.sse", "chat.sse", "chat_logprobs.sse",
	} {
		for _, event := range eventsOf(f, golden(f, "frames", name)) {
			f.Add(sse.Data(event))
		}
	}
	f.Add(golden(f, "frames", "generate_batch.json"))
	f.Add([]byte(`{"error":{"message":"\ud800","code":"0500"}}`))
	f.Add([]byte(`{"\u0065rror":1,"object":"error","code":-1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		failure, ok := sglang.EventFailure(data)
		body, bodyOK := sglang.BodyFailure(data)
		require.Equal(t, ok, bodyOK)
		require.Equal(t, failure, body)
		if ok {
			require.True(t, failure.Status >= 400 && failure.Status <= 599)
			require.True(t, json.Valid(failure.Body), "%q", failure.Body)
			sglang.Classify(failure.Message)
		}
		if prompt, completion, cached, ok := sglang.Usage(data); ok {
			require.True(t, isJSON(data) && prompt >= 0 && completion >= 0 && cached >= 0)
		}
	})
}
