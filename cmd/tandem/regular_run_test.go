package main

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wholeEngine is a simulated engine that needs no partner, as a command.
func wholeEngine(t *testing.T) (p *process, url string) {
	t.Helper()
	p = start(t, "sim-engine", "--role", "regular", "--health-delay", "-1s")
	require.Eventually(t, func() bool {
		if m := regexp.MustCompile(`^regular (http://\S+)\n`).FindStringSubmatch(p.out.String()); m != nil {
			url = m[1]
		}
		return url != ""
	}, 20*time.Second, 10*time.Millisecond, "%s", p.errs.String())
	return p, url
}

func TestServeWholeEngines(t *testing.T) {
	one, url := wholeEngine(t)
	two, other := wholeEngine(t)
	p := start(t, "--worker-urls", url, other, "--policy", "cache_aware", "--host", "127.0.0.1", "--port", "0", "--drain-settle-secs", "0")
	base := p.ready(t)
	f := func(path, body, says string) {
		t.Helper()
		status, answer := try(http.MethodPost, base+path, body)
		assert.Equal(t, http.StatusOK, status, answer)
		assert.Contains(t, answer, says)
	}
	f("/generate", `{"text":"a","sampling_params":{"max_new_tokens":2,"n":2}}`, "},{")
	f("/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":2,"n":2}`, `"index":1`)
	f("/v1/embeddings", `{"model":"tiny","input":"a"}`, `"embedding":[`)
	f("/v1/responses", `{"model":"tiny","input":"a","max_output_tokens":2}`, `"object":"response"`)
	status, answer := try(http.MethodGet, base+"/server_info", "")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, answer, `"regular":[{"worker":"regular-0"`)

	one.stop()
	assert.Equal(t, exitOK, one.end(t))
	for range 4 {
		f("/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":2}`, `"choices":[`)
	}
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	assert.NotContains(t, p.errs.String(), `"level":"error"`)
	two.stop()
	assert.Equal(t, exitOK, two.end(t))
}
