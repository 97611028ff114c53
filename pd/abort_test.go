package pd

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// abortEngine is a worker that takes aborts.
type abortEngine struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	auth   []string
}

func newAbortEngine(t *testing.T, status int, answer string) *abortEngine {
	e := new(abortEngine)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.bodies = append(e.bodies, r.URL.Path+" "+string(body))
		e.auth = append(e.auth, r.Header.Get("Authorization"))
		e.mu.Unlock()
		assert.NotContains(t, r.Header, "X-Idempotency-Key")
		w.Header().Set("X-Engine", "1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(e.Close)
	return e
}

func TestAbort(t *testing.T) {
	ok, refuses := newAbortEngine(t, 200, ""), newAbortEngine(t, 403, `{"error":"key"}`)
	other := newAbortEngine(t, 200, "")
	a := &Worker{ID: "a", Role: Prefill, URL: ok.URL, APIKey: "key-of-a"}
	b := &Worker{ID: "b", Role: Decode, URL: refuses.URL}
	c := &Worker{ID: "c", Role: Decode, URL: other.URL}
	gone := &Worker{ID: "gone", Role: Decode, URL: "http://127.0.0.1:1"}
	run := func(workers []*Worker, abort AbortRequest, hold map[*Worker][]string) (*AbortResult, error) {
		o := newOrchTest(nil)
		o.Upstream = *upstream(t)
		if workers != nil {
			o.Workers = func() []*Worker { return workers }
		}
		if hold != nil {
			r := liveRequest(&o.live, "mine")
			for w, rids := range hold {
				r.Hold(w, rids)
			}
			defer func() { assert.True(t, r.Aborted()) }()
		}
		for _, e := range []*abortEngine{ok, refuses, other} {
			e.bodies, e.auth = nil, nil
		}
		return o.Abort(t.Context(), abort)
	}
	auth := http.Header{"Authorization": {"Bearer client"}}

	t.Run("goes to the workers that hold the rid, with their keys", func(t *testing.T) {
		res, err := run([]*Worker{a, b, c}, AbortRequest{Rid: "mine", Header: auth}, map[*Worker][]string{a: {"s0", "s1"}, c: {"s0"}})
		require.NoError(t, err)
		assert.Equal(t, 200, res.Status)
		assert.ElementsMatch(t, []string{`/abort_request {"rid":"s0"}`, `/abort_request {"rid":"s1"}`}, ok.bodies)
		assert.Equal(t, []string{"Bearer key-of-a", "Bearer key-of-a"}, ok.auth)
		assert.Equal(t, []string{"Bearer client"}, other.auth)
		assert.Empty(t, refuses.bodies)
	})
	t.Run("the ranks of an engine are one", func(t *testing.T) {
		rank := *a
		rank.ID = "a@1"
		_, err := run([]*Worker{a, &rank, c}, AbortRequest{Rid: "what", Header: auth}, nil)
		require.NoError(t, err)
		assert.Equal(t, []string{`/abort_request {"rid":"what"}`}, ok.bodies)
		assert.Len(t, other.bodies, 1)
	})
	t.Run("an unknown rid goes to all, and the refusal is the answer", func(t *testing.T) {
		res, err := run([]*Worker{a, b, c}, AbortRequest{Rid: "what", Header: auth}, nil)
		require.NoError(t, err)
		assert.Equal(t, 403, res.Status)
		assert.JSONEq(t, `{"error":"key"}`, string(res.Body))
		assert.Equal(t, "1", res.Header.Get("X-Engine"))
		assert.Equal(t, []string{`/abort_request {"rid":"what"}`}, ok.bodies)
		assert.Equal(t, []string{`/abort_request {"rid":"what"}`}, other.bodies)
	})
	t.Run("abort_all goes to all", func(t *testing.T) {
		_, err := run([]*Worker{a, c}, AbortRequest{All: true, Header: auth}, map[*Worker][]string{a: {"s0"}})
		require.NoError(t, err)
		assert.Equal(t, []string{`/abort_request {"rid":"","abort_all":true}`}, ok.bodies)
		assert.Equal(t, []string{`/abort_request {"rid":"","abort_all":true}`}, other.bodies)
	})
	t.Run("one worker that is gone does not hide the others' answer", func(t *testing.T) {
		res, err := run([]*Worker{gone, a}, AbortRequest{Rid: "what"}, nil)
		require.NoError(t, err)
		assert.Equal(t, 200, res.Status)
	})
	t.Run("all workers gone", func(t *testing.T) {
		_, err := run([]*Worker{gone}, AbortRequest{Rid: "what"}, nil)
		e := AsError(err)
		assert.Equal(t, Unavailable, e.Kind)
		assert.NotContains(t, e.Message, "127.0.0.1")
	})
	t.Run("no worker", func(t *testing.T) {
		_, err := run(nil, AbortRequest{Rid: "what"}, nil)
		assert.Equal(t, 503, AsError(err).Status)
	})
	t.Run("an answer is passed on up to a bound", func(t *testing.T) {
		talks := newAbortEngine(t, 200, strings.Repeat("x", abortAnswer+5))
		res, err := run([]*Worker{{ID: "t", URL: talks.URL}}, AbortRequest{Rid: "what"}, nil)
		require.NoError(t, err)
		assert.Len(t, res.Body, abortAnswer)
	})
	t.Run("a rid is written as JSON", func(t *testing.T) {
		_, err := run([]*Worker{a}, AbortRequest{Rid: "a\"\\\n"}, nil)
		require.NoError(t, err)
		var got struct{ Rid string }
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(ok.bodies[0], "/abort_request ")), &got))
		assert.Equal(t, "a\"\\\n", got.Rid)
	})
}

// panicking is a transport with a fault of its own.
type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("boom") }

func TestAbortSurvivesAPanic(t *testing.T) {
	o := newOrchTest(nil)
	o.Upstream.Transport = panicking{}
	o.Workers = func() []*Worker { return []*Worker{workerA, workerB} }
	panics := 0
	o.Hooks.Panic = func(any, []byte) { o.locked(func() { panics++ }) }
	_, err := o.Abort(t.Context(), AbortRequest{Rid: "x"})
	assert.Equal(t, 500, AsError(err).Status)
	assert.Equal(t, 2, panics)
}
