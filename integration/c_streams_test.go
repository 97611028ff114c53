package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// usageStream ends with a usage event; its text has characters of three bytes.
const usageStream = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u20ac\u65e5\"}}]}\r\n\r\n" +
	": a comment\r\n\r\n" +
	"data:{\"choices\":[],\"note\":\"\u20ac\",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\r\n\r\n" +
	"data: [DONE]\r\n\r\n"

func TestF19EventsCutAnywherePassUntouchedAndAreCounted(t *testing.T) {
	t.Parallel()
	cutAt := func(at ...int) (all []string) {
		from := 0
		for _, to := range append(at, len(usageStream)) {
			all = append(all, usageStream[from:to])
			from = to
		}
		return all
	}
	f := func(name string, parts []string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
				for _, part := range parts {
					pieces(w, part)
					time.Sleep(time.Millisecond)
				}
			})
			r := s.ok(chatCall(3).streamed())
			assert.Equal(t, usageStream, r.body)
			report := s.report(0)
			assert.Equal(t, []int{7, 3, 2, 2}, []int{report.PromptTokens, report.CompletionTokens, report.CachedTokens, report.Events})
			assert.Equal(t, []pd.Outcome{pd.Success}, s.outcomes(2)["decode-0"])
		})
	}
	usage := strings.Index(usageStream, "data:{")
	euro := usage + strings.Index(usageStream[usage:], "\u20ac")
	end := usage + strings.Index(usageStream[usage:], "\r\n\r\n")
	f("at once", cutAt())
	f("the usage event in three", cutAt(usage, euro+1, end+1))
	f("within the line ends", cutAt(end+1, end+2, end+3))
	f("byte by byte", strings.Split(usageStream, ""))
}

// F20: instead of a clock, each event is written only when the one before it has
// reached the client.
func TestF20EachEventIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	taken := make(chan struct{})
	s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, r *http.Request, _ received) {
		for range 20 {
			pieces(w, "data: {\"text\":\"x\"}\n\n")
			select {
			case <-taken:
			case <-r.Context().Done():
				return
			}
		}
		pieces(w, "data: [DONE]\n\n")
	})
	l := s.listen(generateCall(20).streamed())
	for range 20 {
		require.Equal(t, "data: {\"text\":\"x\"}\n\n", l.next())
		taken <- struct{}{}
	}
	require.NoError(t, l.rest().err)
	assert.Equal(t, "no", l.resp.Header.Get("X-Accel-Buffering"))
	assert.Equal(t, "no-cache", l.resp.Header.Get("Cache-Control"))
	assert.Equal(t, "text/event-stream", l.resp.Header.Get("Content-Type"))
	assert.Empty(t, l.resp.Header.Get("Content-Length"))
	assert.Empty(t, l.resp.Header.Get("Content-Encoding"))
}

func TestF22AStreamThatBreaksIsNeverRetried(t *testing.T) {
	t.Parallel()
	f := func(name string, fault simengine.Fault) {
		for _, c := range []call{generateCall(8), chatCall(8), completionsCall(8)} {
			t.Run(name+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: func(o *pd.Orchestrator) { o.Retry.MaxAttempts = 3 }})
				for _, d := range s.decodes {
					d.SetFault(always(fault))
				}
				r := s.post(c.streamed())
				assert.Equal(t, 200, r.status)
				assert.Error(t, r.err, "the end is broken")
				events := r.events()
				require.Len(t, events, 4, "%s", r.body)
				assert.NotContains(t, r.body, "[DONE]")
				assert.NotContains(t, strings.Join(events[:3], ""), "error")
				failure := decoded[struct {
					Error struct{ Message, Type string }
				}](t, events[3]).Error
				assert.NotEmpty(t, failure.Message)
				assert.NotEmpty(t, failure.Type)
				s.idle()
				total := 0
				for _, e := range s.engines() {
					total += len(generations(e))
				}
				assert.Equal(t, 2, total, "one call on each side")
				assert.Contains(t, s.outcomes(2)["decode-0"], pd.Fault)
			})
		}
	}
	f("reset", simengine.Fault{ResetAfter: 3})
	f("cut", simengine.Fault{CutAfter: 3})
}

