package simengine

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestALiveRoomUsedAgainIsTheEndOfTheEngine(t *testing.T) {
	f := func(name string, engine func(*pair) *Engine) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(a, b *Config) { a.TimeScale, b.TimeScale = 1, 1 })
			e := engine(p)
			body := p.routed(4, object{"text": "a"})
			first := p.start(t.Context(), e, "/generate", body)
			require.NoError(t, e.WaitFor(t.Context(), func([]Record) bool { return e.Loads().Waiting == 1 && e.Loads().Prealloc == 0 }))
			second := p.post(t.Context(), e, "/generate", body)
			require.Error(t, second.err)
			require.Error(t, (<-first).err, "every connection is reset")
			require.ErrorContains(t, e.Fatal(), "room 4 is live already")
			require.ErrorContains(t, p.get(e, "/ping").err, "refused")
			require.NoError(t, e.Restart())
			require.NoError(t, e.Fatal())
			require.Equal(t, http.StatusOK, p.get(e, "/ping").status)
		})
	}
	f("prefill", func(p *pair) *Engine { return p.prefill })
	f("decode", func(p *pair) *Engine { return p.decode })
}

func TestWithCrossTalkTwoRequestsShareARoom(t *testing.T) {
	p := newPair(t, func(a, d *Config) { a.CrossTalk, d.CrossTalk, a.TimeScale, d.TimeScale = true, true, 1, 1 })
	body := func(text string) object {
		return p.routed(4, object{"text": text, "sampling_params": object{"max_new_tokens": 16}})
	}
	var decodes, prefills []<-chan reply
	texts := []string{"one", "two"}
	for i, text := range texts {
		decodes = append(decodes, p.start(t.Context(), p.decode, "/generate", body(text)))
		require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Waiting == i+1 }))
	}
	for _, text := range texts {
		prefills = append(prefills, p.start(t.Context(), p.prefill, "/generate", body(text)))
	}
	for i := range texts {
		require.Equal(t, http.StatusOK, (<-prefills[i]).status)
		require.Equal(t, http.StatusOK, (<-decodes[i]).status)
	}
	require.NoError(t, p.prefill.Fatal())
	require.NoError(t, p.decode.Fatal())
}

func TestABodyThatKills(t *testing.T) {
	f := func(name string, victim Role, why string, change func(object)) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil)
			body := p.routed(3, object{"text": "a", "return_logprob": true})
			change(body)
			pre, _ := p.both("/generate", body)
			e := p.decode
			if victim == Prefill {
				e = p.prefill
				require.Error(t, pre.err)
			}
			require.ErrorContains(t, e.Fatal(), why)
		})
	}
	f("negative room", Prefill, "negative", func(o object) { o["bootstrap_room"] = -5 })
	f("token outside the vocabulary", Prefill, "vocabulary", func(o object) { delete(o, "text"); o["input_ids"] = []int{99999} })
	f("too many top logprobs", Prefill, "129 top logprobs", func(o object) { o["top_logprobs_num"] = 129 })
	f("a list of rooms for one prompt", Prefill, "TypeError", func(o object) { o["bootstrap_room"] = []int{3} })
	f("a list of hosts for one prompt", Decode, "TypeError", func(o object) { o["bootstrap_host"] = []string{"127.0.0.1"} })
	f("no host on decode", Decode, "no bootstrap host", func(o object) { delete(o, "bootstrap_host") })
}

func TestPrefillFailsAloneAndDecodeWaits(t *testing.T) {
	p := newPair(t, nil)
	body := p.routed(9, object{"text": "a", "rid": "r"})
	dec := p.post(t.Context(), p.decode, "/generate", body)
	require.Equal(t, http.StatusInternalServerError, dec.status)
	require.Contains(t, string(dec.body), "Decode transfer failed for request rank=0 decode_req.req.rid='r' decode_req.req.bootstrap_room=9 "+
		"with exception KVTransferError(bootstrap_room=9): Request 9 timed out after 300.0s in KVPoll.WaitingForInput")
	require.GreaterOrEqual(t, dec.took, 500*time.Millisecond, "300 s on this clock")

	pre := p.post(t.Context(), p.prefill, "/generate", body)
	require.Equal(t, http.StatusInternalServerError, pre.status)
	require.Contains(t, string(pre.body), "Failed due to an unknown reason from another rank", "decode told prefill that it left")

	pre = p.post(t.Context(), p.prefill, "/generate", p.routed(10, object{"text": "a"}))
	require.Equal(t, http.StatusInternalServerError, pre.status)
	require.Contains(t, string(pre.body), "Request 10 timed out after 300.1s in KVPoll.Bootstrapping")
}

