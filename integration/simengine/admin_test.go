package simengine

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeys(t *testing.T) {
	f := func(name string, cfg Config, path, key string, status int) {
		t.Run(name, func(t *testing.T) {
			cfg.Role, cfg.HealthDelay = Decode, -1
			p := &pair{t: t, decode: start(t, cfg), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
			req, err := http.NewRequest(http.MethodGet, p.decode.URL()+path, nil)
			require.NoError(t, err)
			if key != "" {
				req.Header.Set("Authorization", "Bearer "+key)
			}
			got := p.do(req)
			assert.Equal(t, status, got.status)
			if status == http.StatusUnauthorized {
				assert.Equal(t, `{"error":"Unauthorized"}`, string(got.body))
			}
		})
	}
	key, both := Config{APIKey: "k"}, Config{APIKey: "k", AdminKey: "a"}
	f("none needed", Config{}, "/v1/models", "", 200)
	f("none sent", key, "/v1/models", "", 401)
	f("a wrong one", key, "/ping", "x", 401)
	f("the right one", key, "/v1/models", "k", 200)
	f("none for health", key, "/health", "", 200)
	f("none for metrics", key, "/metrics", "", 200)
	f("an unknown path tells nothing", key, "/nope", "", 401)
	f("admin route without an admin key", key, "/flush_cache", "k", 200)
	f("admin route with the other key", both, "/flush_cache", "k", 401)
	f("admin route with its key", both, "/flush_cache", "a", 200)
	f("other routes do not take the admin key", both, "/v1/models", "a", 401)
	f("admin key alone leaves the rest open", Config{AdminKey: "a"}, "/v1/models", "", 200)
}

func TestHealthTakesItsTimeAndFailsWhileWarmingUp(t *testing.T) {
	p := newPair(t, func(a, d *Config) {
		a.HealthDelay, a.TimeScale = time.Second, 0.1
		d.WarmUp, d.TimeScale = time.Hour, 1
	})
	got := p.get(p.prefill, "/health")
	require.Equal(t, 200, got.status)
	require.GreaterOrEqual(t, got.took, 100*time.Millisecond)
	require.Equal(t, 503, p.get(p.decode, "/health_generate").status)
	require.Equal(t, 503, p.get(p.decode, "/ping").status)
	for _, path := range []string{"/model_info", "/v1/models", "/v1/loads", "/server_info"} {
		require.Equal(t, 200, p.get(p.decode, path).status, path)
	}
}

func TestInfoShowsTheKeysAndTheRanks(t *testing.T) {
	p := newPair(t, func(a, _ *Config) { a.DPSize, a.AdminKey = 3, "secret" })
	info := p.get(p.prefill, "/get_server_info").object(t)
	assert.Equal(t, "secret", info["admin_api_key"])
	assert.Nil(t, info["api_key"])
	assert.Len(t, info["internal_states"], 3)
	assert.Equal(t, float64(p.prefill.BootstrapPort()), info["disaggregation_bootstrap_port"])
	assert.Equal(t, 404, p.get(p.prefill, "/v1/models/other").status)
	assert.Equal(t, "tiny", p.get(p.prefill, "/v1/models/tiny").object(t)["id"])
	assert.Equal(t, 404, p.get(p.prefill, "/get_load").status)
	assert.Len(t, p.get(p.prefill, "/v1/loads?dp_rank=1").object(t)["loads"], 1)
	assert.Len(t, p.get(p.prefill, "/v1/loads?dp_rank=7").object(t)["loads"], 0)
}

func TestABusyEngineDoesNotFlush(t *testing.T) {
	p := newPair(t, func(a, d *Config) { a.TimeScale, d.TimeScale = 1, 1 })
	body := p.routed(1, object{"text": "a"})
	pre := p.start(t.Context(), p.prefill, "/generate", body)
	require.NoError(t, p.prefill.WaitFor(t.Context(), func([]Record) bool { return p.prefill.Loads().Bootstrap == 1 }))
	require.Equal(t, 400, p.post(t.Context(), p.prefill, "/flush_cache", object{}).status)
	metrics := string(p.get(p.prefill, "/metrics").body)
	require.Contains(t, metrics, `sglang:num_prefill_bootstrap_queue_reqs{engine_type="prefill",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 1`)

	flush := p.start(t.Context(), p.prefill, "/flush_cache?timeout=20", object{})
	require.Equal(t, 200, p.post(t.Context(), p.decode, "/generate", body).status)
	require.Equal(t, 200, (<-flush).status)
	require.Equal(t, 200, (<-pre).status)
}

func TestTheBootstrapServerSpeaksToAnybody(t *testing.T) {
	p := newPair(t, func(a, _ *Config) { a.APIKey, a.DPSize = "k", 2 })
	f := func(name, method, path, body string, status int, words string) {
		t.Run(name, func(t *testing.T) {
			url := "http://" + p.prefill.cfg.BootstrapAddr + path
			req, err := http.NewRequest(method, url, strings.NewReader(body))
			require.NoError(t, err)
			got := p.do(req)
			assert.Equal(t, status, got.status)
			assert.Contains(t, string(got.body), words)
		})
	}
	f("health", "GET", "/health", "", 200, "OK")
	f("topology", "GET", routeQuery(-1, -1, -1, -1), "", 200, `"dp_size":2,"pp_size":1,"page_size":1,"kv_cache_dtype":"auto","follow_bootstrap_room":true`)
	f("a rank", "GET", routeQuery(1, 0, 0, 0), "", 200, `{"rank_ip":"127.0.0.1","rank_port":`)
	f("no such rank", "GET", routeQuery(2, 0, 0, 0), "", 404, "")
	f("keys missing", "GET", "/route?prefill_dp_rank=-1", "", 400, "")
	f("registration", "PUT", "/route", `{}`, 200, "OK")
	f("another method", "DELETE", "/route", "", 405, "")
	f("a room's rank", "POST", "/register_dp_rank", `{"bootstrap_room":77,"dp_rank":1}`, 200, "OK")
	f("asked for", "POST", "/query_dp_ranks", `{"bootstrap_rooms":[77,78]}`, 200, `{"77":1}`)
	f("nonsense", "POST", "/query_dp_ranks", `nope`, 400, "")
	f("unknown path", "GET", "/nope", "", 404, "")
	p.prefill.SetBootstrap(BootstrapUnregistered)
	f("not registered", "GET", routeQuery(-1, -1, -1, -1), "", 503, "Prefill server not fully registered yet (0 workers registered).")
	f("well though not registered", "GET", "/health", "", 200, "OK")
	p.prefill.SetBootstrap(BootstrapDown)
	require.Error(t, p.do(mustRequest(t, "http://"+p.prefill.cfg.BootstrapAddr+"/health")).err)
}

func mustRequest(t *testing.T, url string) *http.Request {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

func TestTheCommandServesUntilItIsStopped(t *testing.T) {
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, []string{"--role", "prefill", "--port", "0", "--token-interval", "1ms", "--health-delay", "-1ns"}, in, io.Discard)
	}()
	line := make([]byte, 200)
	n, err := out.Read(line)
	require.NoError(t, err)
	words := strings.Fields(string(line[:n]))
	require.Len(t, words, 4)
	require.Equal(t, []string{"prefill", "bootstrap"}, []string{words[0], words[2]})
	resp, err := http.Get(words[1] + "/health")
	require.NoError(t, err)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	require.Equal(t, 200, resp.StatusCode)
	cancel()
	require.NoError(t, <-done)
}

