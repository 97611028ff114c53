package single_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// The first of two engines fails; the second is well.
func TestFailuresBeforeTheCommit(t *testing.T) {
	const refusal = `{"object":"error","message":"at HOST it is too long","code":400}`
	good := answers(200, "application/json", `{"good":1}`)
	stream := func(events string) http.HandlerFunc { return streams(nil, events) }
	for _, c := range []struct {
		name     string
		bad      http.HandlerFunc
		failover bool // the other engine answers
		attempts int
		kind     pd.Kind
		status   int
		body     string
		outcome  pd.Outcome // of the first attempt
	}{
		{"a refusal is final and passes as it came", answers(400, "application/json", refusal), false, 1, pd.Refused, 400, strings.ReplaceAll(refusal, "HOST", "regular-0"), pd.ClientFlaw},
		{"401 with nothing to say", answers(401, "text/plain", ""), false, 1, pd.Refused, 401, "", pd.ClientFlaw},
		{"404", answers(404, "application/json", `{"detail":"Not Found"}`), false, 1, pd.Refused, 404, `{"detail":"Not Found"}`, pd.ClientFlaw},
		{"429 goes elsewhere", answers(429, "application/json", `{}`), true, 2, 0, 0, "", pd.Overloaded},
		{"503 goes elsewhere", answers(503, "application/json", `{}`), true, 2, 0, 0, "", pd.Overloaded},
		{"500 goes elsewhere", answers(500, "application/json", `{}`), true, 2, 0, 0, "", pd.Fault},
		{"a lost connection goes elsewhere", reset, true, 2, 0, 0, "", pd.Fault},
		{"a redirect shows no address", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+r.Host+"/x", http.StatusTemporaryRedirect)
		}, true, 2, 0, 0, "", pd.Fault},
		{"an error event with a code is an HTTP error", stream(`data: {"error":{"message":"no","code":422}}` + "\n\n"), false, 1, pd.Refused, 422, `{"error":{"message":"no","code":422}}`, pd.ClientFlaw},
		{"an error event with no code is 400", stream(`data: {"error":{"message":"no"}}` + "\n\n"), false, 1, pd.Refused, 400, `{"error":{"message":"no"}}`, pd.ClientFlaw},
		{"an error event of a fault goes elsewhere", stream(`data: {"error":{"message":"no","code":500}}` + "\n\n"), true, 2, 0, 0, "", pd.Fault},
		{"a stream without an event goes elsewhere", stream(""), true, 2, 0, 0, "", pd.Fault},
		{"a stream that breaks before its first event goes elsewhere", streams(reset, "data: {"), true, 2, 0, 0, "", pd.Fault},
		{"a refusal that does not end", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusBadRequest)
			w.(http.Flusher).Flush()
			silent(w, r)
		}, false, 1, pd.Refused, 400, "", pd.ClientFlaw},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
				host := &hostWriter{w, req.Host}
				c.bad(host, req)
			}, good)
			_, answer, err := r.serve(pd.Chat, `{"stream":true}`)
			assert.Equal(t, c.attempts, r.report().Attempts)
			assert.Equal(t, c.outcome, r.ended()[0])
			if c.failover {
				require.NoError(t, err)
				assert.Equal(t, `{"good":1}`, answer)
				assert.Equal(t, r.engines[0].got()[0].body, r.engines[1].got()[0].body)
				return
			}
			e := pd.AsError(err)
			assert.Equal(t, pd.StageRegular, e.Stage)
			assert.Equal(t, pd.WorkerID("regular-0"), e.Worker)
			assert.Equal(t, c.kind, e.Kind)
			assert.Equal(t, c.status, e.Status)
			assert.Equal(t, c.body, string(e.Body))
			assert.NotContains(t, e.Message, "127.0.0.1")
		})
	}
}

// hostWriter puts the engine's address where a script says HOST.
type hostWriter struct {
	http.ResponseWriter
	host string
}

func (w *hostWriter) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.ResponseWriter, strings.ReplaceAll(string(p), "HOST", w.host))
	return len(p), err
}

