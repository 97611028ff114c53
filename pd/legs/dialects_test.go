package legs_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/patch"
)

// oneLeg is a dialect for a pool of regular workers: one call does it all. It
// shows that legs, holds and aborts need no pair.
type oneLeg struct{ aborts *legs.Aborter }

func (oneLeg) Name() string                     { return "one-leg" }
func (oneLeg) Samples(*pd.Request) (int, error) { return 1, nil } // such an engine handles n itself
func (d oneLeg) Exchange(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	leg, stop := d.leg(ctx, req, plan.Decode, req.Edit.Payload(), func(o pd.Outcome) { plan.End(pd.Unused, o) })
	return d.answer(up, req, leg, stop)
}

// leg prepares a leg that is dropped when the client leaves.
func (d oneLeg) leg(ctx context.Context, req *pd.Request, lease *pd.Lease, body *patch.Payload, end func(pd.Outcome)) (*legs.Leg, func() bool) {
	call := &pd.Call{Worker: lease.Worker, Method: req.Method, Path: req.Endpoint.Path(), Header: req.Header, Body: body}
	leg := legs.NewLeg(ctx, req, lease, call, nil, []string{pd.NewRid()}, end)
	stop := context.AfterFunc(ctx, func() { d.aborts.Drop(leg, pd.Left, pd.ErrCancelled(pd.StageClient)) })
	return leg, stop
}

// answer makes the call whose answer the client gets, up to the commit.
func (d oneLeg) answer(up *pd.Upstream, req *pd.Request, leg *legs.Leg, stop func() bool) (*pd.Response, error) {
	fail := func(err *pd.Error) (*pd.Response, error) {
		stop()
		leg.End(legs.NewFailure(err).Outcome, err)
		return nil, err
	}
	resp, err := leg.Send(up)
	if err != nil {
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return fail(refusal(leg, resp))
	}
	out := &pd.Response{Status: 200, Header: pd.Inbound(resp.Header), Length: resp.ContentLength, Stream: req.Stream}
	var src io.Reader = resp.Body
	if req.Stream {
		held, event, err := legs.Hold(resp.Body, make([]byte, 4096))
		if event == nil {
			defer resp.Body.Close()
			return fail(leg.ReadError(err))
		}
		leg.First()
		src = io.MultiReader(bytes.NewReader(held), resp.Body)
	}
	out.Body = &legBody{d: d, leg: leg, src: src, close: resp.Body, stop: stop}
	return out, nil
}

func refusal(leg *legs.Leg, resp *http.Response) *pd.Error {
	body, err := leg.ReadAll(resp.Body, legs.MaxErrorBody)
	if err != nil {
		return err
	}
	w := leg.Call.Worker
	return &pd.Error{Stage: pd.StageOf(w.Role), Worker: w.ID, Kind: pd.Refused, Status: resp.StatusCode, Body: body}
}

// legBody is an answer that owns its leg.
type legBody struct {
	d     oneLeg
	leg   *legs.Leg
	src   io.Reader
	close io.Closer
	stop  func() bool
	once  sync.Once
}

func (b *legBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	switch {
	case err == io.EOF:
		b.end(pd.Success, nil)
	case err != nil:
		failed := b.leg.ReadError(err)
		b.end(legs.NewFailure(failed).Outcome, failed)
		err = failed
	}
	return n, err
}

func (b *legBody) end(o pd.Outcome, err *pd.Error) {
	b.once.Do(func() {
		b.stop()
		b.leg.End(o, err)
		_ = b.close.Close()
	})
}

func (b *legBody) Close() error {
	gone := pd.ErrCancelled(pd.StageClient)
	b.d.aborts.Drop(b.leg, pd.Left, gone) // nothing, when the answer was read to its end
	<-b.leg.Context().Done()
	b.end(pd.Left, gone)
	return nil
}

// sequential is a dialect of engines that answer one after the other: prefill's
// answer says where its KV cache lies, and goes into decode's body.
type sequential struct{ oneLeg }

func (sequential) Name() string { return "sequential" }
func (d sequential) Exchange(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	edit := req.Edit.Clone()
	edit.Replace("stream", []byte("false"))
	prefilled := pd.Unused
	leg, stop := d.leg(ctx, req, plan.Prefill, edit.Payload(patch.Member{Name: "max_tokens", Raw: []byte("1")}), func(o pd.Outcome) {
		prefilled = o
	})
	params, err := d.prefill(up, leg)
	stop()
	if err != nil {
		leg.End(legs.NewFailure(err).Outcome, err)
		plan.End(prefilled, pd.Unused)
		return nil, err
	}
	leg.End(pd.Success, nil)

	body := req.Edit.Payload(patch.Member{Name: "kv_transfer_params", Raw: params})
	leg, stop = d.leg(ctx, req, plan.Decode, body, func(o pd.Outcome) { plan.End(prefilled, o) })
	return d.answer(up, req, leg, stop)
}

