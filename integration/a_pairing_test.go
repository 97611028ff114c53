package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// always is the script of a fault that every request meets.
func always(f simengine.Fault) func(simengine.Record) *simengine.Fault {
	return func(simengine.Record) *simengine.Fault { return &f }
}

// onceAt is the script of a fault that waits for the other engine to have the
// request too.
func onceAt(ctx context.Context, other *simengine.Engine, f simengine.Fault) func(simengine.Record) *simengine.Fault {
	return func(simengine.Record) *simengine.Fault {
		_ = other.Wait(ctx, 1) // an error is the end of the test
		return &f
	}
}

const tooLong = `{"error":{"message":"The input is too long.","odd":1e-7}}`

// F01: the report wants 502 for a prefill's 5xx; its own status is passed on.
func TestF01PrefillRefusesWhileDecodeIsSilent(t *testing.T) {
	t.Parallel()
	f := func(c call, status int) {
		t.Run(c.name+" "+http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			s.d.SetFault(always(simengine.Fault{Hang: true}))
			s.p.SetFault(onceAt(t.Context(), s.d, simengine.Fault{Status: status, Body: []byte(tooLong)}))
			r := s.post(c)
			assert.Equal(t, status, r.status)
			assert.Equal(t, tooLong, r.body)
			assert.Equal(t, "application/json", r.header.Get("Content-Type"))
			s.idle()
			refused, silent := generations(s.p)[0].FirstByte, generations(s.d)[0]
			assert.Less(t, silent.Ended.Sub(refused), soon)
			s.told(s.d, silent.Rids[0])
			assert.Empty(t, aborts(s.p), "who has refused needs no abort")
		})
	}
	for _, c := range calls(4) {
		f(c, 400)
	}
	for _, status := range []int{404, 429, 500, 503} {
		f(generateCall(4), status)
	}
}

// The same with a decode that really waits for the KV, as it would for 300 s.
func TestF01PrefillRefusesWhileDecodeWaitsForKV(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			s.p.SetFault(onceAt(t.Context(), s.d, simengine.Fault{Status: 400, Body: []byte(tooLong)}))
			r := s.post(c)
			assert.Equal(t, 400, r.status)
			assert.Equal(t, tooLong, r.body)
			freed(t, s.d, 0, generations(s.p)[0].FirstByte)
			assert.Equal(t, map[pd.WorkerID][]pd.Outcome{"prefill-0": {pd.ClientFlaw}, "decode-0": {pd.Echo}}, s.outcomes(2),
				"a refusal counts against nobody")
		})
	}
}

// F01: prefill says no in an event of a stream that began with 200.
func TestF01PrefillRefusesInAStream(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	s.p.SetFault(always(simengine.Fault{ErrorAt: 1, ErrorEvent: `{"error":{"message":"no room left","code":503}}`}))
	// Prefill comes as far as its first event only with a decode that takes part.
	s.d.SetFault(always(simengine.Fault{HeadDelay: 2 * time.Second}))
	r := s.post(chatCall(4).streamed())
	assert.Equal(t, 503, r.status)
	assert.JSONEq(t, `{"error":{"message":"no room left","code":503}}`, r.body)
}

func TestF01PrefillDiesWhileDecodeIsSilent(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			s.d.SetFault(always(simengine.Fault{Hang: true}))
			s.p.SetFault(onceAt(t.Context(), s.d, simengine.Fault{Reset: true}))
			r := s.post(c)
			assert.Equal(t, 502, r.status)
			assert.Equal(t, "prefill_connection_lost", r.header.Get("X-Tandem-Error"))
			assert.Equal(t, "prefill_connection_lost", r.header.Get("X-SMG-Error-Code"))
			assert.NotContains(t, r.body, s.p.URL()[len("http://"):], "no address")
		})
	}
}

// F01, later: both sides know of each other, and decode soon says in words of its
// own that prefill is lost. That is an echo: prefill is blamed, and named.
func TestF01PrefillDiesWhileDecodeWaitsForKV(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{mayDie: true})
			s.p.SetFault(always(simengine.Fault{Die: simengine.DieAfterHandshake}))
			began := time.Now()
			r := s.post(c)
			outcomes := s.outcomes(2)
			assert.Equal(t, []pd.Outcome{pd.Echo}, outcomes["decode-0"])
			require.Error(t, s.p.Fatal())
			assert.NoError(t, s.d.Fatal())
			if s.outwaited() {
				assert.Equal(t, 500, r.status, r.body)
				return
			}
			assert.Equal(t, 502, r.status, r.body)
			assert.Equal(t, "prefill_connection_lost", r.header.Get("X-Tandem-Error"))
			assert.Less(t, time.Since(began), soon)
			assert.Equal(t, []pd.Outcome{pd.Fault}, outcomes["prefill-0"])
		})
	}
}

