package integration

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// F97, contradictory flags, is a matter of the command's own tests.

// owned are the names of the members that a router writes.
var owned = []string{`"bootstrap_host":`, `"bootstrap_port":`, `"bootstrap_room":`, `"rid":`}

// requireUntouched requires that what an engine got is the client's body, but
// for members of the router's own in front of the others.
func requireUntouched(t *testing.T, sent, got string) {
	t.Helper()
	head, rest, ok := strings.Cut(sent, "{")
	require.True(t, ok)
	require.True(t, strings.HasPrefix(got, head+"{"), "%.300s", got)
	require.True(t, strings.HasSuffix(got, rest), "got %.600s\nsent %.600s", got, sent)
	ours := strings.TrimSuffix(strings.TrimPrefix(got, head+"{"), rest)
	for _, name := range owned {
		assert.Equal(t, 1, strings.Count(ours, name), "%s in %s", name, ours)
	}
	assert.True(t, strings.HasSuffix(ours, ","), ours)
	for range owned {
		_, ours, _ = strings.Cut(ours, `":`)
	}
	assert.NotContains(t, ours, `":`, "nothing else is added")
}

func TestF88EveryByteOfABodyStays(t *testing.T) {
	t.Parallel()
	f := func(name, path, body string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
				_, _ = w.Write([]byte(`{"odd": 1e-7}`))
			})
			r := s.do(http.MethodPost, path, body)
			require.Equal(t, 200, r.status, r.body)
			assert.Equal(t, `{"odd": 1e-7}`, r.body)
			requireUntouched(t, body, d.requests()[0].body)
		})
	}
	deep := strings.Repeat("[", 200) + "1" + strings.Repeat("]", 200)
	f("numbers", generatePath, `{"text":"a","x":12345678901234567890,"y":1.0,"z":1e-7,"w":-0.0,"v":1E+400,"u":100000000000000000001}`)
	f("escapes and raw characters", generatePath, "{\"text\":\"\\u00e9\u00e9\\/\\ud83d\\ude00\\ud83d\",\"k\\u00e9\":\"\\u0000\"}")
	f("spaces in odd places", generatePath, " \n{\t\"text\" :\r\n\"a\" , \"x\":[ ] ,\"y\" :{ } }  \n")
	f("an unknown, deep member", chatPath, `{"messages":[],"chat_template_kwargs":{"enable_thinking":false,"deep":`+deep+`}}`)
	f("big integers in logit_bias", chatPath, `{"messages":[],"logit_bias":{"99999999999999999999":-100,"1":1.5},"stream_options":{"include_usage":true,"new":1}}`)
	f("duplicate unknown members", completionsPath, `{"prompt":"a","x":1,"x":2,"top_k":3,"\u0078":4}`)
	f("nulls", generatePath, `{"text":"a","stream":null,"return_logprob":null,"sampling_params":null,"model":null}`)
	f("a body of some size", generatePath, `{"text":"`+strings.Repeat("x\u20ac", 1<<20)+`","tail":true}`)
}

// F89: two legs, so nothing is taken out of prefill's body; whatever its answer
// looks like, it is read to its end and the connection is used again.
func TestF89PrefillMayAnswerWithEventsAlthoughJSONWasAsked(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var done rendezvous // decode has its KV once prefill has answered
			prefill := scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, _ *http.Request, got received) {
				pieces(w, "data: {\"text\":\"", strings.Repeat("x", 1<<20), "\"}\n\n", "data: [DONE]\n\n")
				close(done.of(roomIn(t, got.body)))
			})
			const event, plain = "data: {\"text\":\"a\"}\n\ndata: [DONE]\n\n", `{"text":"a"}`
			decode := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, got received) {
				select {
				case <-done.of(roomIn(t, got.body)):
				case <-r.Context().Done():
					return
				}
				if strings.Contains(got.body, `"stream":true`) {
					pieces(w, event)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(plain))
			})
			s := newStack(t, setup{
				prefills: -1, decodes: -1, scripts: []*script{prefill, decode},
				transport: func(tr *http.Transport) { tr.IdleConnTimeout = time.Minute },
			})
			for range 3 {
				r := s.ok(c)
				assert.Contains(t, []string{event, plain}, r.body)
				s.idle()
			}
			for _, got := range prefill.requests() {
				assert.Equal(t, 1, got.conn, "the connection is used again")
			}
		})
	}
}

