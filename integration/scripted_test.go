package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/pd"
)

// script is a worker whose every byte a test writes, for what a simulated
// engine does not say.
type script struct {
	worker *pd.Worker

	mu     sync.Mutex
	got    []received
	aborts []string
}

// received is one generation request of a script.
type received struct {
	header http.Header
	body   string
	conn   int // which connection it came on, from 1
	turn   int // its place on that connection, from 1
}

type connKey struct{}

// connTurns counts the requests of one connection.
type connTurns struct{ conn, turns int }

// scripted starts a worker that answers generation requests with serve.
func scripted(t *testing.T, id string, role pd.Role, serve func(w http.ResponseWriter, r *http.Request, got received)) *script {
	t.Helper()
	s := new(script)
	conns := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		s.mu.Lock()
		if r.URL.Path == "/abort_request" {
			s.aborts = append(s.aborts, string(body))
			s.mu.Unlock()
			return
		}
		turns := r.Context().Value(connKey{}).(*connTurns)
		turns.turns++
		if turns.conn == 0 {
			conns++
			turns.conn = conns
		}
		got := received{r.Header, string(body), turns.conn, turns.turns}
		s.got = append(s.got, got)
		s.mu.Unlock()
		serve(w, r, got)
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, new(connTurns))
	}
	server.Start()
	t.Cleanup(server.Close)
	s.worker = &pd.Worker{ID: pd.WorkerID(id), Role: role, URL: server.URL}
	if role == pd.Prefill {
		s.worker.BootstrapHost, s.worker.BootstrapPort = "127.0.0.1", 1
	}
	return s
}

// requests are the generation requests so far.
func (s *script) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received(nil), s.got...)
}

// readyPrefill is a prefill that has always finished.
func readyPrefill(t *testing.T) *script {
	t.Helper()
	return scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, _ *http.Request, _ received) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"","meta_info":{"id":"x"}}`)
	})
}

// scriptedPair is a stack over a prefill that has always finished and a decode
// that a test writes.
func scriptedPair(t *testing.T, want setup, decode func(w http.ResponseWriter, r *http.Request, got received)) (*stack, *script) {
	t.Helper()
	d := scripted(t, "decode-0", pd.Decode, decode)
	want.prefills, want.decodes = -1, -1
	want.scripts = []*script{readyPrefill(t), d}
	return newStack(t, want), d
}

// pieces is a stream written in the given pieces, each flushed.
func pieces(w http.ResponseWriter, all ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, piece := range all {
		_, _ = io.WriteString(w, piece)
		w.(http.Flusher).Flush()
	}
}
