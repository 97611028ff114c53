package sglang_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

// The golden files are answers of real engines: "pair" came from a prefill and a
// decode; "whole" came from one engine that does both, and was taken apart into
// what a pair would have said, so that the splice has to give it back.
func TestBodyHoldsPrefillsValues(t *testing.T) {
	for name, ep := range map[string]pd.Endpoint{
		"generate_pair":           pd.Generate,
		"generate_whole":          pd.Generate,
		"generate_batch":          pd.Generate,
		"generate_token_ids_pair": pd.Generate,
		"completions_whole":       pd.Completions,
		"completions_echo_pair":   pd.Completions,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := sglang.ReadPrompt(ep, golden(t, "splice", name+".prefill.json"))
			require.NoError(t, err)
			decode := golden(t, "splice", name+".decode.json")
			before := bytes.Clone(decode)
			got, err := p.Body(ep, decode)
			require.NoError(t, err)
			assert.Equal(t, string(golden(t, "splice", name+".want.json")), string(got))
			assert.Equal(t, string(before), string(decode), "decode's own bytes stay")
		})
	}
}

func TestEventsHoldPrefillsValues(t *testing.T) {
	for name, ep := range map[string]pd.Endpoint{
		"generate_stream_pair":           pd.Generate,
		"generate_stream_whole":          pd.Generate,
		"generate_stream_batch":          pd.Generate,
		"generate_token_ids_stream_pair": pd.Generate,
		"completions_stream":             pd.Completions,
		"completions_echo_stream_pair":   pd.Completions,
	} {
		t.Run(name, func(t *testing.T) {
			p := promptOf(t, ep, golden(t, "splice", name+".prefill.sse"))
			var got strings.Builder
			for _, event := range eventsOf(t, golden(t, "splice", name+".decode.sse")) {
				spliced, err := p.Event(ep, event)
				require.NoError(t, err)
				got.Write(spliced)
			}
			assert.Equal(t, string(golden(t, "splice", name+".want.sse")), got.String())
		})
	}
}