func (d sequential) prefill(up *pd.Upstream, leg *legs.Leg) ([]byte, *pd.Error) {
	resp, err := leg.Send(up)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(leg, resp)
	}
	body, err := leg.ReadAll(resp.Body, 1<<20)
	if err != nil {
		return nil, err
	}
	doc, scanErr := patch.Scan(body)
	if scanErr != nil {
		return nil, pd.AsError(scanErr)
	}
	params, _ := doc.Get("kv_transfer_params")
	return params.Raw, nil
}

// bench is an orchestrator over one of these dialects and two real servers.
type bench struct {
	orch            *pd.Orchestrator
	aborts          *legs.Aborter
	prefill, decode *pd.Worker

	mu       sync.Mutex
	log      []string
	ended    [][2]pd.Outcome
	released int
	taken    int
	report   chan pd.Report
}

func newBench(t *testing.T, dialect func(oneLeg) pd.Dialect, prefill, decode http.HandlerFunc) *bench {
	keep, fresh := pd.NewTransport(time.Second, true), pd.NewTransport(time.Second, false)
	b := &bench{aborts: &legs.Aborter{Transport: keep}, report: make(chan pd.Report, 10)}
	serve := func(name string, h http.HandlerFunc) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.Path == "/abort_request" {
				body = []byte("abort")
			}
			b.mu.Lock()
			b.log = append(b.log, name+" "+string(body))
			b.mu.Unlock()
			if string(body) != "abort" {
				h(w, r)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	if prefill != nil {
		b.prefill = &pd.Worker{ID: "p", Role: pd.Prefill, URL: serve("p", prefill)}
	}
	b.decode = &pd.Worker{ID: "d", Role: pd.Decode, URL: serve("d", decode)}
	b.orch = &pd.Orchestrator{
		Planner: b, Dialect: dialect(oneLeg{b.aborts}), Upstream: pd.Upstream{Transport: keep, Fresh: fresh},
		Hooks: pd.Hooks{Done: func(_ *pd.Request, r pd.Report) { b.report <- r }},
	}
	t.Cleanup(func() {
		b.aborts.Group.Wait()
		keep.CloseIdleConnections()
		b.mu.Lock()
		defer b.mu.Unlock()
		assert.Equal(t, b.taken, b.released, "leases")
	})
	return b
}

func (b *bench) Plan(_ context.Context, _ *pd.Request, n int, _ []pd.WorkerID) ([]*pd.Plan, error) {
	lease := func(w *pd.Worker) *pd.Lease {
		if w == nil {
			return nil
		}
		b.taken++
		return pd.NewLease(w, func(pd.Outcome) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.released++
		}, nil)
	}
	plans := make([]*pd.Plan, n)
	for i := range plans {
		plans[i] = pd.NewPlan(lease(b.prefill), lease(b.decode), func(p, d pd.Outcome) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ended = append(b.ended, [2]pd.Outcome{p, d})
		})
	}
	return plans, nil
}

func (b *bench) serve(ctx context.Context, t *testing.T, body string) (string, error) {
	t.Helper()
	req, err := pd.NewRequest(pd.Chat, []byte(body))
	require.NoError(t, err)
	resp, err := b.orch.Serve(ctx, req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return string(got), err
}

// calls is what the servers were sent, and how the plans ended.
func (b *bench) calls() ([]string, [][2]pd.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.log...), append([][2]pd.Outcome(nil), b.ended...)
}

