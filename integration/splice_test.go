package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// noPeer as bootstrap_host makes an engine do the whole work itself.
const noPeer = "2.2.2.2"

// alone is what prefill answers when it works for itself: it has seen the prompt
// and makes every output entry it can.
func alone(t *testing.T, e *simengine.Engine, c call) reply {
	t.Helper()
	c = c.with(object{"bootstrap_host": noPeer, "bootstrap_room": 1})
	if text, ok := c.body["text"].([]string); ok {
		rooms, hosts := []int{}, []string{}
		for i := range text {
			rooms, hosts = append(rooms, i+1), append(hosts, noPeer)
		}
		c = c.with(object{"bootstrap_host": hosts, "bootstrap_room": rooms})
	}
	resp, err := http.Post(e.URL()+c.path, "application/json", strings.NewReader(c.json()))
	require.NoError(t, err)
	r := whole(resp)
	require.Equal(t, http.StatusOK, r.status, r.body)
	http.DefaultClient.CloseIdleConnections()
	return r
}

// items are the answers to a batch, or the one to a single prompt.
func items(t *testing.T, text string) []generated {
	t.Helper()
	if text[0] == '[' {
		return decoded[[]generated](t, text)
	}
	return []generated{decoded[generated](t, text)}
}

// F92: prompt entries of all kinds come from prefill, by index and in every
// event, since /generate's events are cumulative (the report wants them in the
// first event only). Output entries are decode's, whose first one came with the
// KV; of token_ids alone it is missing there.
func TestF92PromptLogprobsComeFromPrefill(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	lengths := []string{"a", "some more", strings.Repeat("much more ", 20)}
	all := object{"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": []int{7, 300}}
	f := func(name string, c call) {
		check := func(t *testing.T, got, want generated) {
			n := got.Meta.CompletionTokens
			assert.Equal(t, want.Meta.InputLogprobs, got.Meta.InputLogprobs)
			assert.Equal(t, want.Meta.InputTop, got.Meta.InputTop)
			assert.Equal(t, want.Meta.InputIDs, got.Meta.InputIDs)
			assert.Len(t, got.OutputIDs, n)
			if len(want.Meta.OutputLogprobs) == 0 {
				assert.Empty(t, got.Meta.OutputLogprobs)
				return
			}
			assert.Len(t, got.Meta.OutputLogprobs, n)
			assert.Equal(t, want.Meta.OutputLogprobs[0], got.Meta.OutputLogprobs[0])
			for _, of := range []struct{ want, got []any }{
				{want.Meta.OutputTop, got.Meta.OutputTop}, {want.Meta.OutputIDs, got.Meta.OutputIDs},
			} {
				if len(of.want) > 0 {
					require.Len(t, of.got, n)
					assert.Equal(t, of.want[0], of.got[0])
				}
			}
		}
		want := items(t, alone(t, s.p, c).body)
		t.Run(name, func(t *testing.T) {
			got := items(t, s.ok(c).body)
			require.Len(t, got, len(want))
			for i := range want {
				check(t, got[i], want[i])
			}
		})
		t.Run(name+" streamed", func(t *testing.T) {
			ends := map[int]int{}
			for _, event := range data(t, s.ok(c.streamed())) {
				got := decoded[generated](t, event)
				check(t, got, want[got.Index])
				ends[got.Index] = got.Meta.CompletionTokens
			}
			require.Len(t, ends, len(want))
			for i, n := range ends {
				assert.Equal(t, 6, n, "index %d", i)
			}
		})
	}
	f("one prompt", generateCall(6).with(all))
	f("a batch", generateCall(6).with(all).with(object{"text": lengths}))
	f("a batch of one", generateCall(6).with(all).with(object{"text": lengths[:1]}))
	f("from a position", generateCall(6).with(all).with(object{"logprob_start_len": 5}))
	f("of the output alone", generateCall(6).with(object{"return_logprob": true}))
	f("of some items", generateCall(6).with(all).with(object{"text": lengths, "return_logprob": []bool{false, true, false}}))
	f("with text", generateCall(6).with(all).with(object{"return_text_in_logprobs": true}))
}

