package pd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func promptOf(t testing.TB, ep Endpoint, body string) []byte {
	t.Helper()
	r, err := NewRequest(ep, []byte(body))
	require.NoError(t, err)
	return r.Prompt()
}

func TestPromptsThatAnEngineReadsTheSameAreTheSame(t *testing.T) {
	f := func(name string, ep Endpoint, one, other string) {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, promptOf(t, ep, one), promptOf(t, ep, other))
		})
	}
	f("sampling does not count", Generate, `{"text":"a","sampling_params":{"temperature":1}}`, `{"stream":true,"text":"a"}`)
	f("spelling does not count", Generate, `{"text":"aé"}`, `{ "text" : "\u0061\u00e9" }`)
	f("a batch is its first", Generate, `{"text":["a","b"]}`, `{"text":"a"}`)
	f("a part is a text", Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`,
		`{"messages":[{"content":[{"text":"a","type":"text"}],"role":"user"}]}`)
	f("null is absent", Chat, `{"messages":[{"role":"user","content":"a"}],"tools":null}`, `{"messages":[{"role":"user","content":"a"}]}`)
}

func TestPromptsThatDifferAreDifferent(t *testing.T) {
	f := func(name string, ep Endpoint, one, other string) {
		t.Run(name, func(t *testing.T) {
			assert.NotEqual(t, promptOf(t, ep, one), promptOf(t, ep, other))
		})
	}
	f("text", Generate, `{"text":"a"}`, `{"text":"b"}`)
	f("model", Chat, `{"model":"x","messages":[]}`, `{"model":"y","messages":[]}`)
	f("adapter", Generate, `{"text":"a","lora_path":"x"}`, `{"text":"a"}`)
	f("salt", Chat, `{"messages":[],"cache_salt":"x"}`, `{"messages":[]}`)
	f("role", Chat, `{"messages":[{"role":"user","content":"a"}]}`, `{"messages":[{"role":"system","content":"a"}]}`)
	f("turns", Chat, `{"messages":[{"role":"user","content":"ab"}]}`, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`)
	f("pictures", Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"y"}}]}]}`)
	f("tools", Chat, `{"messages":[],"tools":[{"type":"function"}]}`, `{"messages":[]}`)
	f("calls of tools", Chat, `{"messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}]}`, `{"messages":[{"role":"assistant","tool_calls":[{"id":"2"}]}]}`)
	f("tokens", Completions, `{"prompt":[1,2]}`, `{"prompt":[1,3]}`)
}

// A conversation that goes on begins as it did before.
func TestAPromptGrowsAtItsEnd(t *testing.T) {
	var messages []string
	before := promptOf(t, Chat, `{"model":"m","tools":[{"a":1}],"messages":[]}`)
	for turn := range 8 {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"turn %d"}`, turn))
		now := promptOf(t, Chat, `{"model":"m","tools":[{"a":1}],"messages":[`+strings.Join(messages, ",")+`]}`)
		assert.True(t, bytes.HasPrefix(now, before))
		assert.Greater(t, len(now), len(before))
		before = now
	}
	assert.True(t, bytes.HasPrefix(promptOf(t, Generate, `{"input_ids":[1,2,3]}`), promptOf(t, Generate, `{"input_ids":[1,2]}`)))
}

func TestAPromptOfAnOddBodyIsSomething(t *testing.T) {
	for ep, bodies := range map[Endpoint][]string{
		Chat:     {`{}`, `{"messages":"a"}`, `{"messages":[1,"a",null,[{}]]}`, `{"messages":[{"content":{"x":1}}]}`},
		Generate: {`{}`, `{"input_ids":[1.5]}`, `{"input_embeds":[[1.0]]}`, `{"text":"\ud800"}`},
	} {
		for _, body := range bodies {
			assert.NotEmpty(t, promptOf(t, ep, body), body)
		}
	}
}

// However a text is spelled, the prompt holds it as it is.
func FuzzPrompt(f *testing.F) {
	for _, text := range []string{"", "a", "\x00<&>\u2028", "é\"\\\n", strings.Repeat("x", 100)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "")
		plain, err := json.Marshal(text)
		require.NoError(t, err)
		var escaped strings.Builder
		for _, c := range utf16.Encode([]rune(text)) {
			fmt.Fprintf(&escaped, `\u%04x`, c)
		}
		for ep, body := range map[Endpoint]string{
			Generate: `{"text":%s}`, Completions: `{"prompt":[%s,"b"]}`, Chat: `{"messages":[{"role":"user","content":[{"text":%s}]}]}`,
		} {
			one := promptOf(t, ep, fmt.Sprintf(body, plain))
			assert.Equal(t, one, promptOf(t, ep, fmt.Sprintf(body, `"`+escaped.String()+`"`)))
			assert.True(t, bytes.HasSuffix(one, []byte(text)))
		}
	})
}

func BenchmarkPrompt(b *testing.B) {
	for _, size := range []int{48 << 10, 400 << 10} {
		turn := strings.Repeat("hello world \\n", 1024/13)
		var messages []string
		for n := 0; n < size; n += 1024 {
			messages = append(messages, `{"role":"user","content":"`+turn+`"}`)
		}
		body := []byte(`{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			r, err := NewRequest(Chat, body)
			require.NoError(b, err)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r.prompt = nil
				r.Prompt()
			}
		})
	}
}

