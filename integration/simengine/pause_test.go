package simengine

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// silent asserts that url's server takes a connection and answers nothing.
func (p *pair) silent(url string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 150*time.Millisecond)
	defer cancel()
	require.ErrorIs(p.t, p.do(mustRequest(p.t, url).WithContext(ctx)).err, context.DeadlineExceeded)
}

func TestAPausedPrefill(t *testing.T) {
	t.Parallel()
	// Only prefill's word gives KV back that is held for it.
	p := narrow(t, func(a, d *Config) { a.TimeScale, d.TimeScale, d.Timers.DeferredRelease = 0.1, 0.1, time.Hour })
	early := p.start(t.Context(), p.prefill, "/generate", p.large(2))
	unknown := p.start(t.Context(), p.prefill, "/generate", p.large(3))
	p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 2 })
	p.prefill.Pause()
	transfer := p.start(t.Context(), p.decode, "/generate", p.large(2))
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	prealloc := p.start(t.Context(), p.decode, "/generate", p.large(3))
	p.until(p.decode, func(l Loads) bool { return l.Prealloc == 1 })
	p.silent(p.prefill.URL() + "/health")
	p.silent("http://" + p.prefill.cfg.BootstrapAddr + "/health")
	got := <-transfer
	require.Equal(t, http.StatusInternalServerError, got.status, "its heartbeat is not answered")
	require.Contains(t, string(got.body), "Decode transfer failed")
	require.Contains(t, string(got.body), "Lost connection with prefill instance")
	got = <-prealloc
	require.Equal(t, http.StatusInternalServerError, got.status)
	require.Contains(t, string(got.body), "Decode handshake failed")
	require.Contains(t, string(got.body), "Lost connection with prefill instance")
	require.Equal(t, 2, p.prefill.Loads().Bootstrap, "prefill knows nothing of it")
	require.Positive(t, p.decode.Loads().UsedTokens)

	time.Sleep(50 * time.Millisecond) // decode's word may still be on its way
	p.prefill.Resume()
	got = <-early
	require.Equal(t, http.StatusInternalServerError, got.status)
	require.Contains(t, string(got.body), "Prefill bootstrap failed")
	require.Contains(t, string(got.body), "Failed due to an unknown reason from another rank")
	p.idle(p.decode) // prefill has let go of the KV

	p.meets() // at once: decode looks it up again
	require.Equal(t, 1, p.prefill.Loads().Bootstrap, "nobody tells prefill of who had no room on decode")
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/abort_request", object{"abort_all": true}).status)
	require.Contains(t, string((<-unknown).body), "Aborted by AbortReq.")
}

func TestWhatIsSentToAPausedPrefillIsReadWhenItGoesOn(t *testing.T) {
	t.Parallel()
	p := narrow(t, nil)
	served := len(p.prefill.Records())
	p.prefill.Pause()
	ctx, leave := context.WithTimeout(t.Context(), patience)
	defer leave()
	sent := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { leave() }})
	require.ErrorIs(t, p.post(sent, p.prefill, "/generate", p.large(2)).err, context.Canceled)
	stays := p.start(t.Context(), p.prefill, "/generate", p.large(3))
	time.Sleep(50 * time.Millisecond)
	require.Len(t, p.prefill.Records(), served)

	p.prefill.Resume()
	var left Record
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.prefill.WaitFor(ctx, func(all []Record) bool {
		for _, rec := range all[served:] {
			if rec.Rooms[0] == "2" {
				left = rec
			}
		}
		return !left.Freed.IsZero()
	}))
	assert.False(t, left.ClosedByClient.IsZero())
	assert.GreaterOrEqual(t, left.AbortedAt.Sub(left.Arrived), 150*time.Millisecond, "it looks at its clients every 4 s, 0.2 s on this clock")
	p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 1 })
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/generate", p.large(3)).status)
	require.Equal(t, http.StatusOK, (<-stays).status)
}

