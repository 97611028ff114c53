package pd

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// updateMerged rewrites the goldens of merged answers from what the code makes.
var updateMerged = flag.Bool("update-merged", false, "rewrite testdata/merge/*.golden")

// capture is an answer of a real engine.
func capture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "merge", name))
	require.NoError(t, err)
	return string(b)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "merge", name+".golden")
	if *updateMerged {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// another is the same answer as a second sample would give it.
func another(answer string) string {
	return strings.NewReplacer(
		`"id":"`, `"id":"2nd-`, `"created":17959656`, `"created":17959657`,
		`"San`, `"Two`, `"text":"R`, `"text":"S`, `"completion_tokens":4`, `"completion_tokens":14`,
	).Replace(answer)
}

func testMerging(ep Endpoint, n int) merging {
	return newMerging(&Request{Endpoint: ep, Rid: "call-1"}, n)
}

func mergePlain(t *testing.T, ep Endpoint, bodies ...string) string {
	t.Helper()
	got, err := testMerging(ep, len(bodies)).plain(toBytes(bodies))
	require.NoError(t, err)
	return string(got)
}

func toBytes(texts []string) [][]byte {
	out := make([][]byte, len(texts))
	for i, s := range texts {
		out[i] = []byte(s)
	}
	return out
}

func TestPlainMergeEqualsAnEngineThatRunsNItself(t *testing.T) {
	whole := capture(t, "generate_n2.json")
	var items []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(whole), &items))
	require.Len(t, items, 2)
	assert.Equal(t, whole, mergePlain(t, Generate, string(items[0]), string(items[1])))
}

func TestPlainMergeOfRealAnswers(t *testing.T) {
	for name, ep := range map[string]Endpoint{
		"generate_batch.json": Generate, "chat.json": Chat, "completions.json": Completions,
	} {
		t.Run(name, func(t *testing.T) {
			answer := capture(t, name)
			golden(t, name, mergePlain(t, ep, answer, another(answer)))
		})
	}
}

func TestPlainMerge(t *testing.T) {
	for _, f := range []struct {
		name   string
		ep     Endpoint
		bodies []string
		want   string
	}{
		{
			"generate: one prompt gives one item a sample", Generate,
			[]string{`{"text":"a"}`, " {\"text\": \"b\"}\n", `{"text":"c"}`},
			`[{"text":"a"},{"text": "b"},{"text":"c"}]`,
		},
		{
			"generate: a batch is prompt-major", Generate,
			[]string{`[{"p":0,"s":0},{"p":1,"s":0}]`, `[{"p":0,"s":1}, {"p":1,"s":1}]`},
			`[{"p":0,"s":0},{"p":0,"s":1},{"p":1,"s":0},{"p":1,"s":1}]`,
		},
		{"generate: a batch of one", Generate, []string{`[{"a":1}]`, `[{"a":2}]`}, `[{"a":1},{"a":2}]`},
		{"generate: an empty batch", Generate, []string{`[]`, `[ ]`}, `[]`},
		{
			"generate: numbers and texts keep their spelling", Generate,
			[]string{`{"text":"\u00e9é\ud800","logprob":-1.50e+00}`, `{"a":123456789012345678901}`},
			`[{"text":"\u00e9é\ud800","logprob":-1.50e+00},{"a":123456789012345678901}]`,
		},
		{
			"chat: choices are renumbered where the index stands", Chat,
			[]string{`{"id":"x","choices":[{"message":"a","index":0}],"created":1}`, `{"id":"y","choices":[{"index": 0 ,"message":"b"}],"created":2}`},
			`{"id":"call-1","choices":[{"message":"a","index":0},{"index": 1 ,"message":"b"}],"created":1}`,
		},
		{
			"completions: a batch is prompt-major", Completions,
			[]string{`{"choices":[{"index":0,"text":"00"},{"index":1,"text":"10"}]}`, `{"choices":[{"index":0,"text":"01"},{"index":1,"text":"11"}]}`},
			`{"choices":[{"index":0,"text":"00"},{"index":1,"text":"01"},{"index":2,"text":"10"},{"index":3,"text":"11"}]}`,
		},
		{
			"a choice without an index gets one", Chat,
			[]string{`{"choices":[{}]}`, `{"choices":[{"text":"b"}]}`},
			`{"choices":[{"index":0},{"index":1,"text":"b"}]}`,
		},
		{
			"every copy of an index is renumbered, in any spelling", Chat,
			[]string{`{"choices":[{"index":0}]}`, `{"choices":[{"index":7,"\u0069ndex":0}]}`},
			`{"choices":[{"index":0},{"index":1,"\u0069ndex":1}]}`,
		},
		{"null usage stays", Chat, []string{`{"choices":[],"usage":null}`, `{"choices":[],"usage":null}`}, `{"choices":[],"usage":null}`},
		{
			"usage that only a later sample has", Chat,
			[]string{`{"choices":[],"usage":null}`, `{"choices":[],"usage":{"completion_tokens":2}}`},
			`{"choices":[],"usage":{"completion_tokens":2}}`,
		},
		{"nothing is added to an envelope", Chat, []string{`{"choices":[]}`, `{"choices":[],"usage":{},"id":"y","created":2}`}, `{"choices":[]}`},
	} {
		t.Run(f.name, func(t *testing.T) {
			assert.Equal(t, f.want, mergePlain(t, f.ep, f.bodies...))
		})
	}
}