func otherPrompt(t testing.TB, body string) string {
	t.Helper()
	r, err := NewSingle(Other, []byte(body))
	require.NoError(t, err)
	return string(r.Prompt())
}

// Bodies of other APIs begin alike where their prompts do, as far as their fields
// are known.
func TestPromptsOfOtherPaths(t *testing.T) {
	begins := func(name, one, longer string) {
		t.Run(name, func(t *testing.T) {
			assert.True(t, strings.HasPrefix(otherPrompt(t, longer), otherPrompt(t, one)), "%q\n%q", otherPrompt(t, one), otherPrompt(t, longer))
		})
	}
	differ := func(name, one, other string) {
		t.Run(name, func(t *testing.T) {
			a, b := otherPrompt(t, one), otherPrompt(t, other)
			assert.NotEqual(t, a, b)
			assert.False(t, strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
		})
	}
	begins("embeddings", `{"input":"a text"}`, `{"encoding_format":"float","input":"a text that goes on"}`)
	begins("embeddings of several", `{"input":["a"]}`, `{"input":["a","b"]}`)
	begins("embeddings of tokens", `{"input":[1,2]}`, `{"input":[1,2,3]}`)
	begins("responses", `{"model":"m","instructions":"be brief","input":"hi"}`, `{"input":"hi there","instructions":"be brief","model":"m"}`)
	begins("responses with turns", `{"input":[{"role":"user","content":"hi"}]}`, `{"input":[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"output_text","text":"yes"}]}]}`)
	begins("messages", `{"system":"s","messages":[{"role":"user","content":"a"}]}`, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}],"system":"s"}`)
	begins("messages with a system of parts", `{"system":[{"type":"text","text":"s"}],"messages":[]}`, `{"messages":[{"role":"user","content":"a"}],"system":[{"text":"s","type":"text"}]}`)
	begins("rerank", `{"query":"q","documents":["a"]}`, `{"documents":["a",{"text":"b"}],"query":"q"}`)
	begins("score", `{"query":"q","items":["a"]}`, `{"query":"q","items":["a","b"]}`)
	differ("another document", `{"query":"q","documents":[{"text":"a"}]}`, `{"query":"q","documents":[{"text":"b"}]}`)
	differ("another system", `{"system":[{"type":"text","text":"s"}],"messages":[]}`, `{"system":[{"type":"text","text":"t"}],"messages":[]}`)
	differ("another model", `{"model":"a","input":"x"}`, `{"model":"b","input":"x"}`)
	for _, body := range []string{`{"odd":"x"}`, `[1,2]`, "\x00\xff", ``} {
		assert.Equal(t, body, otherPrompt(t, body), "a body without a known field is its own prompt")
	}
}
