package simengine

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slow is a request that decode needs 40 s for.
func slow(p *pair, room int, stream bool) object {
	return p.routed(room, object{
		"text": "a", "rid": "r", "stream": stream,
		"sampling_params": object{"max_new_tokens": 400, "ignore_eos": true},
	})
}

func TestAClientThatLeaves(t *testing.T) {
	const never = time.Duration(-1)
	f := func(name string, mode DisconnectMode, stream, running bool, freed time.Duration) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, func(a, d *Config) {
				d.Disconnect, d.TimeScale, a.TimeScale = mode, 0.1, 0.1
				d.Speed.TokenInterval = 100 * time.Millisecond
				if freed == never {
					d.Speed.TokenInterval = time.Millisecond
				}
			})
			body := slow(p, 1, stream)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			call := p.start(ctx, p.decode, "/generate", body)
			want := func(l Loads) bool { return l.Transfer == 1 }
			if running {
				require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/generate", body).status)
				want = func(l Loads) bool { return l.Running == 1 }
			}
			require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return want(p.decode.Loads()) }))
			cancel()
			<-call
			require.NoError(t, p.decode.WaitIdle(t.Context()))
			rec := p.decode.Records()[0]
			require.False(t, rec.ClosedByClient.IsZero())
			if freed == never {
				require.True(t, rec.AbortedAt.IsZero(), "it ran to its end")
				return
			}
			require.False(t, rec.AbortedAt.IsZero())
			assert.GreaterOrEqual(t, rec.AbortedAt.Sub(rec.ClosedByClient), freed)
			assert.Equal(t, Loads{Served: 1}, p.decode.Loads())
		})
	}
	const later = 200 * time.Millisecond // 2 s of a clock 10 times faster
	f("waiting stream", DisconnectMeasured, true, false, 0)
	f("running stream", DisconnectMeasured, true, true, 0)
	f("waiting call", DisconnectMeasured, false, false, 0)
	f("running call", DisconnectMeasured, false, true, never)
	f("running stream, two seconds later", DisconnectAfter2s, true, true, later)
	f("running stream, never", DisconnectNever, true, true, never)
}

func TestAWaitingCallIsFreedAtThePollOnly(t *testing.T) {
	p := newPair(t, func(_, d *Config) { d.TimeScale = 0.25 })
	ctx, cancel := context.WithCancel(t.Context())
	call := p.start(ctx, p.decode, "/generate", slow(p, 1, false))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
	cancel()
	<-call
	require.NoError(t, p.decode.WaitIdle(t.Context()))
	rec := p.decode.Records()[0]
	require.GreaterOrEqual(t, rec.AbortedAt.Sub(rec.Arrived), 900*time.Millisecond, "4 s on this clock, counted from the arrival")
}

