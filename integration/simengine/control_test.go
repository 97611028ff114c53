package simengine

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheCallsOfTheControl(t *testing.T) {
	w := newWhole(t, nil)
	for path, body := range map[string]object{
		"/pause_generation":                {},
		"/continue_generation":             {},
		"/update_weights_from_disk":        {"model_path": "/new"},
		"/update_weights_from_tensor":      {"serialized_named_tensors": []string{"x"}},
		"/update_weights_from_distributed": {"names": []string{"x"}},
		"/init_weights_update_group":       {"rank_offset": 1},
		"/release_memory_occupation":       {},
		"/resume_memory_occupation":        {"tags": []string{"kv_cache"}},
	} {
		t.Run(path, func(t *testing.T) {
			got := w.call(path, body)
			require.Equal(t, http.StatusOK, got.status)
			assert.Equal(t, true, got.object(t)["success"])
			assert.NotEmpty(t, got.object(t)["message"])
			recs := w.e.Records()
			assert.Equal(t, path, recs[len(recs)-1].Path)
			assert.Equal(t, http.StatusOK, recs[len(recs)-1].Status)
			assert.Equal(t, http.StatusMethodNotAllowed, w.get(w.e, path).status)
			assert.Equal(t, http.StatusBadRequest, w.call(path, []byte("nope")).status)

			w.e.SetPathFault(path, &Fault{Status: http.StatusInternalServerError, Body: []byte(`{"success":false}`)})
			assert.Equal(t, http.StatusInternalServerError, w.call(path, body).status)
			w.e.SetPathFault(path, nil)
			assert.Equal(t, http.StatusOK, w.call(path, body).status)
		})
	}
	assert.Equal(t, http.StatusBadRequest, w.call("/update_weights_from_disk", object{}).status)
	assert.Equal(t, http.StatusBadRequest, w.call("/pause_generation", object{"mode": "nap"}).status)
	assert.Equal(t, http.StatusNotFound, w.get(w.e, "/get_weight_version").status)
}

func TestTheControlTakesTheAdminKey(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.APIKey, c.AdminKey = "k", "a" })
	f := func(key string, status int) {
		req, err := http.NewRequest(http.MethodPost, w.e.URL()+"/continue_generation", strings.NewReader("{}"))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+key)
		assert.Equal(t, status, w.do(req).status, key)
	}
	f("k", http.StatusUnauthorized)
	f("a", http.StatusOK)
}

func TestNewWeightsEmptyThePrefixCache(t *testing.T) {
	w := newWhole(t, nil)
	cached := func() any {
		return w.call("/generate", object{"text": strings.Repeat("a", 40)}).object(t)["meta_info"].(object)["cached_tokens"]
	}
	assert.Equal(t, []any{0.0, 32.0}, []any{cached(), cached()})
	w.call("/update_weights_from_tensor", object{})
	assert.Equal(t, []any{0.0, 32.0}, []any{cached(), cached()})
}

func TestAnEngineWhoseGenerationIsPaused(t *testing.T) {
	t.Parallel()
	slow := func(rid string) object {
		return object{"text": "a", "rid": rid, "stream": true, "sampling_params": object{"max_new_tokens": 100, "ignore_eos": true}}
	}
	quick := object{"text": "b", "rid": "held", "sampling_params": object{"max_new_tokens": 2, "ignore_eos": true}}
	f := func(mode string, aborts bool) {
		t.Run(mode, func(t *testing.T) {
			w := newWhole(t, func(c *Config) { c.Speed.TokenInterval = 10 * time.Millisecond })
			running := w.start(t.Context(), w.e, "/generate", slow("running"))
			w.until(w.e, func(l Loads) bool { return l.Running == 1 })
			require.Equal(t, http.StatusOK, w.call("/pause_generation", object{"mode": mode}).status)
			held := w.start(t.Context(), w.e, "/generate", quick)
			w.until(w.e, func(l Loads) bool { return l.Held == 1 })
			assert.Equal(t, http.StatusOK, w.get(w.e, "/health").status, "it is well")
			if aborts {
				assert.Contains(t, string((<-running).body), `"type":"abort"`)
			} else {
				time.Sleep(100 * time.Millisecond) // what was being sent is out
				events := w.e.Records()[0].Events
				time.Sleep(200 * time.Millisecond)
				assert.Equal(t, events, w.e.Records()[0].Events, "it stopped where it was")
				assert.Less(t, events, 100)
			}
			assert.Equal(t, 1, w.e.Loads().Held)

			require.Equal(t, http.StatusOK, w.call("/continue_generation", object{}).status)
			assert.Equal(t, http.StatusOK, (<-held).status)
			if !aborts {
				got := <-running
				assert.NotContains(t, string(got.body), "abort")
				assert.Len(t, got.events(), 101)
			}
			w.idle(w.e)
		})
	}
	f("abort", true)
	f("", true)
	f("in_place", false)
	f("retract", false)
}

