package simengine

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eventually waits until get's answer has the status.
func (p *pair) eventually(status int, get func() reply) reply {
	p.t.Helper()
	var got reply
	require.Eventually(p.t, func() bool { got = get(); return got.status == status }, 10*time.Second, 5*time.Millisecond)
	return got
}

func (p *pair) bootstrap(path string) reply {
	return p.do(mustRequest(p.t, "http://"+p.prefill.cfg.BootstrapAddr+path))
}

func TestAPrefillOpensItsDoorsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, _ *Config) { a.TimeScale, a.WarmUp = 1, 2*time.Second })
	p.prefill.Kill()
	p.prefill.cfg.StartDelay = 3 * time.Second
	require.ErrorIs(t, p.bootstrap("/health").err, syscall.ECONNREFUSED)
	started := make(chan error, 1)
	go func() { started <- p.prefill.Restart() }()

	p.eventually(200, func() reply { return p.bootstrap("/health") })
	route := p.bootstrap(routeQuery(-1, -1, -1, -1))
	assert.Equal(t, 503, route.status)
	assert.Equal(t, "Prefill server not fully registered yet (0 workers registered).", string(route.body))
	assert.ErrorIs(t, p.get(p.prefill, "/health").err, syscall.ECONNREFUSED, "its API is the last")

	require.NoError(t, <-started)
	assert.Equal(t, 200, p.bootstrap(routeQuery(-1, -1, -1, -1)).status)
	for _, path := range []string{"/ping", "/health"} {
		warm := p.get(p.prefill, path)
		assert.Equal(t, 503, warm.status, path)
		assert.Empty(t, warm.body)
	}
	for _, path := range []string{"/v1/models", "/v1/loads", "/server_info"} {
		assert.Equal(t, 200, p.get(p.prefill, path).status, path)
	}
	p.eventually(200, func() reply { return p.get(p.prefill, "/ping") })
	assert.Equal(t, 200, p.get(p.prefill, "/health").status)
}

func TestDecodeFindsARestartedPrefillWithTheNextRequest(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, _ *Config) { a.TimeScale, a.StartDelay = 1, 200*time.Millisecond })
	p.meets()
	waiting := p.start(t.Context(), p.decode, "/generate", p.routed(2, object{"text": "a"}))
	p.until(p.decode, func(l Loads) bool { return l.Transfer == 1 })
	p.prefill.Kill()
	require.Contains(t, string((<-waiting).body), "Lost connection")
	require.NoError(t, p.prefill.Restart())
	p.meets()
}

func TestAStartCanBeKilled(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, _ *Config) { a.TimeScale = 1 })
	p.prefill.cfg.StartDelay = time.Hour
	started := make(chan error, 1)
	old := p.prefill.current()
	go func() { started <- p.prefill.Restart() }()
	require.Eventually(t, func() bool { return p.prefill.current() != old }, 10*time.Second, time.Millisecond)
	p.prefill.Kill()
	require.ErrorIs(t, <-started, errEnded)
	require.ErrorIs(t, p.get(p.prefill, "/ping").err, syscall.ECONNREFUSED)
	p.prefill.cfg.StartDelay = 0
	require.NoError(t, p.prefill.Restart())
	require.Equal(t, http.StatusOK, p.get(p.prefill, "/ping").status)
}
