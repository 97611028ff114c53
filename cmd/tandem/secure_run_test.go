package main

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// guardedEngine is an HTTPS engine that asks for a certificate and a key on every
// path. Streams are open until their client leaves.
type guardedEngine struct {
	url        string
	came, left chan struct{} // one for each stream that began, and that was left

	mu      sync.Mutex
	strange []string // requests that had not exactly the key
	aborts  int
}

func newGuardedEngine(a *authority, key string) *guardedEngine {
	e := &guardedEngine{came: make(chan struct{}, 8), left: make(chan struct{}, 8)}
	e.url = a.engine(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		e.mu.Lock()
		if got := req.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+key {
			e.strange = append(e.strange, req.URL.Path)
		}
		if req.URL.Path == "/abort_request" {
			e.aborts++
		}
		e.mu.Unlock()
		if req.URL.Path != "/generate" {
			return
		}
		if strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"text\":\"a\",\"meta_info\":{}}\n\n")
			w.(http.Flusher).Flush()
			e.came <- struct{}{}
			<-req.Context().Done()
			e.left <- struct{}{}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"","meta_info":{"prompt_tokens":1,"completion_tokens":1}}`)
	}).URL
	return e
}

func TestKeysAndTLSFromEndToEnd(t *testing.T) {
	a := newAuthority(t)
	cert, certKey := a.issue("router")
	prefill, decode := newGuardedEngine(a, "s3cret-of-engines"), newGuardedEngine(a, "s3cret-of-engines")
	p := start(t, "--host", "127.0.0.1", "--port", "0", "--prefill", prefill.url, "none", "--decode", decode.url,
		"--api-key", "s3cret-of-router", "--worker-api-key", "s3cret-of-engines", "--log-level", "debug",
		"--tls-cert-path", cert, "--tls-key-path", certKey,
		"--ca-cert-paths", a.path, "--client-cert-path", cert, "--client-key-path", certKey)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS13}, DisableKeepAlives: true}
	open := func(ctx context.Context, method, path, body, key string) (*http.Response, error) {
		m := regexp.MustCompile(`listens on (https://\S+)\n`).FindStringSubmatch(p.out.String())
		if m == nil {
			return nil, io.EOF
		}
		req, err := http.NewRequestWithContext(ctx, method, m[1]+path, strings.NewReader(body))
		require.NoError(t, err)
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		return transport.RoundTrip(req)
	}
	status := func(method, path, body, key string) int {
		resp, err := open(t.Context(), method, path, body, key)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	require.Eventually(t, func() bool { return status("GET", "/readiness", "", "") == 200 }, 20*time.Second, 10*time.Millisecond,
		"health probes have the certificate and the key\n%s", p.errs.String())
	assert.Equal(t, 401, status("POST", "/generate", `{"text":"a"}`, ""))
	assert.Equal(t, 401, status("POST", "/generate", `{"text":"a"}`, "s3cret-of-engines"))
	assert.Equal(t, 200, status("POST", "/generate", `{"text":"a"}`, "s3cret-of-router"))
	assert.Equal(t, 401, status("POST", "/workers/decode-0/drain", "", ""))
	assert.Equal(t, 200, status("GET", "/workers", "", "s3cret-of-router"))
	assert.Equal(t, 200, status("POST", "/flush_cache", "", "s3cret-of-router"))

	ctx, leave := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if resp, err := open(ctx, "POST", "/generate", `{"text":"a","stream":true}`, "s3cret-of-router"); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	soon(t, prefill.came, "prefill has the request")
	soon(t, decode.came, "decode has the request")
	leave()
	soon(t, prefill.left, "prefill is freed")
	soon(t, decode.left, "decode is freed")
	<-asked
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	for _, e := range []*guardedEngine{prefill, decode} {
		e.mu.Lock()
		assert.Empty(t, e.strange, "every call has the worker's key and no other")
		assert.Positive(t, e.aborts, "aborts reach it too")
		e.mu.Unlock()
	}
	assert.NotContains(t, p.out.String()+p.errs.String(), "s3cret")
}

func TestMiniLBLearnsRanksWithTheWorkersKey(t *testing.T) {
	a := newAuthority(t)
	cert, certKey := a.issue("router")
	seen := make(chan string, 8)
	engine := a.engine(func(w http.ResponseWriter, req *http.Request) {
		seen <- req.Header.Get("Authorization")
		_, _ = io.WriteString(w, `{"internal_states":[{},{}]}`)
	})
	p := start(t, "--mini-lb", "--test-external-dp-routing", "--host", "127.0.0.1", "--port", "0",
		"--prefill", engine.URL, "none", "--decode", nobodyTLS(t), "--worker-api-key", "k",
		"--ca-cert-paths", a.path, "--client-cert-path", cert, "--client-key-path", certKey)
	assert.Equal(t, exitFailure, p.end(t))
	assert.Contains(t, p.errs.String(), "cannot learn the ranks of worker decode-0", "prefill's were learnt")
	assert.Equal(t, "Bearer k", <-seen)
}

// soon waits for what must happen.
func soon(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it does not happen", what)
	}
}

func nobodyTLS(t *testing.T) string {
	t.Helper()
	return strings.Replace(nobody(t), "http://", "https://", 1)
}