func TestAPausedPairHoldsAndServesLater(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, d *Config) { a.TimeScale, d.TimeScale = 1, 1 })
	for _, e := range []*Engine{p.prefill, p.decode} {
		require.Equal(t, http.StatusOK, p.post(t.Context(), e, "/pause_generation", object{}).status)
	}
	body := p.routed(1, object{"text": "a"})
	pre, dec := p.start(t.Context(), p.prefill, "/generate", body), p.start(t.Context(), p.decode, "/generate", body)
	for _, e := range []*Engine{p.prefill, p.decode} {
		p.until(e, func(l Loads) bool { return l.Held == 1 })
		assert.Equal(t, http.StatusBadRequest, p.post(t.Context(), e, "/flush_cache", object{}).status)
		require.Equal(t, http.StatusOK, p.post(t.Context(), e, "/continue_generation", object{}).status)
	}
	assert.Equal(t, http.StatusOK, (<-pre).status)
	assert.Equal(t, http.StatusOK, (<-dec).status)
}

func TestTheFactsOfAnEngine(t *testing.T) {
	f := func(name string, cfg Config, mode string) {
		t.Run(name, func(t *testing.T) {
			cfg.Model, cfg.PageSize, cfg.DPSize, cfg.MaxTotalTokens, cfg.ContextLength = "big", 64, 2, 5000, 300
			p := &pair{t: t, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
			e := start(t, cfg)
			info := p.get(e, "/server_info").object(t)
			for key, want := range map[string]any{
				"served_model_name": "big", "page_size": 64.0, "dp_size": 2.0, "max_total_num_tokens": 5000.0,
				"context_length": 300.0, "disaggregation_mode": mode,
			} {
				assert.Equal(t, want, info[key], key)
			}
			assert.Equal(t, mode, info["internal_states"].([]any)[1].(object)["disaggregation_mode"])
			model := p.get(e, "/model_info").object(t)
			assert.Equal(t, "big", model["served_model_name"])
			assert.Equal(t, mode, model["disaggregation_mode"])
			loads := p.get(e, "/v1/loads").object(t)["loads"].([]any)[0].(object)
			assert.Equal(t, mode, loads["disaggregation"].(object)["mode"])
			if cfg.Role == Prefill {
				p.prefill = e
				assert.Contains(t, string(p.bootstrap(routeQuery(-1, -1, -1, -1)).body), `"page_size":64`)
			}
			if cfg.Role == Regular {
				assert.Contains(t, string(p.get(e, "/metrics").body), `engine_type="unified"`)
			}
		})
	}
	f("prefill", Config{Role: Prefill}, "prefill")
	f("decode", Config{Role: Decode}, "decode")
	f("regular", Config{Role: Regular}, "null")
}

func TestInfoCanFailForAWhileAndCanLie(t *testing.T) {
	w := newWhole(t, nil)
	w.e.SetPathFault("/server_info", &Fault{Status: http.StatusServiceUnavailable})
	assert.Equal(t, http.StatusServiceUnavailable, w.get(w.e, "/server_info").status)
	assert.Equal(t, http.StatusOK, w.get(w.e, "/model_info").status)
	w.e.SetPathFault("/server_info", &Fault{Status: http.StatusOK, Body: []byte(`{"served_model_name":"other"}`)})
	assert.Equal(t, "other", w.get(w.e, "/server_info").object(t)["served_model_name"])
	w.e.SetPathFault("/server_info", nil)
	assert.Equal(t, "tiny", w.get(w.e, "/server_info").object(t)["served_model_name"])
}