func TestPlainMergeRefusesWhatCannotBecomeOneAnswer(t *testing.T) {
	for name, f := range map[string]struct {
		ep     Endpoint
		bodies []string
	}{
		"an empty body":              {Generate, []string{`{}`, ``}},
		"a text":                     {Generate, []string{`Internal Server Error`, `{}`}},
		"a bare value":               {Generate, []string{`{}`, `1`}},
		"two objects":                {Generate, []string{`{} {}`, `{}`}},
		"batches of different sizes": {Generate, []string{`[{},{}]`, `[{}]`}},
		"a batch and a single":       {Generate, []string{`{}`, `[{},{}]`}},
		"no choices":                 {Chat, []string{`{"choices":[]}`, `{}`}},
		"choices that are no list":   {Chat, []string{`{"choices":{}}`, `{"choices":{}}`}},
		"a choice that is no object": {Chat, []string{`{"choices":[1]}`, `{"choices":[1]}`}},
		"a choice too many":          {Chat, []string{`{"choices":[{}]}`, `{"choices":[{},{}]}`}},
		"an array":                   {Completions, []string{`[]`, `[]`}},
		"a cut object":               {Completions, []string{`{"choices":[]`, `{"choices":[]}`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := testMerging(f.ep, len(f.bodies)).plain(toBytes(f.bodies))
			assert.Error(t, err)
		})
	}
}

func TestUsageCountsThePromptOnceAndCompletionsTogether(t *testing.T) {
	for _, f := range []struct {
		name   string
		usages []string
		want   string
	}{
		{
			"the numbers of a real engine",
			[]string{
				`{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":4},"reasoning_tokens":1,"completion_tokens_details":null}`,
				`{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":5},"reasoning_tokens":2,"completion_tokens_details":null}`,
			},
			`{"prompt_tokens":5,"total_tokens":16,"completion_tokens":11,"prompt_tokens_details":{"cached_tokens":4},"reasoning_tokens":3,"completion_tokens_details":null}`,
		},
		{
			"details of any name",
			[]string{
				`{"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":1,"audio_tokens":null,"x":3,"ratio":0.5}}`,
				`{"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":10,"audio_tokens":2,"x":4,"ratio":0.5}}`,
			},
			`{"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":11,"audio_tokens":null,"x":7,"ratio":0.5}}`,
		},
		{
			"a sample without usage",
			[]string{`null`, `{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}`, `{"completion_tokens":3}`},
			`{"prompt_tokens":1,"completion_tokens":5,"total_tokens":6}`,
		},
		{"members that are not there are not made", []string{`{"prompt_tokens":1}`, `{"completion_tokens":3,"reasoning_tokens":1}`}, `{"prompt_tokens":1}`},
		{"no number", []string{`{"completion_tokens":"2","total_tokens":"3"}`, `{"completion_tokens":1}`}, `{"completion_tokens":"2","total_tokens":"3"}`},
	} {
		t.Run(f.name, func(t *testing.T) {
			bodies := make([]string, len(f.usages))
			for j, usage := range f.usages {
				bodies[j] = `{"choices":[],"usage":` + usage + `}`
			}
			assert.Equal(t, `{"choices":[],"usage":`+f.want+`}`, mergePlain(t, Chat, bodies...))
		})
	}
}