// outwaited reports whether decode's echo has waited 50 ms for prefill's own
// words in vain, as it should when prefill says nothing. Where prefill has spoken,
// the process stood still for so long, and then nobody can tell.
func (s *stack) outwaited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var prefill, decode pd.LegReport
	for _, l := range s.legs {
		if l.Role == pd.Prefill {
			prefill = l
		} else {
			decode = l
		}
	}
	return prefill.Outcome == pd.PairFault && prefill.End-decode.Headers >= 50*time.Millisecond
}

// The echo may come before the word itself, by a little: 50 ms, for which this
// test has the process for itself.
func TestAnEchoWaitsForTheOtherLegsOwnWords(t *testing.T) {
	const echo = `{"object":"error","message":"Decode transfer failed for request rank=0 decode_req.rid='x' ` +
		`decode_req.bootstrap_room=1 with exception KVTransferError(bootstrap_room=1): ` +
		`Failed to get kvcache from prefill instance, it might be dead","type":"500","code":500}`
	f := func(name string, prefill func(w http.ResponseWriter), status int, says string, blamed pd.Outcome) {
		t.Run(name, func(t *testing.T) {
			echoed := make(chan struct{})
			s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{
				scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, _ *http.Request, _ received) {
					<-echoed
					prefill(w)
				}),
				scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, _ *http.Request, _ received) {
					w.WriteHeader(http.StatusInternalServerError)
					_, _ = w.Write([]byte(echo))
					close(echoed)
				}),
			}})
			r := s.post(generateCall(4))
			outcomes := s.outcomes(2)
			assert.Equal(t, []pd.Outcome{pd.Echo}, outcomes["decode-0"])
			if s.outwaited() {
				assert.Equal(t, 500, r.status)
				assert.Equal(t, echo, r.body)
				return
			}
			assert.Equal(t, status, r.status)
			assert.Contains(t, r.body, says)
			assert.Equal(t, []pd.Outcome{blamed}, outcomes["prefill-0"])
		})
	}
	f("prefill is lost", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 502, "prefill worker prefill-0", pd.Fault)
	f("prefill refuses", func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(tooLong))
	}, 400, tooLong, pd.ClientFlaw)
	f("prefill says nothing", func(http.ResponseWriter) { time.Sleep(300 * time.Millisecond) }, 500, echo, pd.PairFault)
}

// The other way round: decode dies and prefill says so in words of its own.
func TestDecodeDiesWhilePrefillMovesTheKV(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{mayDie: true, prefill: func(c *simengine.Config) { c.Speed.TransferDelay = time.Minute }})
			call := s.start(c)
			s.eventually(func() bool { return s.p.Loads().Inflight == 1 }, "the KV moves")
			killed := time.Now()
			s.kill(s.d)
			r := call.wait(t)
			assert.Equal(t, 502, r.status, r.body)
			assert.Equal(t, "decode_connection_lost", r.header.Get("X-Tandem-Error"))
			over(t, s.p, 0, killed)
			outcomes := s.outcomes(2)
			assert.Equal(t, []pd.Outcome{pd.Fault}, outcomes["decode-0"])
			assert.NotEqual(t, []pd.Outcome{pd.Fault}, outcomes["prefill-0"])
		})
	}
}

// F02: with a limit of one attempt the answer is 503.
func TestF02DecodeCannotBeReachedWhilePrefillWaits(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{})
			s.kill(s.d)
			began := time.Now()
			r := s.post(c)
			assert.Equal(t, 503, r.status)
			assert.Equal(t, "decode_unavailable", r.header.Get("X-Tandem-Error"))
			assert.NotEmpty(t, r.header.Get("Retry-After"))
			s.idle()
			assert.Less(t, time.Since(began), soon)
			for _, rec := range generations(s.p) { // none if the refusal was faster
				assert.Less(t, rec.Ended.Sub(began), soon)
			}
		})
	}
}