func TestWithoutLogprobsNothingIsSpliced(t *testing.T) {
	t.Parallel()
	const odd = `{"text" : "a","meta_info":{ "input_token_logprobs":[], "n":1e-7 }}`
	s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, odd)
	})
	for _, c := range []call{generateCall(1), generateCall(1).with(object{"return_logprob": false}), generateCall(1).with(object{"return_logprob": nil})} {
		r := s.ok(c)
		assert.Equal(t, odd, r.body)
		assert.Equal(t, fmt.Sprint(len(odd)), r.header.Get("Content-Length"))
	}
}

// Every byte outside of the replaced lists is decode's, and so is every header.
func TestASpliceChangesNothingElse(t *testing.T) {
	t.Parallel()
	const (
		before = `{"text" : "caf\u00e9","x":1e-7, "meta_info":{ "id":"q", "input_token_logprobs" : `
		after  = `,"output_token_logprobs":[[ -1.0,5,null]] ,"z":12345678901234567890}}`
		entry  = `[[null,11,null],[-2.50,12,null]]`
	)
	answer := func(role, list string) func(http.ResponseWriter, *http.Request, received) {
		return func(w http.ResponseWriter, _ *http.Request, got received) {
			w.Header().Set("X-Engine", role)
			w.Header()["Vary"] = []string{role, "Origin"}
			if strings.Contains(got.body, `"stream":true`) {
				pieces(w, ": hello\r\n\r\ndata:"+before, list+after+"\r\n\r\n", "data: [DONE]\n\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, before+list+after+"\n")
		}
	}
	s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{
		scripted(t, "prefill-0", pd.Prefill, answer("prefill", entry)), scripted(t, "decode-0", pd.Decode, answer("decode", "[ ]")),
	}})
	decodes := func(r reply, contentType string) {
		t.Helper()
		assert.Equal(t, []string{contentType}, r.header.Values("Content-Type"))
		assert.Equal(t, []string{"decode"}, r.header.Values("X-Engine"))
		assert.Equal(t, []string{"decode", "Origin"}, r.header.Values("Vary"))
	}
	c := generateCall(1).with(object{"return_logprob": true, "logprob_start_len": 0})
	r := s.ok(c)
	assert.Equal(t, before+entry+after+"\n", r.body)
	assert.Equal(t, fmt.Sprint(len(r.body)), r.header.Get("Content-Length"))
	decodes(r, "application/json")
	r = s.ok(c.streamed())
	assert.Equal(t, ": hello\r\n\r\ndata:"+before+entry+after+"\r\n\r\ndata: [DONE]\n\n", r.body)
	decodes(r, "text/event-stream")
}

// An event waits for prefill's event of its own index and for no other.
func TestASplicedEventWaitsForItsOwnIndexAlone(t *testing.T) {
	t.Parallel()
	event := func(index int, list string) string {
		return fmt.Sprintf("data: {\"text\":\"a\",\"meta_info\":{\"input_token_logprobs\":%s},\"index\":%d}\n\n", list, index)
	}
	more := make(chan struct{})
	prefill := scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, r *http.Request, _ received) {
		pieces(w, event(1, "[[null,11,null]]"))
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
		pieces(w, event(0, "[[null,10,null]]"), "data: [DONE]\n\n")
	})
	decode := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, _ *http.Request, _ received) {
		pieces(w, event(1, "[]"), event(0, "[]"), event(1, "[]"), "data: [DONE]\n\n")
	})
	s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{prefill, decode}})
	l := s.listen(generateCall(2).with(object{"text": []string{"a", "b"}, "return_logprob": true}).streamed())
	assert.Equal(t, event(1, "[[null,11,null]]"), l.next(), "though prefill has not finished")
	close(more)
	assert.Equal(t, event(0, "[[null,10,null]]"), l.next())
	assert.Equal(t, event(1, "[[null,11,null]]")+"data: [DONE]\n\n", l.rest().body)
}