func TestBodySplicesGenerate(t *testing.T) {
	const lists = `{"meta_info":{"input_token_logprobs":[[null,1,null],[-2.50,2,null]],"input_top_logprobs":[null,[[-1E-3,7,null]]],"input_token_ids_logprobs":[null,[[-4,5,null]]],"output_token_ids_logprobs":[[[-3,5,null]]]}}`
	for _, c := range []struct{ name, prefill, decode, want string }{
		{
			"in decode's order of members, numbers as prefill spelt them", lists,
			`{"meta_info":{"input_top_logprobs":[],"x":1,"input_token_logprobs":[]}}`,
			`{"meta_info":{"input_top_logprobs":[null,[[-1E-3,7,null]]],"x":1,"input_token_logprobs":[[null,1,null],[-2.50,2,null]]}}`,
		},
		{
			"white space around the value stays", lists,
			"{ \"meta_info\" : { \"input_token_logprobs\" :\t[ ] } }\n",
			"{ \"meta_info\" : { \"input_token_logprobs\" :\t[[null,1,null],[-2.50,2,null]] } }\n",
		},
		{
			"a list that decode has is replaced", lists,
			`{"meta_info":{"input_token_logprobs":[[-9,1,null]]}}`,
			`{"meta_info":{"input_token_logprobs":[[null,1,null],[-2.50,2,null]]}}`,
		},
		{
			"null is replaced", lists,
			`{"meta_info":{"input_token_logprobs":null}}`,
			`{"meta_info":{"input_token_logprobs":[[null,1,null],[-2.50,2,null]]}}`,
		},
		{
			"an escaped name is the same name", lists,
			`{"meta_info":{"\u0069nput_token_logprobs":[]}}`,
			`{"meta_info":{"\u0069nput_token_logprobs":[[null,1,null],[-2.50,2,null]]}}`,
		},
		{"a list that decode lacks is not added", lists, `{"meta_info":{"id":"a"}}`, `{"meta_info":{"id":"a"}}`},
		{"the names mean nothing outside meta_info", lists, `{"input_token_logprobs":[],"meta_info":{"x":{"input_token_logprobs":[]}}}`, `{"input_token_logprobs":[],"meta_info":{"x":{"input_token_logprobs":[]}}}`},
		{"nor inside text", lists, `{"text":"\"meta_info\":{\"input_token_logprobs\":[]}","meta_info":{}}`, `{"text":"\"meta_info\":{\"input_token_logprobs\":[]}","meta_info":{}}`},
		{"prefill without lists", `{"meta_info":{}}`, `{"meta_info":{"input_token_logprobs":[]}}`, `{"meta_info":{"input_token_logprobs":[]}}`},
		{
			"only the elements of a batch that asked",
			`[{"meta_info":{}},{"meta_info":{"input_token_logprobs":[[null,3,null]]}}]`,
			`[{"meta_info":{}},{"meta_info":{"input_token_logprobs":[]}}]`,
			`[{"meta_info":{}},{"meta_info":{"input_token_logprobs":[[null,3,null]]}}]`,
		},
		{"an item that prefill lacks", `[{"meta_info":{"input_token_logprobs":[1]}}]`, `[{"meta_info":{}},{"meta_info":{"input_token_logprobs":[]}}]`, `[{"meta_info":{}},{"meta_info":{"input_token_logprobs":[]}}]`},
		{
			"token ids begin with a null for prefill's token", lists,
			`{"meta_info":{"output_token_logprobs":[[-1,8,null],[-1,9,null]],"output_token_ids_logprobs":[null,[[-6,5,null]]]}}`,
			`{"meta_info":{"output_token_logprobs":[[-1,8,null],[-1,9,null]],"output_token_ids_logprobs":[[[-3,5,null]],[[-6,5,null]]]}}`,
		},
		{
			"token ids of the first token alone", lists,
			`{"meta_info":{"output_token_logprobs":[[-1,8,null]],"output_token_ids_logprobs":[ null ]}}`,
			`{"meta_info":{"output_token_logprobs":[[-1,8,null]],"output_token_ids_logprobs":[ [[-3,5,null]] ]}}`,
		},
		{"token ids complete", lists, `{"meta_info":{"output_token_logprobs":[1],"output_token_ids_logprobs":[2]}}`, `{"meta_info":{"output_token_logprobs":[1],"output_token_ids_logprobs":[2]}}`},
		{
			"flat top logprobs belong together", `{"meta_info":{"input_top_logprobs_val_flat":[-1.5],"input_top_logprobs_idx_flat":[7],"input_top_logprobs_shape":[1,1],"input_top_logprobs_null_prefix":1,"input_top_logprobs_val_flat_b64":"QUJD","input_top_logprobs_val_flat_b64_dtype":"float32"}}`,
			`{"meta_info":{"input_top_logprobs_val_flat":[],"input_top_logprobs_idx_flat":[],"input_top_logprobs_shape":[0,2],"input_top_logprobs_null_prefix":0,"input_top_logprobs_val_flat_b64":""}}`,
			`{"meta_info":{"input_top_logprobs_val_flat":[-1.5],"input_top_logprobs_idx_flat":[7],"input_top_logprobs_shape":[1,1],"input_top_logprobs_null_prefix":1,"input_top_logprobs_val_flat_b64":"QUJD"}}`,
		},
		{"token ids without entries", lists, `{"meta_info":{"output_token_logprobs":[1,2],"output_token_ids_logprobs":[]}}`, `{"meta_info":{"output_token_logprobs":[1,2],"output_token_ids_logprobs":[]}}`},
		{"an error", lists, `{"error":{"message":"no"}}`, `{"error":{"message":"no"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := sglang.ReadPrompt(pd.Generate, []byte(c.prefill))
			require.NoError(t, err)
			got, err := p.Body(pd.Generate, []byte(c.decode))
			require.NoError(t, err)
			assert.Equal(t, c.want, string(got))
		})
	}
}

func TestBodySplicesCompletions(t *testing.T) {
	const prefill = `{"choices":[{"index":0,"text":"abX","logprobs":{"text_offset":[-1,-1,-1],"token_logprobs":[null,-2,-3],"tokens":["a","b","X"],"top_logprobs":[null,{"b":-2},{"X":-3}]}}]}`
	for _, c := range []struct{ name, decode, want string }{
		{
			"the prompt's entries come first, lists that decode has only",
			`{"choices":[{"index":0,"logprobs":{"token_logprobs":[-3,-4],"tokens":["X","Y"],"top_logprobs":null}}]}`,
			`{"choices":[{"index":0,"logprobs":{"token_logprobs":[null,-2,-3,-4],"tokens":["a","b","X","Y"],"top_logprobs":null}}]}`,
		},
		{
			"before nothing",
			`{"choices":[{"logprobs":{"token_logprobs":[ ],"tokens":[]}}]}`,
			`{"choices":[{"logprobs":{"token_logprobs":[null,-2 ],"tokens":["a","b"]}}]}`,
		},
		{
			"not before a prompt that is there",
			`{"choices":[{"logprobs":{"token_logprobs":[null,-2,-3],"tokens":["a","b","X"]}}]}`,
			`{"choices":[{"logprobs":{"token_logprobs":[null,-2,-3],"tokens":["a","b","X"]}}]}`,
		},
		{
			"but before a text that repeats the prompt",
			`{"choices":[{"logprobs":{"token_logprobs":[-5,-6],"tokens":["a","b"]}}]}`,
			`{"choices":[{"logprobs":{"token_logprobs":[null,-2,-5,-6],"tokens":["a","b","a","b"]}}]}`,
		},
		{"logprobs not asked for", `{"choices":[{"index":0,"logprobs":null}]}`, `{"choices":[{"index":0,"logprobs":null}]}`},
		{"another index", `{"choices":[{"index":1,"logprobs":{"tokens":[]}}]}`, `{"choices":[{"index":1,"logprobs":{"tokens":[]}}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := sglang.ReadPrompt(pd.Completions, []byte(prefill))
			require.NoError(t, err)
			got, err := p.Body(pd.Completions, []byte(c.decode))
			require.NoError(t, err)
			assert.Equal(t, c.want, string(got))
		})
	}
}

func TestRoutedExpertsAreMergedAsBytes(t *testing.T) {
	b64 := func(rows string) string { return base64.StdEncoding.EncodeToString([]byte(rows)) }
	for ep, shape := range map[pd.Endpoint]string{
		pd.Generate:    `{"text":"","meta_info":{"routed_experts":%s,"id":"a"}}`,
		pd.Chat:        `{"choices":[{"index":0}],"sglext":{"routed_experts":%s}}`,
		pd.Completions: `{"choices":[{"index":0,"logprobs":null}],"sglext":{"routed_experts":%s}}`,
	} {
		for _, c := range []struct{ name, prefill, decode, want string }{
			{"prefill's rows, then decode's", `"` + b64("PPPPPPPP") + `"`, `"` + b64("00000000DDDD") + `"`, `"` + b64("PPPPPPPPDDDD") + `"`},
			{"of the same length", `"` + b64("PPPP") + `"`, `"` + b64("0000") + `"`, `"` + b64("PPPP") + `"`},
			{"prefill has more", `"` + b64("PPPPPPPP") + `"`, `"` + b64("DDDD") + `"`, `"` + b64("DDDD") + `"`},
			{"prefill has none", `null`, `"` + b64("DDDD") + `"`, `"` + b64("DDDD") + `"`},
			{"decode has none", `"` + b64("PPPP") + `"`, `null`, `null`},
			{"decode's are no base64", `"` + b64("PPPP") + `"`, `"?"`, `"?"`},
			{"prefill's are no base64", `"?"`, `"` + b64("DDDD") + `"`, `"` + b64("DDDD") + `"`},
		} {
			t.Run(ep.String()+": "+c.name, func(t *testing.T) {
				p, err := sglang.ReadPrompt(ep, fmt.Appendf(nil, shape, c.prefill))
				require.NoError(t, err)
				got, err := p.Body(ep, fmt.Appendf(nil, shape, c.decode))
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprintf(shape, c.want), string(got))
			})
		}
	}

	t.Run("in the sglext event of a stream", func(t *testing.T) {
		p := promptOf(t, pd.Chat, []byte("data: {\"choices\":[{\"index\":0}]}\n\ndata: {\"choices\":[],\"sglext\":{\"routed_experts\":\""+b64("PPPP")+"\"}}\n\n"))
		got, err := p.Event(pd.Chat, []byte("data: {\"choices\":[],\"sglext\":{\"routed_experts\":\""+b64("0000DDDD")+"\"}}\n\n"))
		require.NoError(t, err)
		assert.Equal(t, "data: {\"choices\":[],\"sglext\":{\"routed_experts\":\""+b64("PPPPDDDD")+"\"}}\n\n", string(got))
	})
	t.Run("not in a stream of several items, which does not say whose they are", func(t *testing.T) {
		p := promptOf(t, pd.Completions, []byte("data: {\"choices\":[{\"index\":0}]}\n\ndata: {\"choices\":[{\"index\":1}]}\n\ndata: {\"choices\":[],\"sglext\":{\"routed_experts\":\""+b64("PPPP")+"\"}}\n\n"))
		event := "data: {\"choices\":[],\"sglext\":{\"routed_experts\":\"" + b64("0000DDDD") + "\"}}\n\n"
		got, err := p.Event(pd.Completions, []byte(event))
		require.NoError(t, err)
		assert.Equal(t, event, string(got))
	})
}