func TestF23AnErrorOfAStreamingCallIsAnHTTPError(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			const body = `{"object":"error","message":"model is loading","code":503}`
			s.d.SetFault(always(simengine.Fault{Status: 503, Body: []byte(body), Header: http.Header{"Retry-After": {"7"}}}))
			r := s.post(c)
			assert.Equal(t, 503, r.status)
			assert.Equal(t, body, r.body)
			assert.Equal(t, "application/json", r.header.Get("Content-Type"))
			assert.Equal(t, "7", r.header.Get("Retry-After"))
		})
	}
}

// F25, without the holding back of events: the first event is the commit, also
// when it has a role and no content, and the stream of the first pair ends with
// an error. A head alone commits nothing.
func TestF25TheFirstEventIsTheCommit(t *testing.T) {
	t.Parallel()
	t.Run("a role and then the end of the connection", func(t *testing.T) {
		t.Parallel()
		s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: func(o *pd.Orchestrator) { o.Retry.MaxAttempts = 2 }})
		s.decodes[0].SetFault(always(simengine.Fault{CutAfter: 1}))
		r := s.post(chatCall(4).streamed())
		assert.Equal(t, 200, r.status)
		assert.Error(t, r.err)
		require.Len(t, r.events(), 2)
		assert.Contains(t, r.events()[0], `"role":"assistant"`)
		assert.Contains(t, r.events()[1], `"error"`)
		assert.Empty(t, generations(s.decodes[1]))
	})
	t.Run("a head and then the end of the connection", func(t *testing.T) {
		t.Parallel()
		s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
			pieces(w, ": nothing yet\n\n")
			panic(http.ErrAbortHandler)
		})
		r := s.post(chatCall(4).streamed())
		assert.Equal(t, 502, r.status)
		assert.Equal(t, "decode_connection_lost", r.header.Get("X-Tandem-Error"))
		assert.NotContains(t, r.body, "data:")
	})
}

func TestF26ErrorsHaveTheShapeThatTheClientReads(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run("before the head: "+c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			s.d.SetFault(always(simengine.Fault{Status: 422, Body: []byte(`{"error":{"message":"no"}}`)}))
			r := s.post(c)
			assert.Equal(t, 422, r.status)
			assert.Equal(t, "application/json", r.header.Get("Content-Type"))
			assert.Equal(t, `{"error":{"message":"no"}}`, r.body)
		})
	}
	// An engine's own error event passes as it came, with what follows it.
	t.Run("an engine's event within the stream", func(t *testing.T) {
		t.Parallel()
		s := newStack(t, setup{})
		s.d.SetFault(always(simengine.Fault{ErrorAt: 3, ErrorEvent: `{"error":{"message":"gone wrong","code":500}}`}))
		r := s.ok(chatCall(8).streamed())
		require.Len(t, r.events(), 4)
		assert.Equal(t, `{"error":{"message":"gone wrong","code":500}}`, r.events()[2])
		assert.Equal(t, "[DONE]", r.events()[3])
		assert.Equal(t, []pd.Outcome{pd.Fault}, s.outcomes(2)["decode-0"])
	})
}

// F28: the report wants raw bytes that are no UTF-8 to be routed. An engine
// answers them with 400, and so does the router.
func TestF28TextOfAnyKindPasses(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	f := func(name, text string) {
		t.Run(name, func(t *testing.T) {
			before := len(generations(s.d))
			body := `{"text":"` + text + `","sampling_params":{"max_new_tokens":3,"stop":["` + text + `"]}}`
			r := s.do(http.MethodPost, generatePath, body)
			require.Equal(t, 200, r.status, r.body)
			for _, e := range s.engines() {
				got := string(generations(e)[before].Body)
				assert.Contains(t, got, strings.TrimPrefix(body, "{"))
			}
		})
	}
	f("emoji", "same \U0001F600")
	f("emoji that differs in its last byte", "same \U0001F601")
	f("CJK", "same \u65e5\u672c")
	f("CJK that differs in its last byte", "same \u65e6\u672c")
	f("combining marks", "e\u0301e\u0300")
	f("escapes", `\u00e9\ud83d\ude00\u0000\/`)
	f("lone surrogates", `\ud83d x \ude00`)
	for _, raw := range []string{"\xff", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\x80"} {
		before := len(generations(s.d))
		r := s.do(http.MethodPost, generatePath, `{"text":"same `+raw+`"}`)
		assert.Equal(t, 400, r.status)
		assert.Len(t, generations(s.d), before)
	}
}