func TestThePublicIDIsWrittenAsJSON(t *testing.T) {
	m := newMerging(&Request{Endpoint: Chat, Rid: `a"b` + "\n"}, 2)
	got, err := m.plain(toBytes([]string{`{"id":"x","choices":[]}`, `{"choices":[]}`}))
	require.NoError(t, err)
	assert.Equal(t, `{"id":"a\"b\n","choices":[]}`, string(got))
}

// FuzzMergePlain merges two answers and takes the result apart again: every item
// must be there in its place, with nothing changed but the index.
func FuzzMergePlain(f *testing.F) {
	for _, name := range []string{"generate_n2.json", "generate_batch.json"} {
		f.Add(uint8(Generate), []byte(capture(f, name)), []byte(another(capture(f, name))))
	}
	for _, name := range []string{"chat.json", "completions.json"} {
		f.Add(uint8(Chat), []byte(capture(f, name)), []byte(another(capture(f, name))))
	}
	f.Add(uint8(Generate), []byte(`{"text":"\ud800"}`), []byte(`{"text":1.0e5}`))
	f.Add(uint8(Chat), []byte(`{"choices":[{"index":1,"index":2}],"choices":[{}],"usage":{}}`), []byte(`{"choices":[{"\u0069ndex":0}]}`))
	f.Fuzz(func(t *testing.T, ep uint8, a, b []byte) {
		m := testMerging(Endpoint(ep%3), 2)
		bodies := [][]byte{bytes.Clone(a), bytes.Clone(b)}
		got, err := m.plain(bodies)
		require.Equal(t, [][]byte{a, b}, bodies)
		if err != nil {
			return
		}
		require.True(t, json.Valid(got), "%q", got)
		if !m.endpoint.OpenAI() {
			requireInterleaved(t, decode(t, got).([]any), items(t, a), items(t, b))
			return
		}
		merged, first, second := decode(t, got).(map[string]any), decode(t, a).(map[string]any), decode(t, b).(map[string]any)
		choices := merged["choices"].([]any)
		for k, choice := range choices {
			require.Equal(t, json.Number(strconv.Itoa(k)), choice.(map[string]any)["index"])
		}
		requireInterleaved(t, without(choices, "index"), without(first["choices"].([]any), "index"), without(second["choices"].([]any), "index"))
		require.Equal(t, without([]any{first}, "id", "choices", "usage"), without([]any{merged}, "id", "choices", "usage"))
	})
}

func requireInterleaved(t *testing.T, merged, a, b []any) {
	t.Helper()
	require.Len(t, merged, len(a)+len(b))
	for i := range a {
		require.Equal(t, a[i], merged[2*i])
		require.Equal(t, b[i], merged[2*i+1])
	}
}

func items(t *testing.T, body []byte) []any {
	t.Helper()
	v := decode(t, body)
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

func decode(t *testing.T, raw []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	require.NoError(t, d.Decode(&v), "%q", raw)
	return v
}

// without is the objects less the named members.
func without(objects []any, names ...string) []any {
	out := make([]any, len(objects))
	for i, o := range objects {
		copied := map[string]any{}
		maps.Copy(copied, o.(map[string]any))
		for _, name := range names {
			delete(copied, name)
		}
		out[i] = copied
	}
	return out
}