func TestAnAbort(t *testing.T) {
	abort := func(p *pair, e *Engine, rid string) {
		got := p.post(p.t.Context(), e, "/abort_request", object{"rid": rid})
		require.Equal(p.t, http.StatusOK, got.status)
		require.Empty(p.t, got.body)
	}
	waits := func(e *Engine) {
		require.NoError(t, e.WaitFor(t.Context(), func([]Record) bool { return e.Loads().Transfer+e.Loads().Bootstrap == 1 }))
	}
	t.Run("frees every rid that begins with it", func(t *testing.T) {
		p := newPair(t, func(_, d *Config) { d.TimeScale = 1 })
		body := slow(p, 1, false)
		body["rid"] = "req-10"
		call := p.start(t.Context(), p.decode, "/generate", body)
		waits(p.decode)
		abort(p, p.decode, "req-2")
		abort(p, p.decode, "")
		require.Equal(t, 1, p.decode.Loads().Transfer)
		abort(p, p.decode, "req-1")
		require.Equal(t, http.StatusInternalServerError, (<-call).status)
	})
	t.Run("of decode is told to prefill", func(t *testing.T) {
		p := newPair(t, func(a, d *Config) { a.TimeScale, d.TimeScale, a.Speed.TransferDelay = 1, 1, time.Minute })
		pre := p.start(t.Context(), p.prefill, "/generate", slow(p, 1, false))
		dec := p.start(t.Context(), p.decode, "/generate", slow(p, 1, false))
		require.NoError(t, p.prefill.WaitFor(t.Context(), func([]Record) bool { return p.prefill.Loads().Inflight == 1 }))
		abort(p, p.decode, "r")
		require.Contains(t, string((<-dec).body), "Decode transfer failed")
		got := <-pre
		require.Equal(t, http.StatusInternalServerError, got.status)
		require.Contains(t, string(got.body), "Failed due to an unknown reason from another rank")
	})
	t.Run("of prefill is not told to decode", func(t *testing.T) {
		p := newPair(t, nil)
		dec := p.start(t.Context(), p.decode, "/generate", slow(p, 1, false))
		waits(p.decode)
		body := slow(p, 2, false)
		pre := p.start(t.Context(), p.prefill, "/generate", body)
		waits(p.prefill)
		abort(p, p.prefill, "r")
		require.Contains(t, string((<-pre).body), "Prefill bootstrap failed")
		require.Contains(t, string((<-dec).body), "timed out after 300.0s in KVPoll.WaitingForInput")
	})
	t.Run("while prefill computes", func(t *testing.T) {
		p := newPair(t, func(a, d *Config) { d.TimeScale, a.Speed.PrefillDelay = 1, time.Minute })
		ctx, cancel := context.WithCancel(t.Context())
		pre := p.start(ctx, p.prefill, "/generate", slow(p, 1, false))
		dec := p.start(ctx, p.decode, "/generate", slow(p, 1, true))
		require.NoError(t, p.prefill.WaitFor(t.Context(), func([]Record) bool {
			l := p.prefill.Loads()
			return l.Waiting == 1 && l.Bootstrap == 0
		}))
		abort(p, p.prefill, "r")
		got := <-pre
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, string(got.body), `"finish_reason":{"type":"abort","message":"Abort in waiting queue","status_code":null,"err_type":null}`)
		cancel()
		<-dec
	})
	t.Run("of all", func(t *testing.T) {
		p := newPair(t, func(_, d *Config) { d.TimeScale = 1 })
		call := p.start(t.Context(), p.decode, "/v1/completions", p.routed(1, object{"prompt": []string{"a", "b"}}))
		require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 2 }))
		require.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/abort_request", object{"abort_all": true}).status)
		require.Equal(t, http.StatusInternalServerError, (<-call).status)
	})
	t.Run("of a waiting stream", func(t *testing.T) {
		p := newPair(t, func(_, d *Config) { d.TimeScale = 1 })
		generate := p.start(t.Context(), p.decode, "/generate", slow(p, 1, true))
		waits(p.decode)
		abort(p, p.decode, "r")
		events := (<-generate).events()
		require.Len(t, events, 2)
		require.Contains(t, events[0], `"finish_reason":{"type":"abort","message":"Decode transfer failed`)
		require.Contains(t, events[0], `"status_code":500`)

		chat := p.start(t.Context(), p.decode, "/v1/chat/completions", p.routed(2, object{
			"messages": []object{{"role": "user", "content": "a"}}, "stream": true, "rid": "r",
			"stream_options": object{"include_usage": true},
		}))
		waits(p.decode)
		abort(p, p.decode, "r")
		got := <-chat
		require.Equal(t, http.StatusOK, got.status)
		events = got.events()
		require.Len(t, events, 3)
		require.Contains(t, events[0], `{"error":{"object":"error","message":"Decode transfer failed`)
		require.Contains(t, events[0], `"type":"INTERNAL_SERVER_ERROR","param":null,"code":500}}`)
		require.Contains(t, events[1], `"choices":[],"usage"`)
		require.Equal(t, "[DONE]", events[2])
	})
}

func TestTheFirstFailedItemAnswersForItsBatch(t *testing.T) {
	p := newPair(t, func(_, d *Config) { d.TimeScale = 1 })
	call := p.start(t.Context(), p.decode, "/generate", p.routed(1, object{"text": []string{"a", "b"}, "rid": []string{"x", "y"}}))
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 2 }))
	p.post(t.Context(), p.decode, "/abort_request", object{"rid": "y"})
	require.Equal(t, http.StatusInternalServerError, (<-call).status)
	require.Equal(t, 1, p.decode.Loads().Transfer, "the other goes on until somebody aborts it")
	p.post(t.Context(), p.decode, "/abort_request", object{"rid": "x"})
	require.NoError(t, p.decode.WaitIdle(t.Context()))
}