func TestDecodeFollowsTheBootstrapAddressOfTheBody(t *testing.T) {
	p := newPair(t, nil)
	body := p.routed(1, object{"text": "a"})
	body["bootstrap_port"] = deadPort(t)
	got := p.post(t.Context(), p.decode, "/generate", body)
	require.Equal(t, http.StatusInternalServerError, got.status)
	require.Contains(t, string(got.body), "Decode handshake failed")
	require.Contains(t, string(got.body), "Aborted by AbortReq.")

	body = p.routed(2, object{"text": "a"})
	body["bootstrap_host"] = "[127.0.0.1]"
	_, dec := p.both("/generate", body)
	require.Equal(t, http.StatusOK, dec.status, "brackets are taken off: %s", dec.body)
}

func TestDecodeWaitsForAPrefillThatIsNotRegisteredYet(t *testing.T) {
	p := newPair(t, func(a, b *Config) { a.TimeScale, b.TimeScale = 0.1, 0.1 })
	p.prefill.SetBootstrap(BootstrapUnregistered)
	decode := p.start(t.Context(), p.decode, "/generate", p.routed(1, object{"text": "a"}))
	require.NoError(t, p.decode.Wait(t.Context(), 1))
	p.prefill.SetBootstrap(BootstrapUp)
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/generate", p.routed(1, object{"text": "a"})).status)
	require.Equal(t, http.StatusOK, (<-decode).status)
}

func TestAPrefillThatIsGoneIsNoticedByItsHeartbeat(t *testing.T) {
	f := func(name string, end func(*pair)) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil)
			_, ok := p.both("/generate", p.routed(1, object{"text": "a"}))
			require.Equal(t, http.StatusOK, ok.status)
			waiting := p.start(t.Context(), p.decode, "/generate", p.routed(2, object{"text": "a"}))
			require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
			end(p)
			got := <-waiting
			require.Equal(t, http.StatusInternalServerError, got.status)
			require.Contains(t, string(got.body), fmt.Sprintf("Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:%d)", p.prefill.BootstrapPort()))
		})
	}
	f("killed", func(p *pair) { p.prefill.Kill() })
	f("only its bootstrap server", func(p *pair) { p.prefill.SetBootstrap(BootstrapDown) })
}

func TestARestartedPairServesAgain(t *testing.T) {
	p := newPair(t, nil)
	serve := func(room int) {
		t.Helper()
		pre, dec := p.both("/generate", p.routed(room, object{"text": "a"}))
		require.Equal(t, http.StatusOK, pre.status, "%s", pre.body)
		require.Equal(t, http.StatusOK, dec.status, "%s", dec.body)
	}
	serve(1)
	url, port := p.prefill.URL(), p.prefill.BootstrapPort()
	require.NoError(t, p.prefill.Restart())
	require.Equal(t, url, p.prefill.URL())
	require.Equal(t, port, p.prefill.BootstrapPort())
	serve(2)
	require.NoError(t, p.decode.Restart())
	serve(2)
}

func TestOneFailedTransferBreaksThePairUntilDecodeRestarts(t *testing.T) {
	p := newPair(t, nil)
	other := start(t, Config{Role: Decode, TimeScale: 0.005})
	p.prefill.SetFault(func(r Record) *Fault { return &Fault{FailTransfer: r.Rooms[0] == "1"} })
	pre, dec := p.both("/generate", p.routed(1, object{"text": "a"}))
	require.Equal(t, http.StatusInternalServerError, pre.status)
	require.Contains(t, string(pre.body), "Failed to send kv chunk of 1 to ")
	require.Equal(t, http.StatusInternalServerError, dec.status)
	require.Contains(t, string(dec.body), "Failed to get kvcache from prefill instance, it might be dead")

	pre, dec = p.both("/generate", p.routed(2, object{"text": "a"}))
	require.Contains(t, string(pre.body), "is not alive")
	require.Equal(t, http.StatusInternalServerError, dec.status)

	broken := p.decode
	p.decode = other
	_, dec = p.both("/generate", p.routed(3, object{"text": "a"}))
	require.Equal(t, http.StatusOK, dec.status, "another decode is served")

	p.decode = broken
	require.NoError(t, p.decode.Restart())
	_, dec = p.both("/generate", p.routed(4, object{"text": "a"}))
	require.Equal(t, http.StatusOK, dec.status)
}

