package bootstrap

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serve starts a server on addr whose GET /health answers status.
func serve(t *testing.T, addr string, h http.HandlerFunc) (host string, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h}}
	srv.Start()
	t.Cleanup(srv.Close)
	host, err = Host(srv.URL)
	require.NoError(t, err)
	return host, ln.Addr().(*net.TCPAddr).Port
}

func health(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/health" {
			status = http.StatusTeapot
		}
		w.WriteHeader(status)
	}
}

func transport(t *testing.T) http.RoundTripper {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func TestProbe(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		host, port := serve(t, addr, health(http.StatusOK))
		assert.NoError(t, Probe(t.Context(), transport(t), host, port), addr)
	}
}

func TestProbeOfASickServer(t *testing.T) {
	host, port := serve(t, "127.0.0.1:0", health(http.StatusServiceUnavailable))
	assert.ErrorContains(t, Probe(t.Context(), transport(t), host, port), "health is 503")
}

func TestProbeOfNobody(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := ln.Addr().(*net.TCPAddr).Port
	require.NoError(t, ln.Close())
	assert.ErrorContains(t, Probe(t.Context(), transport(t), "127.0.0.1", port), "bootstrap server 127.0.0.1:")
	assert.ErrorContains(t, Probe(t.Context(), transport(t), "127.0.0.1", 0), "not known")
	assert.Error(t, Probe(t.Context(), transport(t), "a host", 1))
}

func TestProbeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	host, port := serve(t, "127.0.0.1:0", func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	assert.ErrorIs(t, Probe(ctx, transport(t), host, port), context.Canceled)
}