func (w *hostWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

func TestNobodyThere(t *testing.T) {
	r := newRig(t, answers(200, "application/json", `{}`), answers(200, "application/json", `{"good":1}`))
	r.engines[0].Close()
	_, answer, err := r.run(request(t, pd.Other, "/v1/audio/transcriptions", "\xff no JSON"))
	require.NoError(t, err, "it cannot have run: any body may go elsewhere")
	assert.Equal(t, `{"good":1}`, answer)
	assert.Equal(t, []pd.Outcome{pd.Unreachable, pd.Success}, r.ended())

	r.engines[1].Close()
	_, _, err = r.serve(pd.Chat, `{}`)
	e := pd.AsError(err)
	assert.Equal(t, [2]any{503, "regular_unavailable"}, [2]any{e.Status, e.Code})
	assert.Equal(t, "1", e.RetryAfter)
}

// Some bodies kill the engine that runs them.
func TestWhatMayHaveRunRunsOnceMore(t *testing.T) {
	r := newRig(t, reset, reset, reset)
	_, _, err := r.serve(pd.Generate, `{"text":"a"}`)
	assert.Equal(t, pd.Lost, pd.AsError(err).Kind)
	assert.Equal(t, 502, pd.AsError(err).Status)
	assert.Equal(t, 2, r.report().Attempts)
}

func TestAfterTheCommit(t *testing.T) {
	f := func(name string, ep pd.Endpoint, target string, handle http.HandlerFunc, kind pd.Kind, tail string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, handle)
			_, answer, err := r.run(request(t, ep, target, `{"stream":true}`))
			assert.Equal(t, kind, pd.AsError(err).Kind)
			assert.True(t, strings.HasSuffix(answer, tail), answer)
			assert.NotContains(t, answer, "[DONE]")
			assert.Equal(t, 1, r.report().Attempts, "nothing is tried again")
			assert.Equal(t, []pd.Outcome{pd.Fault}, r.ended())
		})
	}
	lost := `"code":"regular_connection_lost"}}` + "\n\n"
	broken := `"code":"regular_bad_response"}}` + "\n\n"
	f("a stream that breaks ends with an error event", pd.Chat, "", streams(reset, chunk("a", "")), pd.Lost, lost)
	f("behind a half event", pd.Chat, "", streams(reset, chunk("a", "")+`data: {"ch`), pd.Lost, lost)
	f("on /generate", pd.Generate, "", streams(reset, "data: {}\n\n"), pd.Lost, `"code":502}}`+"\n\n")
	f("on /v1/messages", pd.Other, "/v1/messages", streams(reset, "event: message_start\ndata: {}\n\n"), pd.Lost,
		"event: error\n"+`data: {"error":{"message":"the connection to regular worker regular-0 broke","type":"api_error"},"type":"error"}`+"\n\n")
	f("on /v1/responses", pd.Other, "/v1/responses", streams(reset, "event: x\ndata: {}\n\n"), pd.Lost, lost)
	f("a stream without an end", pd.Chat, "", streams(nil, chunk("a", "")), pd.Broken, broken)

	t.Run("a plain answer that breaks is a broken one", func(t *testing.T) {
		r := newRig(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"text"`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		_, answer, err := r.serve(pd.Generate, `{"text":"a"}`)
		assert.Equal(t, pd.Lost, pd.AsError(err).Kind)
		assert.Equal(t, `{"text"`, answer)
	})
}

func TestAnOutcomeThatTheStreamTells(t *testing.T) {
	f := func(event string, want pd.Outcome) {
		r := newRig(t, streams(nil, chunk("a", ""), "data: "+event+"\n\n", done))
		_, _, err := r.serve(pd.Chat, `{"stream":true}`)
		require.NoError(t, err)
		assert.Equal(t, []pd.Outcome{want}, r.ended(), event)
	}
	f(`{"error":{"message":"no","code":500}}`, pd.Fault)
	f(`{"error":{"message":"no","code":400}}`, pd.ClientFlaw)
	f(`{"choices":[{"finish_reason":"abort"}]}`, pd.Left)
	f(`{"choices":[{"finish_reason":"stop"}]}`, pd.Success)
}

func TestADuplicateRidOfOursIsWaitedFor(t *testing.T) {
	calls := 0
	r := newRig(t, func(w http.ResponseWriter, req *http.Request) {
		if calls++; calls == 1 {
			answers(500, "application/json", `{}`)(w, req)
			return
		}
		answers(400, "application/json", `{"error":{"message":"Duplicate request ID detected: mine"}}`)(w, req)
	})
	_, _, err := r.serve(pd.Generate, `{"text":"a","rid":"mine"}`)
	assert.Equal(t, 500, pd.AsError(err).Status, "what it says of the attempt before is not the request's")
	assert.Len(t, r.engines[0].got(), 3)
}

func TestAnAbortOfTheClientsReachesTheEngine(t *testing.T) {
	started := make(chan struct{})
	var r *rig
	r = newRig(t, func(w http.ResponseWriter, req *http.Request) {
		close(started)
		for len(r.engines[0].aborted()) == 0 && req.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		answers(500, "application/json", `{"error":{"message":"Aborted by AbortReq."}}`)(w, req)
	})
	ended := make(chan error, 1)
	go func() {
		_, _, err := r.serve(pd.Generate, `{"text":"a","rid":"mine"}`)
		ended <- err
	}()
	<-started
	result, err := r.orch.Abort(t.Context(), pd.AbortRequest{Rid: "mine"})
	require.NoError(t, err)
	assert.Equal(t, 200, result.Status)
	assert.Equal(t, pd.Aborted, pd.AsError(<-ended).Kind)
	assert.Equal(t, []pd.Outcome{pd.Left}, r.ended(), "nobody is blamed, nothing is tried again")
	assert.Equal(t, []string{"mine"}, r.engines[0].aborted())
}

func TestAWorkerThatIsTakenOutEndsItsStreams(t *testing.T) {
	r := newRig(t, streams(silent, chunk("a", "")))
	resp, err := r.orch.Serve(t.Context(), request(t, pd.Chat, "", `{"stream":true}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, 1, r.orch.Cut("regular-0"))
	answer, err := io.ReadAll(resp.Body)
	assert.Equal(t, "worker_removed", pd.AsError(err).Code)
	assert.Contains(t, string(answer), `"code":"worker_removed"`)
	assert.Equal(t, []pd.Outcome{pd.Left}, r.ended())
}

func TestAWorkersOwnKeyIsTheOneThatIsSent(t *testing.T) {
	r := newRig(t, answers(200, "application/json", `{}`))
	r.engines[0].worker.APIKey = "of-the-worker"
	req := request(t, pd.Chat, "", `{}`)
	req.Header.Set("Authorization", "Bearer of-the-client")
	_, _, err := r.run(req)
	require.NoError(t, err)
	assert.Equal(t, []string{"Bearer of-the-worker"}, r.engines[0].got()[0].header.Values("Authorization"))
}
