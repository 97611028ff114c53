package simengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faulty is a decode that answers without a prefill, with a fault.
func faulty(t *testing.T, fault Fault) (*pair, object) {
	p := newPair(t, nil)
	p.decode.SetFault(func(Record) *Fault { return &fault })
	return p, object{
		"text": "a", "stream": true, "bootstrap_host": fakeHost, "bootstrap_room": 1,
		"sampling_params": object{"max_new_tokens": 6, "ignore_eos": true},
	}
}

func TestAFaultInsteadOfAnAnswer(t *testing.T) {
	f := func(name string, fault Fault, check func(*testing.T, *pair, reply)) {
		t.Run(name, func(t *testing.T) {
			p, body := faulty(t, fault)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if fault.Hang {
				ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
			}
			check(t, p, p.post(ctx, p.decode, "/generate", body))
			require.NoError(t, p.decode.WaitIdle(t.Context()))
		})
	}
	f("hang", Fault{Hang: true}, func(t *testing.T, _ *pair, r reply) { require.ErrorIs(t, r.err, context.DeadlineExceeded) })
	f("reset", Fault{Reset: true}, func(t *testing.T, p *pair, r reply) {
		require.ErrorIs(t, r.err, syscall.ECONNRESET)
		require.NoError(t, p.decode.Fatal())
	})
	f("death", Fault{Die: DieBeforeHandshake}, func(t *testing.T, p *pair, r reply) {
		require.Error(t, r.err)
		require.Error(t, p.decode.Fatal())
		require.Error(t, p.get(p.decode, "/ping").err)
	})
	f("status", Fault{Status: 503, Body: []byte(`{"error":"busy"}`), Header: http.Header{"Retry-After": {"1"}}}, func(t *testing.T, _ *pair, r reply) {
		require.Equal(t, 503, r.status)
		require.Equal(t, "application/json", r.header.Get("Content-Type"))
		require.Equal(t, "1", r.header.Get("Retry-After"))
		require.Equal(t, `{"error":"busy"}`, string(r.body))
	})
	f("delay", Fault{Delay: 50 * time.Millisecond}, func(t *testing.T, _ *pair, r reply) {
		require.Equal(t, 200, r.status)
		require.GreaterOrEqual(t, r.took, 50*time.Millisecond)
	})
	f("late head", Fault{HeadDelay: 50 * time.Millisecond}, func(t *testing.T, _ *pair, r reply) {
		require.Equal(t, 200, r.status)
		require.GreaterOrEqual(t, r.took, 50*time.Millisecond)
	})
}

func TestAFaultWithinAStream(t *testing.T) {
	f := func(name string, fault Fault, events int, done bool, check func(*testing.T, reply)) {
		t.Run(name, func(t *testing.T) {
			p, body := faulty(t, fault)
			got := p.post(t.Context(), p.decode, "/generate", body)
			all := got.events()
			require.Equal(t, 200, got.status)
			require.Len(t, all, events, "%s", got.body)
			require.Equal(t, done, strings.HasSuffix(string(got.body), "data: [DONE]\n\n"))
			check(t, got)
		})
	}
	well := func(t *testing.T, r reply) { require.NoError(t, r.err) }
	f("none", Fault{}, 7, true, well)
	f("an error first", Fault{ErrorAt: 1, ErrorEvent: `{"error":{"message":"x"}}`}, 2, true, func(t *testing.T, r reply) {
		require.Equal(t, `{"error":{"message":"x"}}`, r.events()[0])
	})
	f("an error later", Fault{ErrorAt: 3, ErrorEvent: `{"error":{"code":500}}`}, 4, true, well)
	f("a reset", Fault{ResetAfter: 2}, 2, false, func(t *testing.T, r reply) { require.ErrorIs(t, r.err, syscall.ECONNRESET) })
	f("an end within the body", Fault{CutAfter: 2}, 2, false, func(t *testing.T, r reply) { require.ErrorIs(t, r.err, io.ErrUnexpectedEOF) })
	f("no [DONE]", Fault{TruncateAfter: 4}, 4, false, well)
	f("long lines", Fault{Pad: 100_000}, 7, true, func(t *testing.T, r reply) { require.Greater(t, len(r.body), 600_000) })
	f("many events at once", Fault{Merge: 4}, 7, true, well)
	f("events in pieces", Fault{Split: 100}, 7, true, well)
}

// pieces reads a raw answer and returns what came with each read.
func pieces(t *testing.T, e *Engine, request string) []string {
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.URL(), "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	var out []string
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			out = append(out, string(buf[:n]))
		}
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			return out
		}
	}
}