// F29: one that says nothing of an end is not in the list: the report takes every
// well-formed end of a body for one, and a cut stream would look whole.
func TestF29EveryWayToEndAStreamIsAnEnd(t *testing.T) {
	t.Parallel()
	const first = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
	f := func(name, body string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) { pieces(w, first, body) })
			r := s.ok(chatCall(2).streamed())
			assert.Equal(t, first+body, r.body)
			assert.Equal(t, []pd.Outcome{pd.Success}, s.outcomes(2)["decode-0"])
			assert.Nil(t, s.report(0).Err)
		})
	}
	f("usage alone and [DONE]", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n")
	f("the reason with the text", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n")
	f("no [DONE]", "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")
	f("no line end", "data: [DONE]")
	f("[DONE] within a text", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"data: [DONE]\\n\\ndata: [DONE]\"}}]}\n\ndata: {\"x\":\"[DONE]\"}\n\ndata: [DONE]\n\n")
	f("words of errors within a text", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"{\\\"error\\\":{\\\"code\\\":500}}\"}}]}\n\ndata: [DONE]\n\n")
}

func TestASimulatedStreamPassesHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []call{generateCall(12), chatCall(12), completionsCall(12)} {
		for name, fault := range map[string]simengine.Fault{"in pieces": {Split: 7}, "several at once": {Merge: 5}} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, setup{})
				s.d.SetFault(always(fault))
				r := s.ok(c.streamed())
				want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
				require.NoError(t, err)
				assert.Equal(t, want[0].Text, textOf(t, c.path, r)[0])
				assert.True(t, strings.HasSuffix(r.body, "data: [DONE]\n\n"))
			})
		}
	}
}

func TestAVeryLargeEventPasses(t *testing.T) {
	t.Parallel()
	const size = 64 << 20
	s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
		chunk := strings.Repeat("x", 1<<20)
		pieces(w, `data: {"text":"`)
		for range size / len(chunk) {
			_, _ = io.WriteString(w, chunk)
		}
		pieces(w, "\"}\n\n", "data: [DONE]\n\n")
	})
	resp, err := s.send(t.Context(), http.MethodPost, generatePath, generateCall(1).streamed().json())
	require.NoError(t, err)
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	assert.Equal(t, int64(size+len(`data: {"text":"`+"\"}\n\n"+"data: [DONE]\n\n")), n)
	assert.Nil(t, s.report(0).Err)
}

// An event that has to be held whole, because something is put into it, has a
// bound.
func TestAnEventThatIsTooLargeToSpliceIsAClearError(t *testing.T) {
	t.Parallel()
	withLogprobs := generateCall(6).with(object{"return_logprob": true, "logprob_start_len": 0})
	t.Run("first event", func(t *testing.T) {
		t.Parallel()
		s := newStack(t, setup{maxEvent: 1 << 20})
		s.d.SetFault(always(simengine.Fault{Pad: 2 << 20}))
		r := s.post(withLogprobs.streamed())
		assert.Contains(t, r.body, "more than can be held at once")
		assert.NotContains(t, r.body, "[DONE]")
		assert.NotContains(t, r.body, "xxxx")
	})
	t.Run("plain answer", func(t *testing.T) {
		t.Parallel()
		s := newStack(t, setup{maxEvent: 200})
		r := s.post(withLogprobs)
		assert.Equal(t, 502, r.status)
		// Either answer is too large; which one comes first is open.
		assert.Contains(t, []string{"prefill_bad_response", "decode_bad_response"}, r.header.Get("X-Tandem-Error"))
		assert.NotContains(t, r.body, "output_ids")
	})
}

// A client that takes nothing holds up its own decode, and nothing is collected
// for it: what decode gets rid of is what sockets hold.
func TestASlowClientHoldsBackDecode(t *testing.T) {
	t.Parallel()
	const all, bound = 200 << 20, 40 << 20
	written := make(chan int, all/(64<<10)+1)
	event := "data: {\"text\":\"" + strings.Repeat("x", 64<<10) + "\"}\n\n"
	s, _ := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, _ received) {
		for n := 0; n < all; n += len(event) {
			pieces(w, "")
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
			written <- len(event)
		}
	})
	l := s.listen(generateCall(1).streamed())
	taken := 0
	for quiet := false; !quiet; {
		select {
		case n := <-written:
			taken += n
			require.Less(t, taken, bound, "decode goes on though nobody reads")
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
	require.Positive(t, taken)
	l.leave()
	s.idle()
	assert.NotNil(t, s.report(0).Err)
}
