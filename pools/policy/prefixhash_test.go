package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// Requests that an engine would find the same beginning in have the same home,
// however they are sent; those that begin in another way are spread.
func TestWhatBeginsAlikeGoesToTheSameMember(t *testing.T) {
	system := strings.Repeat("You are a helpful assistant. ", 60)
	ids := strings.Repeat("11,22,33,44,", 80)
	f := func(name string, ep pd.Endpoint, one, other string) {
		t.Run(name, func(t *testing.T) {
			set := fleet(t, 64, NewPrefixHash(PrefixHashOptions{}))
			for i := range 20 {
				one, other := strings.ReplaceAll(one, "SYSTEM", fmt.Sprint(i, system)), strings.ReplaceAll(other, "SYSTEM", fmt.Sprint(i, system))
				one, other = strings.ReplaceAll(one, "IDS", fmt.Sprint(i, ",", ids)), strings.ReplaceAll(other, "IDS", fmt.Sprint(i, ",", ids))
				assert.Equal(t, home(t, set, request(t, ep, one)), home(t, set, request(t, ep, other)))
			}
		})
	}
	f("a text", pd.Generate, `{"text":"SYSTEM What is it?"}`, `{"text":"SYSTEM And that?","stream":true}`)
	f("token ids", pd.Generate, `{"input_ids":[IDS 5,6]}`, `{"input_ids": [IDS 7]}`)
	f("a conversation", pd.Chat,
		`{"model":"m","messages":[{"role":"system","content":"SYSTEM"},{"role":"user","content":"hello"}]}`,
		`{"messages":[{"role":"system","content":"SYSTEM"},{"role":"user","content":"bye"}],"model":"m"}`)
	f("a completion", pd.Completions, `{"model":"m","prompt":"SYSTEM one"}`, `{"model":"m","prompt":"SYSTEM two","n":1}`)
	f("a completion of token ids", pd.Completions, `{"model":"m","prompt":[IDS 1]}`, `{"model":"m","prompt":[IDS 2]}`)
}

func TestWhatBeginsInAnotherWayIsSpread(t *testing.T) {
	f := func(name string, ep pd.Endpoint, body func(i int) string) {
		t.Run(name, func(t *testing.T) {
			set := fleet(t, 16, NewPrefixHash(PrefixHashOptions{}))
			used := map[pd.WorkerID]bool{}
			for i := range 300 {
				used[home(t, set, request(t, ep, body(i)))] = true
			}
			assert.Len(t, used, 16)
		})
	}
	f("texts", pd.Generate, func(i int) string { return fmt.Sprintf(`{"text":"question %d"}`, i) })
	f("token ids", pd.Generate, func(i int) string { return fmt.Sprintf(`{"input_ids":[%d]}`, i) })
	f("conversations", pd.Chat, func(i int) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":"question %d"}]}`, i)
	})
	f("adapters", pd.Chat, func(i int) string {
		return fmt.Sprintf(`{"lora_path":"adapter-%d","messages":[{"role":"user","content":"hello"}]}`, i)
	})
	f("completions", pd.Completions, func(i int) string { return fmt.Sprintf(`{"prompt":"question %d"}`, i) })
}

func TestTheLengthOfThePrefixIsSet(t *testing.T) {
	f := func(tokens, same int, alike bool) {
		t.Helper()
		set := fleet(t, 64, NewPrefixHash(PrefixHashOptions{PrefixTokens: tokens}))
		homes := map[pd.WorkerID]bool{}
		for i := range 50 {
			homes[home(t, set, prompt(t, strings.Repeat("x", same)+fmt.Sprintf("%d end", i)))] = true
		}
		require.Equal(t, alike, len(homes) == 1, "%d tokens, of which %d bytes are the same", tokens, same)
	}
	f(0, 1024, true)
	f(0, 1000, false)
	f(16, 64, true)
	f(16, 50, false)
}

func TestOnlyAPromptIsHashed(t *testing.T) {
	f := func(want bool, ep pd.Endpoint, body string) {
		t.Helper()
		assert.Equal(t, want, noPrompt(request(t, ep, body).Prompt()), body)
	}
	f(true, pd.Generate, `{"text":""}`)
	f(true, pd.Generate, `{"model":"m"}`)
	f(true, pd.Chat, `{"model":"m","messages":[]}`)
	f(true, pd.Completions, `{"model":"m","prompt":""}`)
	f(false, pd.Generate, `{"text":"a"}`)
	f(false, pd.Generate, `{"input_ids":[1]}`)
	f(false, pd.Chat, `{"messages":[{"role":"user","content":"a"}]}`)
	f(false, pd.Completions, `{"prompt":[0]}`)
}