// F91: lists as long as the batch, scalars for one prompt. n > 1 is not the
// engine's to expand: see the tests of samples.
func TestF91EveryItemOfABatchHasItsOwnRoomAndRid(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: func(c *simengine.Config) { c.MaxTotalTokens = 1 << 16 }})
	f := func(name string, c call, items int, list bool) {
		for _, c := range []call{c, c.streamed()} {
			t.Run(name+c.name, func(t *testing.T) {
				before := len(generations(s.p))
				r := s.ok(c)
				want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
				require.NoError(t, err)
				require.Len(t, want, items)
				texts := textOf(t, c.path, r)
				for i := range want {
					assert.Equal(t, want[i].Text, texts[i])
				}
				p, d := generations(s.p)[before], generations(s.d)[before]
				requireRooms(t, p, items)
				assert.Equal(t, p.Rooms, d.Rooms)
				assert.Equal(t, p.Rids, d.Rids)
				assert.Len(t, unique(p.Rooms), items)
				assert.Len(t, unique(p.Rids), items)
				assert.Equal(t, list, strings.Contains(string(p.Body), `"bootstrap_host":[`))
				assert.Equal(t, list, strings.Contains(string(p.Body), `"bootstrap_port":[`))
				assert.Equal(t, list, strings.Contains(string(p.Body), `"bootstrap_room":[`))
				assert.Equal(t, list, strings.Contains(string(p.Body), `"rid":[`))
			})
		}
	}
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprint("item ", i)
	}
	three := []string{"a", "bb", "ccc"}
	ids := [][]int{{11, 12, 13}, {21, 22}, {31}}
	f("three texts", generateCall(4).with(object{"text": three}), 3, true)
	f("33 texts", generateCall(4).with(object{"text": many}), 33, true)
	f("one text in a list", generateCall(4).with(object{"text": three[:1]}), 1, true)
	f("one text", generateCall(4), 1, false)
	withIDs := generateCall(4)
	withIDs = call{withIDs.name, withIDs.path, object{"input_ids": ids, "sampling_params": withIDs.body["sampling_params"]}}
	f("lists of tokens", withIDs, 3, true)
	withIDs.body = object{"input_ids": ids[0], "sampling_params": withIDs.body["sampling_params"]}
	f("a list of tokens", withIDs, 1, false)
	f("three prompts", completionsCall(4).with(object{"prompt": three}), 3, true)
	f("prompts of tokens", completionsCall(4).with(object{"prompt": ids}), 3, true)
	f("a prompt of tokens", completionsCall(4).with(object{"prompt": ids[0]}), 1, false)

	before := len(s.p.Records())
	for _, c := range []call{
		generateCall(1).with(object{"text": []string{}}), completionsCall(1).with(object{"prompt": []string{}}),
		{"", generatePath, object{"input_ids": []int{}}},
	} {
		r := s.post(c)
		assert.Equal(t, 400, r.status, r.body)
		assert.Contains(t, r.body, "must not be empty")
	}
	assert.Len(t, s.p.Records(), before, "an empty batch is not sent")
}

func unique[T comparable](list []T) map[T]bool {
	set := map[T]bool{}
	for _, v := range list {
		set[v] = true
	}
	return set
}

// F94: the rows of prefill, then decode's from there on. That is how it is with
// a stream too: the member comes whole, in one event.
func TestF94RoutedExpertsOfThePromptComeFromPrefill(t *testing.T) {
	t.Parallel()
	rows := func(from byte, n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = from + byte(i)
		}
		return b
	}
	p, d := rows(1, 6), append(make([]byte, 6), rows(101, 4)...)
	want := append(rows(1, 6), rows(101, 4)...)
	item := func(raw []byte) string {
		return `{"text":"a", "meta_info":{"id":"x","routed_experts":"` + base64.StdEncoding.EncodeToString(raw) + `","finish_reason":{"type":"length"}}}`
	}
	answer := func(raw []byte) func(http.ResponseWriter, *http.Request, received) {
		return func(w http.ResponseWriter, _ *http.Request, got received) {
			if strings.Contains(got.body, `"stream":true`) {
				pieces(w, "data: "+item(raw)+"\n\n", "data: [DONE]\n\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(item(raw)))
		}
	}
	c := generateCall(4).with(object{"return_routed_experts": true})
	s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{
		scripted(t, "prefill-0", pd.Prefill, answer(p)), scripted(t, "decode-0", pd.Decode, answer(d)),
	}})
	assert.Equal(t, item(want), s.ok(c).body)
	assert.Equal(t, "data: "+item(want)+"\n\ndata: [DONE]\n\n", s.ok(c.streamed()).body)
	without := generateCall(4)
	assert.Equal(t, item(d), s.ok(without).body, "nothing is spliced that was not asked for")
}

// F95 asks for an optional mending of cached_tokens. There is none: usage is
// what decode says, to the byte. SGLang's decode knows how much prefill had
// cached.
func TestF95UsageIsDecodes(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	prompt := strings.Repeat("the same beginning ", 8)
	c := completionsCall(4).with(object{"prompt": prompt})
	first := decoded[completion](t, s.ok(c).body).Usage
	assert.Equal(t, usage{Prompt: len(prompt), Completion: 4, Total: len(prompt) + 4}, *first)
	again := decoded[completion](t, s.ok(c).body).Usage
	assert.Equal(t, 144, again.Details.Cached, "what prefill had, of %d", len(prompt))
	events := data(t, s.ok(c.streamed().with(object{"stream_options": object{"include_usage": true}})))
	assert.Equal(t, again, decoded[completion](t, events[len(events)-1]).Usage)
}

// F98: rank 0 is a rank. Prefill derives its rank from the room.
func TestF98AWishedRankIsHonoured(t *testing.T) {
	t.Parallel()
	ranked := func(c *simengine.Config) { c.DPSize = 4 }
	s := newStack(t, setup{prefill: ranked, decode: ranked, workers: func(all []*pd.Worker) {
		for _, w := range all {
			w.DPSize = 4
		}
	}})
	for _, name := range []string{"routed_dp_rank", "disagg_prefill_dp_rank"} {
		for rank := range 4 {
			for range 5 {
				s.ok(generateCall(2).with(object{name: rank}))
				all := generations(s.p)
				room, err := strconv.ParseUint(string(all[len(all)-1].Rooms[0]), 10, 64)
				require.NoError(t, err)
				assert.Equal(t, uint64(rank), room%4, "%s %d", name, rank)
			}
		}
	}
	r := s.post(generateCall(2).with(object{"routed_dp_rank": 9}))
	assert.Equal(t, 400, r.status, "never another rank: %s", r.body)
}