func TestEventIsReturnedAsItCame(t *testing.T) {
	p := promptOf(t, pd.Generate, golden(t, "splice", "generate_stream_pair.prefill.sse"))
	for name, event := range map[string]string{
		"[DONE]":                   "data: [DONE]\n\n",
		"a comment":                ": ping\n\n",
		"an error frame":           "data: {\"error\":{\"message\":\"no\",\"code\":500}}\n\n",
		"an item not answered yet": "data: {\"meta_info\":{\"input_token_logprobs\":[]},\"index\":1}\n\n",
		"an event without lists":   "data: {\"meta_info\":{\"finish_reason\":null}}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			in := []byte(event)
			got, err := p.Event(pd.Generate, in)
			require.NoError(t, err)
			assert.Equal(t, event, string(got))
			assert.Same(t, &in[0], &got[0], "without a copy")
		})
	}
}

func TestEventKeepsItsFraming(t *testing.T) {
	p := promptOf(t, pd.Generate, []byte("data: {\"meta_info\":{\"input_token_logprobs\":[1]}}\n\n"))
	got, err := p.Event(pd.Generate, []byte("id: 7\r\ndata:{\"meta_info\":{\"input_token_logprobs\":[]}}\r\n: c\r\n\r\n"))
	require.NoError(t, err)
	assert.Equal(t, "id: 7\r\ndata:{\"meta_info\":{\"input_token_logprobs\":[1]}}\r\n: c\r\n\r\n", string(got))
}