func TestTheCommandStartsAWholeEngine(t *testing.T) {
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, []string{
			"--role", "regular", "--model", "big", "--page-size", "64", "--prefill-per-token", "1us",
			"--enable-pd-role-switch", "--switch-delay", "1s", "--bootstrap-port", "1", "--debug-fields",
		}, in, io.Discard)
	}()
	line := make([]byte, 200)
	n, err := out.Read(line)
	require.NoError(t, err)
	words := strings.Fields(string(line[:n]))
	require.Len(t, words, 2)
	require.Equal(t, "regular", words[0])
	p := &pair{t: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	info := p.do(mustRequest(t, words[1]+"/server_info")).object(t)
	assert.Equal(t, []any{"big", 64.0, "null"}, []any{info["served_model_name"], info["page_size"], info["disaggregation_mode"]})
	cancel()
	require.NoError(t, <-done)
}

func TestTheCommandRefusesWhatItDoesNotKnow(t *testing.T) {
	f := func(words string, args ...string) {
		t.Helper()
		require.ErrorContains(t, Run(t.Context(), args, io.Discard, io.Discard), words)
	}
	f("role", "--port", "0")
	f("not defined", "--nope")
	f("unexpected argument", "--role", "decode", "more")
	f("disconnect", "--role", "decode", "--disconnect", "soon")
	f("page size", "--role", "regular", "--page-size", "-1")
	f("load balance", "--role", "decode", "--load-balance-method", "best")
	require.NoError(t, Run(t.Context(), []string{"--help"}, io.Discard, io.Discard))
}

func TestTheTimersHaveTheNamesOfTheEnvironment(t *testing.T) {
	env := map[string]string{
		"SGLANG_DISAGGREGATION_WAITING_TIMEOUT":        "1.5",
		"SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE":  "4",
		"SGLANG_TIMEOUT_KEEP_ALIVE":                    "7",
		"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL_OLD": "x",
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	var timers Timers
	require.NoError(t, timers.FromEnv(lookup))
	require.Equal(t, Timers{WaitingTimeout: 1500 * time.Millisecond, HeartbeatMaxFailure: 4, KeepAlive: 7 * time.Second}, timers)
	env["SGLANG_REQUEST_STATE_WAIT_TIMEOUT"] = "soon"
	require.Error(t, timers.FromEnv(lookup))
}
