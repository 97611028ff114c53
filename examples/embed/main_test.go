package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/integration/simengine"
)

func TestEmbeddedOrchestratorServesAPair(t *testing.T) {
	prefill, err := simengine.Start(simengine.Config{Role: simengine.Prefill})
	require.NoError(t, err)
	t.Cleanup(func() { _ = prefill.Close() })
	decode, err := simengine.Start(simengine.Config{Role: simengine.Decode})
	require.NoError(t, err)
	t.Cleanup(func() { _ = decode.Close() })
	handler, err := newHandler(prefill.URL(), prefill.BootstrapPort(), decode.URL())
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	post := func(body string) (int, string) {
		resp, err := http.Post(server.URL+"/generate", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(answer)
	}
	status, answer := post(`{"text":"hello","sampling_params":{"max_new_tokens":4,"ignore_eos":true}}`)
	assert.Equal(t, 200, status, answer)
	assert.Contains(t, answer, `"completion_tokens":4`)

	status, answer = post(`{"text":"hello","stream":true,"sampling_params":{"max_new_tokens":4,"ignore_eos":true}}`)
	assert.Equal(t, 200, status)
	assert.True(t, strings.HasSuffix(answer, "data: [DONE]\n\n"), answer)

	status, answer = post(`{"text":`)
	assert.Equal(t, 400, status)
	assert.Contains(t, answer, `"error"`)
}