func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// stalls sends the text and no more until its client leaves.
func stalls(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

func single(d oneLeg) pd.Dialect { return d }
func pairs(d oneLeg) pd.Dialect  { return sequential{d} }

func TestOneLegDialect(t *testing.T) {
	t.Run("a plain answer, n left to the engine", func(t *testing.T) {
		b := newBench(t, single, nil, says(200, `{"id":1}`))
		got, err := b.serve(t.Context(), t, `{"messages":[],"n":3}`)
		require.NoError(t, err)
		assert.Equal(t, `{"id":1}`, got)
		log, ended := b.calls()
		assert.Equal(t, []string{`d {"messages":[],"n":3}`}, log)
		assert.Equal(t, [][2]pd.Outcome{{pd.Unused, pd.Success}}, ended)
		report := <-b.report
		require.Len(t, report.Legs, 1)
		assert.Equal(t, pd.Success, report.Legs[0].Outcome)
	})
	t.Run("a stream", func(t *testing.T) {
		b := newBench(t, single, nil, says(200, "data: 1\n\ndata: [DONE]\n\n"))
		got, err := b.serve(t.Context(), t, `{"stream":true}`)
		require.NoError(t, err)
		assert.Equal(t, "data: 1\n\ndata: [DONE]\n\n", got)
	})
	t.Run("a refusal", func(t *testing.T) {
		b := newBench(t, single, nil, says(422, `{"error":{}}`))
		_, err := b.serve(t.Context(), t, `{}`)
		assert.Equal(t, 422, pd.AsError(err).Status)
		_, ended := b.calls()
		assert.Equal(t, [][2]pd.Outcome{{pd.Unused, pd.ClientFlaw}}, ended)
	})
	t.Run("a stream without an event", func(t *testing.T) {
		b := newBench(t, single, nil, says(200, ": nothing\n\n"))
		_, err := b.serve(t.Context(), t, `{"stream":true}`)
		assert.Equal(t, pd.Lost, pd.AsError(err).Kind)
	})
	for name, leave := range map[string]func(cancel func(), resp *pd.Response){
		"the client leaves a stream": func(cancel func(), resp *pd.Response) { cancel(); _, _ = io.ReadAll(resp.Body); _ = resp.Body.Close() },
		"the client closes a stream": func(_ func(), resp *pd.Response) { _ = resp.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, single, nil, stalls("data: 1\n\n"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := pd.NewRequest(pd.Chat, []byte(`{"stream":true}`))
			require.NoError(t, err)
			resp, err := b.orch.Serve(ctx, req)
			require.NoError(t, err)
			leave(cancel, resp)
			b.aborts.Group.Wait()
			log, ended := b.calls()
			require.GreaterOrEqual(t, len(log), 2)
			assert.Equal(t, "d abort", log[1])
			assert.Equal(t, [][2]pd.Outcome{{pd.Unused, pd.Left}}, ended)
		})
	}
}

func TestSequentialDialect(t *testing.T) {
	const handle = `{"kv_transfer_params":{"remote":"p:1"},"choices":[]}`
	t.Run("prefill's answer goes into decode's body", func(t *testing.T) {
		b := newBench(t, pairs, says(200, handle), says(200, "data: 1\n\ndata: [DONE]\n\n"))
		got, err := b.serve(t.Context(), t, `{"stream":true,"max_tokens":9}`)
		require.NoError(t, err)
		assert.Equal(t, "data: 1\n\ndata: [DONE]\n\n", got)
		log, ended := b.calls()
		assert.Equal(t, []string{
			`p {"max_tokens":1,"stream":false}`,
			`d {"kv_transfer_params":{"remote":"p:1"},"stream":true,"max_tokens":9}`,
		}, log)
		assert.Equal(t, [][2]pd.Outcome{{pd.Success, pd.Success}}, ended)
		report := <-b.report
		require.Len(t, report.Legs, 2)
		assert.Equal(t, pd.Prefill, report.Legs[0].Role)
		assert.Equal(t, pd.Decode, report.Legs[1].Role)
	})
	t.Run("prefill refuses: decode is never called", func(t *testing.T) {
		b := newBench(t, pairs, says(400, `{"error":{}}`), says(200, "never"))
		_, err := b.serve(t.Context(), t, `{}`)
		assert.Equal(t, pd.StagePrefill, pd.AsError(err).Stage)
		log, ended := b.calls()
		assert.Len(t, log, 1)
		assert.Equal(t, [][2]pd.Outcome{{pd.ClientFlaw, pd.Unused}}, ended)
	})
	t.Run("decode refuses", func(t *testing.T) {
		b := newBench(t, pairs, says(200, handle), says(503, `{"error":{}}`))
		_, err := b.serve(t.Context(), t, `{}`)
		assert.Equal(t, pd.StageDecode, pd.AsError(err).Stage)
		_, ended := b.calls()
		assert.Equal(t, [][2]pd.Outcome{{pd.Success, pd.ClientFlaw}}, ended)
	})
	t.Run("the client leaves while prefill works", func(t *testing.T) {
		b := newBench(t, pairs, stalls(`{`), says(200, "never"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		_, err := b.serve(ctx, t, `{}`)
		assert.Equal(t, pd.Cancelled, pd.AsError(err).Kind)
		b.aborts.Group.Wait()
		log, ended := b.calls()
		assert.Contains(t, strings.Join(log, "\n"), "p abort")
		assert.Equal(t, [][2]pd.Outcome{{pd.Left, pd.Unused}}, ended)
	})
	t.Run("a retry runs both again", func(t *testing.T) {
		var called atomic.Bool
		b := newBench(t, pairs, says(200, handle), func(w http.ResponseWriter, r *http.Request) {
			if !called.Swap(true) {
				panic(http.ErrAbortHandler)
			}
			says(200, `{"ok":1}`)(w, r)
		})
		b.orch.Retry.MaxAttempts = 2
		got, err := b.serve(t.Context(), t, `{}`)
		require.NoError(t, err)
		assert.Equal(t, `{"ok":1}`, got)
		_, ended := b.calls()
		assert.Equal(t, [][2]pd.Outcome{{pd.Success, pd.Fault}, {pd.Success, pd.Success}}, ended)
	})
}