func TestEventsComeMergedOrInPieces(t *testing.T) {
	const body = `{"text":"a","stream":true,"bootstrap_host":"2.2.2.2","bootstrap_room":1,"sampling_params":{"max_new_tokens":6,"ignore_eos":true}}`
	request := fmt.Sprintf("POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	p, _ := faulty(t, Fault{Merge: 3})
	longest := 0
	for _, piece := range pieces(t, p.decode, request) {
		longest = max(longest, strings.Count(piece, "data: "))
	}
	assert.GreaterOrEqual(t, longest, 3)

	p, _ = faulty(t, Fault{Split: 50})
	for _, piece := range pieces(t, p.decode, request)[1:] {
		assert.LessOrEqual(t, strings.Count(piece, "\n\n"), 2)
	}
}

func TestAnIdleConnectionIsClosedWithoutNotice(t *testing.T) {
	e := start(t, Config{Role: Decode, Timers: Timers{KeepAlive: 50 * time.Millisecond}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.URL(), "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn) // ends when the engine closes
	require.NoError(t, err)
	require.Contains(t, string(answer), "HTTP/1.1 200 OK")
	require.NotContains(t, strings.ToLower(string(answer)), "connection: close")
}

func TestAKilledEngineRefusesAndAPausedOneIsSilent(t *testing.T) {
	p := newPair(t, nil)
	p.decode.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.post(ctx, p.decode, "/v1/completions", object{}).err, context.DeadlineExceeded)
	p.decode.Resume()
	require.Equal(t, 200, p.get(p.decode, "/ping").status)
	p.decode.Kill()
	require.ErrorIs(t, p.get(p.decode, "/ping").err, syscall.ECONNREFUSED)
	require.NoError(t, p.decode.Restart())
	require.Equal(t, 200, p.get(p.decode, "/ping").status)
	require.NoError(t, p.decode.Close())
	require.Error(t, p.decode.Restart())
}

func TestAnEngineDiesWithinTheHandshake(t *testing.T) {
	f := func(name string, victim func(*pair) *Engine) {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil)
			e := victim(p)
			e.SetFault(func(Record) *Fault { return &Fault{Die: DieAfterHandshake} })
			pre, dec := p.both("/generate", p.routed(1, object{"text": "a"}))
			require.Error(t, e.Fatal())
			if e == p.prefill {
				require.Error(t, pre.err)
				require.Contains(t, string(dec.body), "Lost connection")
				return
			}
			require.Error(t, dec.err)
		})
	}
	f("prefill", func(p *pair) *Engine { return p.prefill })
	f("decode", func(p *pair) *Engine { return p.decode })
}

func TestAPathThatDoesNotGenerateFails(t *testing.T) {
	p := newPair(t, nil)
	p.decode.SetPathFault("/health", &Fault{Status: 503})
	require.Equal(t, 503, p.get(p.decode, "/health").status)
	require.Equal(t, 200, p.get(p.decode, "/ping").status)
	p.decode.SetPathFault("/health", nil)
	require.Equal(t, 200, p.get(p.decode, "/health").status)
	p.decode.SetPathFault("/abort_request", &Fault{Reset: true})
	require.Error(t, p.post(t.Context(), p.decode, "/abort_request", object{"rid": "a"}).err)
	all := p.decode.Records()
	require.Equal(t, `{"rid":"a"}`, string(all[len(all)-1].Body), "it is on record all the same")
	p.decode.SetPathFault("/abort_request", &Fault{Delay: 20 * time.Millisecond})
	got := p.post(t.Context(), p.decode, "/abort_request", object{"rid": "a"})
	require.Equal(t, 200, got.status)
	require.GreaterOrEqual(t, got.took, 20*time.Millisecond)
}

func TestOnlyStreamsOfGenerateHaveTheirHeadAtOnce(t *testing.T) {
	p := newPair(t, func(_, d *Config) { d.TimeScale = 1 })
	f := func(name, path string, body object, early bool) {
		t.Run(name, func(t *testing.T) {
			n := len(p.decode.Records()) + 1
			body = p.routed(n, body)
			body["stream"] = true
			dec := p.start(t.Context(), p.decode, path, body)
			require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
			require.Equal(t, early, !p.decode.Records()[n-1].FirstByte.IsZero())
			require.Equal(t, 200, p.post(t.Context(), p.prefill, path, body).status)
			require.Equal(t, 200, (<-dec).status)
		})
	}
	f("generate", "/generate", object{"text": "a"}, true)
	f("chat", "/v1/chat/completions", object{"messages": []object{{"role": "user", "content": "a"}}, "max_tokens": 3}, false)
	f("completions", "/v1/completions", object{"prompt": "a"}, false)
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	e := start(t, Config{Role: Decode})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	require.ErrorIs(t, e.Wait(ctx, 1), context.Canceled)
	require.NoError(t, e.WaitIdle(t.Context()))
}