func TestAWrongPairingShowsInTheOutput(t *testing.T) {
	p := newPair(t, nil)
	want := Expected(Tokenize("one"), Params{MaxNewTokens: 16})
	pre := p.start(t.Context(), p.prefill, "/generate", p.routed(5, object{"text": "two", "sampling_params": object{"max_new_tokens": 16}}))
	dec := p.post(t.Context(), p.decode, "/generate", p.routed(5, object{"text": "one", "sampling_params": object{"max_new_tokens": 16}}))
	require.Equal(t, http.StatusOK, (<-pre).status)
	require.Equal(t, http.StatusOK, dec.status, "nobody checks")
	got := dec.object(t)
	require.NotEqual(t, want.Text, got["text"])
	sim := got["meta_info"].(object)["sim"].(object)
	require.Equal(t, object{"room": 5.0, "prefill": p.prefill.ID()}, sim)
}

func TestTheFakeHostNeedsNoPeer(t *testing.T) {
	p := newPair(t, nil)
	for _, e := range []*Engine{p.prefill, p.decode} {
		got := p.post(t.Context(), e, "/generate", object{"text": "a", "bootstrap_host": fakeHost, "bootstrap_room": 0})
		require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	}
}

func TestDecodeGivesItsKVSpaceFirstComeFirstServed(t *testing.T) {
	p := newPair(t, func(a, d *Config) {
		a.TimeScale, d.TimeScale = 1, 1
		d.MaxTotalTokens = 100
	})
	body := func(room, tokens int) object {
		return p.routed(room, object{"text": "a", "stream": true, "sampling_params": object{"max_new_tokens": tokens}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holder := p.start(ctx, p.decode, "/generate", body(1, 89))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
	large := p.start(t.Context(), p.decode, "/generate", body(2, 50))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Prealloc == 1 }))
	small := p.start(t.Context(), p.decode, "/generate", body(3, 5))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Prealloc == 2 }))
	require.Equal(t, 3, p.decode.Loads().Waiting)
	cancel()
	require.Error(t, (<-holder).err)
	for room, answer := range map[int]<-chan reply{2: large, 3: small} {
		require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/generate", body(room, 5)).status)
		require.Equal(t, http.StatusOK, (<-answer).status)
	}
	tooLong := p.post(t.Context(), p.decode, "/generate", p.routed(4, object{"text": strings.Repeat("a", 101)}))
	require.Equal(t, http.StatusBadRequest, tooLong.status)
	require.Contains(t, string(tooLong.body), "exceeds the maximum number of tokens")
}

func TestDataParallelRanks(t *testing.T) {
	rank := func(r reply) any { return r.object(t)["meta_info"].(object)["dp_rank"] }
	t.Run("follow the room", func(t *testing.T) {
		p := newPair(t, func(a, b *Config) { a.DPSize, b.DPSize, b.LoadBalance = 4, 4, FollowBootstrapRoom })
		pre, dec := p.both("/generate", p.routed(6, object{"text": "a"}))
		assert.Equal(t, 2.0, rank(pre))
		assert.Equal(t, 2.0, rank(dec))
	})
	t.Run("a forced rank that conflicts", func(t *testing.T) {
		p := newPair(t, func(a, _ *Config) { a.DPSize = 4 })
		body := p.routed(6, object{"text": "a", "routed_dp_rank": 1})
		got := p.post(t.Context(), p.prefill, "/generate", body)
		require.Equal(t, http.StatusInternalServerError, got.status)
		require.Contains(t, string(got.body), "follow_bootstrap_room conflict")
	})
	t.Run("a forced rank that decode is told of", func(t *testing.T) {
		p := newPair(t, func(a, b *Config) { a.DPSize, b.DPSize = 4, 4 })
		pre, dec := p.both("/generate", p.routed(6, object{"text": "a", "routed_dp_rank": 1, "disagg_prefill_dp_rank": 1}))
		assert.Equal(t, 1.0, rank(pre))
		assert.Equal(t, http.StatusOK, dec.status)
	})
	t.Run("in turns, asked for by decode", func(t *testing.T) {
		p := newPair(t, func(a, _ *Config) { a.DPSize, a.LoadBalance = 2, RoundRobin })
		for room, want := range []any{0.0, 1.0, 0.0} {
			pre, dec := p.both("/generate", p.routed(room+1, object{"text": "a"}))
			assert.Equal(t, want, rank(pre))
			assert.Equal(t, http.StatusOK, dec.status)
		}
	})
	t.Run("by a header, on the OpenAI endpoints", func(t *testing.T) {
		p := newPair(t, func(_, b *Config) { b.DPSize = 2 })
		for value, status := range map[string]int{"x": 400, "2": 400} {
			req, err := http.NewRequest(http.MethodPost, p.decode.URL()+"/v1/completions", strings.NewReader(`{"prompt":"a"}`))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Data-Parallel-Rank", value)
			assert.Equal(t, status, p.do(req).status)
		}
	})
}
