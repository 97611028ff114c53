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

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// until waits until the engine's loads are as wanted.
func (p *pair) until(e *Engine, want func(Loads) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	require.NoError(p.t, e.WaitFor(ctx, func([]Record) bool { return want(e.Loads()) }), "%+v", e.Loads())
}

// idle waits until the engine has nothing to do and holds no KV.
func (p *pair) idle(e *Engine) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	require.NoError(p.t, e.WaitIdle(ctx))
	require.Zero(p.t, e.Loads().UsedTokens)
}

// meets has the two sides know each other, as after any request.
func (p *pair) meets() {
	p.t.Helper()
	pre, dec := p.both("/generate", p.routed(1, object{"text": "a"}))
	require.Equal(p.t, http.StatusOK, pre.status, "%s", pre.body)
	require.Equal(p.t, http.StatusOK, dec.status, "%s", dec.body)
}

// narrow is a pair whose 300 s timers run in 15 s and whose decode has KV for
// one request of large.
func narrow(t *testing.T, change func(prefill, decode *Config)) *pair {
	p := newPair(t, func(a, d *Config) {
		a.TimeScale, d.TimeScale, d.MaxTotalTokens = 0.05, 0.05, 100
		if change != nil {
			change(a, d)
		}
	})
	p.meets()
	return p
}

func (p *pair) large(room int) object {
	return p.routed(room, object{"text": "a", "sampling_params": object{"max_new_tokens": 90}})
}

func TestAKilledPrefillIsLostToAllThatWaitOnDecodeAtOnce(t *testing.T) {
	t.Parallel()
	p := narrow(t, func(a, d *Config) { a.TimeScale, d.TimeScale = 0.2, 0.2 })
	transfer := p.start(t.Context(), p.decode, "/generate", p.large(2))
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	prealloc := p.start(t.Context(), p.decode, "/generate", p.large(3))
	p.until(p.decode, func(l Loads) bool { return l.Prealloc == 1 })
	prompt := len(Tokenize("a"))
	loads := p.decode.Loads()
	assert.Equal(t, Loads{Waiting: 2, Transfer: 1, Prealloc: 1, UsedTokens: prompt, Served: loads.Served}, loads, "who has no room uses none")
	p.prefill.Kill()
	assert.Equal(t, loads, p.decode.Loads(), "decode does not notice")
	assert.Equal(t, http.StatusOK, p.get(p.decode, "/health").status)

	lost := "Lost connection with prefill instance (bootstrap_addr: " + p.prefill.cfg.BootstrapAddr + ")"
	for head, answer := range map[string]<-chan reply{"Decode transfer failed": transfer, "Decode handshake failed": prealloc} {
		got := <-answer
		assert.Equal(t, http.StatusInternalServerError, got.status)
		assert.Contains(t, string(got.body), head)
		assert.Contains(t, string(got.body), lost)
	}
}

func TestDecodeHoldsTheKVOfALostTransferBack(t *testing.T) {
	t.Parallel()
	p := narrow(t, nil)
	lost := p.start(t.Context(), p.decode, "/generate", p.large(2))
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	p.prefill.Kill()
	require.Contains(t, string((<-lost).body), "Lost connection")
	answered := time.Now()
	p.until(p.decode, func(l Loads) bool { return l.Waiting == 0 })
	assert.Equal(t, len(Tokenize("a")), p.decode.Loads().UsedTokens)
	assert.Equal(t, http.StatusBadRequest, p.post(t.Context(), p.decode, "/flush_cache", object{}).status)

	p.idle(p.decode)
	assert.GreaterOrEqual(t, time.Since(answered), time.Second, "30 s on this clock are 1.5 s")
	assert.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/flush_cache", object{}).status)
}

func TestAPrefillThatLivesLetsGoOfTheKVOfAnAbortAtOnce(t *testing.T) {
	t.Parallel()
	p := narrow(t, func(_, d *Config) { d.Timers.DeferredRelease = time.Hour })
	left := p.large(2)
	left["rid"] = "r"
	call := p.start(t.Context(), p.decode, "/generate", left)
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/abort_request", object{"rid": "r"}).status)
	require.Contains(t, string((<-call).body), "Aborted by AbortReq.")
	p.idle(p.decode)
}

func TestAPrefillThatIsDeadBeforeContactIsAskedForFourteenSeconds(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(_, d *Config) { d.TimeScale = 0.05 })
	p.prefill.Kill()
	call := p.start(t.Context(), p.decode, "/generate", p.routed(1, object{"text": "a"}))
	p.until(p.decode, func(l Loads) bool { return l.Prealloc == 1 && l.Waiting == 1 && l.UsedTokens == 0 })
	got := <-call
	require.Equal(t, http.StatusInternalServerError, got.status)
	require.Contains(t, string(got.body), "Decode handshake failed")
	require.Contains(t, string(got.body), "Aborted by AbortReq.")
	require.GreaterOrEqual(t, got.took, 700*time.Millisecond, "14 s on this clock")
}

func TestAStreamThatHasItsKVOutlivesItsPrefill(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(_, d *Config) { d.Speed.TokenInterval = 10 * time.Millisecond })
	body := p.routed(1, object{"text": "a", "stream": true, "sampling_params": object{"max_new_tokens": 80, "ignore_eos": true}})
	stream := p.start(t.Context(), p.decode, "/generate", body)
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/generate", body).status)
	p.until(p.decode, func(l Loads) bool { return l.Running == 1 })
	p.prefill.Kill()
	got := <-stream // the heartbeat fails ten times meanwhile
	require.Equal(t, http.StatusOK, got.status)
	require.NoError(t, got.err)
	require.True(t, strings.HasSuffix(string(got.body), "data: [DONE]\n\n"))
	require.Contains(t, string(got.body), `"completion_tokens":80`)
}

func TestADecodeThatDiesFailsTheTransfersToItAndNothingElse(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, d *Config) {
		a.TimeScale, d.TimeScale = 1, 1
		a.Speed = Speed{PrefillDelay: 2 * time.Second, TransferDelay: time.Minute}
	})
	body := func(room int) object { return p.routed(room, object{"text": "a", "rid": fmt.Sprint("r", room)}) }
	post := func(room int) <-chan reply {
		p.start(t.Context(), p.decode, "/generate", body(room))
		return p.start(t.Context(), p.prefill, "/generate", body(room))
	}
	sent := post(1)
	p.until(p.prefill, func(l Loads) bool { return l.Inflight == 1 })
	computed := post(2)
	p.until(p.prefill, func(l Loads) bool { return l.Waiting == 1 && l.Bootstrap == 0 })
	unknown := p.start(t.Context(), p.prefill, "/generate", body(3))
	p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 1 })
	p.decode.Kill()
	for cause, answer := range map[string]<-chan reply{
		"Failed to send kv chunk of 1 to 127.0.0.1:":                        sent,
		"Decode instance could be dead, remote mooncake session 127.0.0.1:": computed,
	} {
		got := <-answer
		assert.Equal(t, http.StatusInternalServerError, got.status)
		assert.Contains(t, string(got.body), "Prefill transfer failed")
		assert.Contains(t, string(got.body), cause)
	}
	assert.Equal(t, 1, p.prefill.Loads().Bootstrap, "nobody tells prefill that nobody will come")
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/abort_request", object{"rid": "r3"}).status)
	assert.Contains(t, string((<-unknown).body), "Aborted by AbortReq.")
}