// A lost prefill matters to a stream only as long as something of it is needed.
func TestAPrefillThatIsLostAfterTheCommit(t *testing.T) {
	t.Parallel()
	event := "data: {\"text\":\"a\",\"meta_info\":{\"input_token_logprobs\":[]},\"index\":%d}\n\n"
	f := func(name string, fields object, shown int, whole bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost, seen := make(chan struct{}), make(chan struct{})
			prefill := scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, _ *http.Request, _ received) {
				pieces(w, fmt.Sprintf(event, 0))
				<-lost
				panic(http.ErrAbortHandler)
			})
			decode := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, _ received) {
				for i := range shown {
					pieces(w, fmt.Sprintf(event, i))
				}
				select {
				case <-seen:
					pieces(w, fmt.Sprintf(event, 0), "data: [DONE]\n\n")
				case <-r.Context().Done():
				}
			})
			s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{prefill, decode}})
			l := s.listen(generateCall(2).with(object{"text": []string{"a", "b"}}).with(fields).streamed())
			for range shown {
				l.next()
			}
			close(lost)
			assert.Equal(t, []pd.Outcome{pd.Fault}, s.outcomes(1)["prefill-0"], "it is blamed")
			close(seen)
			r := l.rest()
			if whole {
				assert.NoError(t, r.err)
				assert.Equal(t, "[DONE]", r.events()[1])
				return
			}
			assert.Error(t, r.err)
			require.Len(t, r.events(), 1)
			assert.Contains(t, r.events()[0], "prefill worker prefill-0")
		})
	}
	f("every item has shown an event", nil, 2, true)
	f("an item has shown none", nil, 1, false)
	f("an item's logprobs are missing", object{"return_logprob": true}, 1, false)
}

func TestEchoedPromptsHaveTheirLogprobsInFront(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	c := completionsCall(5).with(object{"echo": true, "logprobs": 2})
	prompt := len(c.body["prompt"].(string))
	r := s.ok(c)
	logprobs := decoded[completion](t, r.body).Choices[0].Logprobs
	require.NotNil(t, logprobs)
	require.Len(t, logprobs.Tokens, prompt+5, r.body)
	assert.Len(t, logprobs.TokenLogprobs, prompt+5)
	assert.Len(t, logprobs.TopLogprobs, prompt+5)
	assert.Len(t, logprobs.TextOffset, prompt+5)
	assert.Equal(t, strings.Split(c.body["prompt"].(string), ""), logprobs.Tokens[:prompt])
	assert.Nil(t, logprobs.TokenLogprobs[0])
	assert.Contains(t, decoded[completion](t, r.body).Choices[0].Text, c.body["prompt"])

	var streamed []string
	for _, event := range data(t, s.ok(c.streamed())) {
		for _, choice := range decoded[completion](t, event).Choices {
			streamed = append(streamed, choice.Logprobs.Tokens...)
		}
	}
	assert.Equal(t, logprobs.Tokens, streamed)

	list := slices.Sorted(maps.Keys(decoded[map[string]json.RawMessage](t, r.body)))
	assert.Equal(t, []string{"choices", "created", "id", "metadata", "model", "object", "usage"}, list)
}

// Samples are spliced before they are merged.
func TestSamplesHaveTheirPromptLogprobsToo(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	c := generateCall(4).with(object{"return_logprob": true, "logprob_start_len": 0})
	want := items(t, alone(t, s.p, c).body)[0]
	c = sampled(c, 3, 9)
	got := items(t, s.ok(c).body)
	require.Len(t, got, 3)
	for _, event := range data(t, s.ok(c.streamed())) {
		got = append(got, decoded[generated](t, event))
	}
	assert.Len(t, got, 3+3*4)
	for _, g := range got {
		assert.Equal(t, want.Meta.InputLogprobs, g.Meta.InputLogprobs)
		assert.Len(t, g.Meta.OutputLogprobs, g.Meta.CompletionTokens)
	}
}

// What ends an engine is refused: prefill's buffer takes 128 top logprobs.
func TestTooManyLogprobsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	for _, c := range []call{
		generateCall(1).with(object{"return_logprob": true, "top_logprobs_num": 129}),
		generateCall(1).with(object{"return_logprob": true, "text": []string{"a", "b"}, "top_logprobs_num": []int{1, 129}}),
		completionsCall(1).with(object{"logprobs": 129}),
		chatCall(1).with(object{"logprobs": true, "top_logprobs": 129}),
		generateCall(1).with(object{"return_logprob": "true"}),
		generateCall(1).with(object{"session_params": object{"id": "a"}}),
		generateCall(1).with(object{"session_id": "a"}),
	} {
		r := s.post(c)
		assert.Equal(t, 400, r.status, "%s: %s", c.json(), r.body)
	}
	for _, e := range s.engines() {
		assert.Empty(t, e.Records())
	}
	s.ok(generateCall(1).with(object{"return_logprob": true, "top_logprobs_num": 128}))
}