// F02: with another attempt it is another decode, in another room, at once.
func TestF02ADecodeThatCannotBeReachedIsReplaced(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: func(o *pd.Orchestrator) {
				o.Retry = pd.Retry{MaxAttempts: 5, InitialBackoff: lasting} // no wait for who is not there
			}})
			s.kill(s.d)
			began := time.Now()
			s.ok(c)
			assert.Less(t, time.Since(began), soon)
			assert.Equal(t, 2, s.report(0).Attempts)
			s.idle()
			second, served := generations(s.prefills[1]), generations(s.decodes[1])
			require.Len(t, second, 1)
			require.Len(t, served, 1)
			assert.Equal(t, second[0].Rooms, served[0].Rooms)
			assert.Equal(t, second[0].Rids, served[0].Rids)
			for _, first := range generations(s.p) { // none if the refusal was faster
				assert.Less(t, first.Ended.Sub(began), soon)
				assert.NotEqual(t, first.Rooms, second[0].Rooms)
				assert.NotEqual(t, first.Rids, second[0].Rids)
			}
			assert.Equal(t, []pd.Outcome{pd.Unreachable}, s.outcomes(4)["decode-0"])
		})
	}
}

func TestF04PrefillsRefusalWinsOverDecodesTokens(t *testing.T) {
	t.Parallel()
	prefill := func(t *testing.T, release <-chan struct{}) *script {
		return scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, _ *http.Request, _ received) {
			<-release
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(tooLong))
		})
	}
	t.Run("before the first token", func(t *testing.T) {
		t.Parallel()
		now := make(chan struct{})
		close(now)
		s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{
			prefill(t, now),
			scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, _ received) {
				pieces(w, "") // the head alone is no commitment
				select {
				case <-time.After(500 * time.Millisecond):
				case <-r.Context().Done():
				}
				pieces(w, "data: {\"text\":\"garbage\"}\n\n", "data: [DONE]\n\n")
			}),
		}})
		r := s.post(generateCall(4).streamed())
		assert.Equal(t, 400, r.status)
		assert.Equal(t, tooLong, r.body)
	})
	t.Run("after the first token", func(t *testing.T) {
		t.Parallel()
		refuse := make(chan struct{})
		s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{
			prefill(t, refuse),
			scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, _ received) {
				pieces(w, "data: {\"text\":\"garbage\"}\n\n")
				<-r.Context().Done()
			}),
		}})
		l := s.listen(generateCall(4).streamed())
		assert.Equal(t, "data: {\"text\":\"garbage\"}\n\n", l.next())
		close(refuse)
		r := l.rest()
		assert.Error(t, r.err, "the end is broken")
		assert.Equal(t, []string{tooLong}, r.events(), "one error event and no [DONE]")
	})
}

// F05: falling back to decode alone is not offered, so there is one outcome.
func TestF05NoWorkerInARole(t *testing.T) {
	t.Parallel()
	f := func(name string, want setup, code string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, want)
			for _, c := range calls(4) {
				r := s.post(c)
				assert.Equal(t, 503, r.status)
				assert.Equal(t, code, r.header.Get("X-Tandem-Error"))
				assert.NotEmpty(t, r.header.Get("Retry-After"))
			}
			for _, e := range s.engines() {
				assert.Empty(t, e.Records(), "%s hears nothing", e.ID())
			}
		})
	}
	f("no prefill", setup{prefills: -1}, "no_prefill_available")
	f("no decode", setup{decodes: -1}, "no_decode_available")
}

func TestF08PrefillMayTakeAsLongAsDecodeNeeds(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: func(c *simengine.Config) {
		c.MaxTotalTokens = 100
		c.Speed.TokenInterval = 10 * time.Millisecond
	}})
	first := s.start(generateCall(60)) // takes the KV space for 600 ms
	arrived(t, s.d, 1)
	for _, c := range calls(30) {
		second := s.start(c)
		r := second.wait(t)
		require.Equal(t, 200, r.status, "%s: %s", c.name, r.body)
		require.NoError(t, r.err)
	}
	assert.Equal(t, 200, first.wait(t).status)
	assert.Empty(t, aborts(s.p))
	assert.Empty(t, aborts(s.d))
}