func TestAnAbortSentToAPausedEngineIsCarriedOutWhenItGoesOn(t *testing.T) {
	t.Parallel()
	p := narrow(t, nil)
	call := p.start(t.Context(), p.prefill, "/generate", p.large(2))
	p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 1 })
	p.prefill.Pause()
	abort := p.start(t.Context(), p.prefill, "/abort_request", object{"abort_all": true})
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, 1, p.prefill.Loads().Bootstrap)
	p.prefill.Resume()
	require.Equal(t, http.StatusOK, (<-abort).status)
	require.Contains(t, string((<-call).body), "Aborted by AbortReq.")
}

func TestAPausedPrefillDoesNotCompute(t *testing.T) {
	t.Parallel()
	p := narrow(t, func(a, _ *Config) { a.Speed.PrefillDelay = time.Second })
	pre := p.start(t.Context(), p.prefill, "/generate", p.large(2))
	dec := p.start(t.Context(), p.decode, "/generate", p.large(2))
	p.until(p.prefill, func(l Loads) bool { return l.Waiting == 1 && l.Bootstrap == 0 })
	began := time.Now()
	p.prefill.Pause()
	time.Sleep(1200 * time.Millisecond)
	require.Equal(t, 1, p.prefill.Loads().Waiting)
	require.Equal(t, 1, p.decode.Loads().Transfer)
	p.prefill.Resume()
	require.Equal(t, http.StatusOK, (<-pre).status)
	require.Equal(t, http.StatusOK, (<-dec).status)
	require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond, "what it had left to do it did after the pause")
}

func TestADecodeGoesOnAfterAPauseAsIfNothingHadBeen(t *testing.T) {
	t.Parallel()
	const tokens, interval, stop = 20, 100 * time.Millisecond, 400 * time.Millisecond
	f := func(name string, stream bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, func(a, d *Config) {
				a.TimeScale, d.TimeScale, d.Speed.TokenInterval = 0.1, 0.1, interval
			})
			p.meets()
			body := func(room int) object {
				return p.routed(room, object{"text": "a", "stream": stream, "sampling_params": object{"max_new_tokens": tokens, "ignore_eos": true}})
			}
			running := p.start(t.Context(), p.decode, "/generate", body(2))
			require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/generate", body(2)).status)
			p.until(p.decode, func(l Loads) bool { return l.Running == 1 })
			waiting := p.start(t.Context(), p.decode, "/generate", body(3))
			p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
			p.decode.Pause()
			during := []<-chan reply{
				p.start(t.Context(), p.decode, "/generate", body(4)), p.start(t.Context(), p.prefill, "/generate", body(4)),
				p.start(t.Context(), p.prefill, "/generate", body(3)), waiting, running,
			}
			p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 1 })
			p.silent(p.decode.URL() + "/health")
			still := p.decode.Records()
			require.Equal(t, http.StatusOK, p.get(p.prefill, "/health").status, "prefill does not notice")
			time.Sleep(stop)
			require.Equal(t, still[1].Events, p.decode.Records()[1].Events)
			require.Len(t, p.decode.Records(), len(still))
			require.Equal(t, 1, p.prefill.Loads().Bootstrap)
			p.decode.Resume()
			for _, answer := range during {
				got := <-answer
				require.NoError(t, got.err)
				require.Equal(t, http.StatusOK, got.status, "%s", got.body)
				require.NotContains(t, string(got.body), "abort")
				if stream {
					require.True(t, strings.HasSuffix(string(got.body), "data: [DONE]\n\n"))
				}
			}
			rec := p.decode.Records()[1]
			require.GreaterOrEqual(t, rec.Ended.Sub(rec.Arrived), (tokens-1)*interval+stop, "it makes up for nothing")
		})
	}
	f("streams", true)
	f("calls", false)
}

func TestAPausedEngineCanBeKilledAndIsNotPausedWhenItStartsAgain(t *testing.T) {
	t.Parallel()
	p := narrow(t, nil)
	call := p.start(t.Context(), p.decode, "/generate", p.large(2))
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	p.decode.Pause()
	p.decode.Kill()
	require.Error(t, (<-call).err)
	require.NoError(t, p.decode.Restart())
	require.Equal(t, http.StatusOK, p.get(p.decode, "/ping").status)
}