func TestBrokenJSONIsAnErrorThatShowsNoText(t *testing.T) {
	for _, ep := range []pd.Endpoint{pd.Generate, pd.Completions} {
		for _, body := range []string{`{"secret":`, `{"a":1}secret`, `{"secret" 1}`} {
			_, err := sglang.ReadPrompt(ep, []byte(body))
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "secret")

			got, err := new(sglang.PromptData).Body(ep, []byte(body))
			require.Error(t, err)
			assert.Equal(t, body, string(got), "for a caller that passes it on")
		}
	}
}

func TestAddEventNamesTheItemAndKeepsACopy(t *testing.T) {
	p := new(sglang.PromptData)
	assert.False(t, p.Has(3))
	data := []byte(`{"meta_info":{"input_token_logprobs":[1]},"index":3}`)
	index, err := p.AddEvent(pd.Generate, data)
	require.NoError(t, err)
	assert.Equal(t, 3, index)
	assert.True(t, p.Has(3))
	assert.False(t, p.Has(0))

	clear(data)
	got, err := p.Event(pd.Generate, []byte("data: {\"meta_info\":{\"input_token_logprobs\":[]},\"index\":3}\n\n"))
	require.NoError(t, err)
	assert.Equal(t, "data: {\"meta_info\":{\"input_token_logprobs\":[1]},\"index\":3}\n\n", string(got))

	for _, none := range []string{"[DONE]", `{"error":{"message":"no"}}`} {
		index, err = p.AddEvent(pd.Generate, []byte(none))
		require.NoError(t, err)
		assert.Equal(t, -1, index, none)
	}
	_, err = p.AddEvent(pd.Generate, []byte(`{"meta_info":`))
	require.Error(t, err)
}

func TestEventIndex(t *testing.T) {
	for _, c := range []struct {
		ep   pd.Endpoint
		data string
		want int
	}{
		{pd.Generate, `{"text":"","meta_info":{}}`, 0},
		{pd.Generate, `{"text":"","meta_info":{"index":9},"index":2}`, 2},
		{pd.Generate, `{"index":2,"error":{"message":"no"}}`, -1},
		{pd.Generate, `[DONE]`, -1},
		{pd.Generate, `{"meta_info"`, -1},
		{pd.Generate, ``, -1},
		{pd.Chat, `{"choices":[{"index":1,"delta":{"index":7}}]}`, 1},
		{pd.Chat, `{"choices":[{"delta":{}}]}`, 0},
		{pd.Chat, `{"choices":[],"usage":{}}`, -1},
		{pd.Completions, `{"index":5,"choices":[{"index":1}]}`, 1},
		{pd.Completions, `{"object":"error"}`, -1},
	} {
		assert.Equal(t, c.want, sglang.EventIndex(c.ep, []byte(c.data)), c.data)
	}
}

func golden(t testing.TB, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", dir, name))
	require.NoError(t, err)
	return data
}

func eventsOf(t testing.TB, stream []byte) (events [][]byte) {
	t.Helper()
	var f sse.Framer
	require.NoError(t, f.Push(stream, func(event []byte) error {
		events = append(events, event)
		return nil
	}))
	require.Empty(t, f.Pending())
	return events
}

func promptOf(t testing.TB, ep pd.Endpoint, stream []byte) *sglang.PromptData {
	t.Helper()
	p := new(sglang.PromptData)
	for _, event := range eventsOf(t, stream) {
		_, err := p.AddEvent(ep, sse.Data(event))
		require.NoError(t, err)
	}
	return p
}
