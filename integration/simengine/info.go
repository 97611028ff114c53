package simengine

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// version is the release that the simulation was measured on.
const version = "0.5.23"

type anyMap = map[string]any

// float is a number that JSON shows with a fraction, as Python's floats are.
type float float64

// MarshalJSON implements json.Marshaler.
func (f float) MarshalJSON() ([]byte, error) {
	var j jsonBuilder
	j.float(float64(f))
	return j.b, nil
}

func (l *life) serveModelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, mustJSON(anyMap{
		"model_path": "./" + l.cfg.Model, "served_model_name": l.cfg.Model, "tokenizer_path": "./" + l.cfg.Model,
		"is_generation": true, "preferred_sampling_params": nil, "weight_version": weightVersion,
		"load_format": "auto", "reasoning_parser": nil, "tool_call_parser": nil,
		"disaggregation_mode": l.cfg.Role.mode(), "has_image_understanding": false,
		"has_audio_understanding": false, "model_type": "llama", "architectures": []string{"LlamaForCausalLM"},
	}))
}

// serveServerInfo shows the keys in clear, as the real one does. The role that
// is served now is that of internal_states, that of the start stands beside it.
func (l *life) serveServerInfo(w http.ResponseWriter, _ *http.Request) {
	host, _, _ := net.SplitHostPort(l.addr)
	bootstrapPort := l.cfg.DefaultBootstrapPort
	if f := l.front.Load(); f != nil {
		bootstrapPort = portOf(f.addr)
	}
	role := l.role()
	states := make([]anyMap, l.cfg.DPSize)
	for i := range states {
		states[i] = anyMap{
			"disaggregation_mode": role.mode(), "last_gen_throughput": float(0),
			"memory_usage": anyMap{
				"weight": float(0.002), "kvcache": float(0.004), "startup_available": float(18.443),
				"token_capacity": l.cfg.MaxTotalTokens, "token_capacity_swa": nil, "graph": anyMap{},
			},
			"effective_max_running_requests_per_dp": 2048,
		}
	}
	writeJSON(w, http.StatusOK, mustJSON(anyMap{
		"model_path": "./" + l.cfg.Model, "tokenizer_path": "./" + l.cfg.Model, "served_model_name": l.cfg.Model,
		"weight_version": weightVersion, "load_format": "auto", "preferred_sampling_params": nil,
		"reasoning_parser": nil, "tool_call_parser": nil, "host": host, "port": portOf(l.addr),
		"tp_size": 1, "dp_size": l.cfg.DPSize, "pp_size": 1, "page_size": l.cfg.PageSize,
		"context_length":      l.cfg.ContextLength,
		"disaggregation_mode": l.cfg.Role.mode(), "disaggregation_bootstrap_port": bootstrapPort,
		"disaggregation_transfer_backend": "mooncake", "load_balance_method": l.cfg.LoadBalance,
		"api_key": orNil(l.cfg.APIKey), "admin_api_key": orNil(l.cfg.AdminKey),
		"status": "ready", "max_total_num_tokens": l.cfg.MaxTotalTokens,
		"max_req_input_len": l.cfg.ContextLength - 6, "startup_time": anyMap{"scheduler_e2e": float(5.77)},
		"internal_states": states, "version": version, "kv_events": nil,
	}))
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (l *life) modelCard() anyMap {
	return anyMap{
		"id": l.cfg.Model, "object": "model", "created": time.Now().Unix(), "owned_by": "sglang",
		"root": l.cfg.Model, "parent": nil, "max_model_len": l.cfg.ContextLength,
	}
}

func (l *life) serveModels(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, mustJSON(anyMap{"object": "list", "data": []anyMap{l.modelCard()}}))
}

func (l *life) serveModel(w http.ResponseWriter, id string) {
	if id != l.cfg.Model {
		writeJSON(w, http.StatusNotFound, mustJSON(anyMap{"error": anyMap{
			"message": fmt.Sprintf("The model '%s' does not exist", id), "type": "invalid_request_error",
			"param": "model", "code": "model_not_found",
		}}))
		return
	}
	writeJSON(w, http.StatusOK, mustJSON(l.modelCard()))
}

// serveLoads reports the whole engine in each of its ranks' place: the
// simulation does not count by rank.
func (l *life) serveLoads(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	n := l.loads()
	var decodeMoments any
	utilization := float(-1)
	role := l.role()
	if role != Prefill {
		decodeMoments, utilization = []float{0, 0, 0, 0, 0, 0}, 0
	}
	usage := float(n.UsedTokens) / float(l.cfg.MaxTotalTokens)
	var ranks []anyMap
	for rank := range l.cfg.DPSize {
		if want := r.URL.Query().Get("dp_rank"); want != "" && want != fmt.Sprint(rank) {
			continue
		}
		ranks = append(ranks, anyMap{
			"timestamp": float(seconds(now)), "dp_rank": rank,
			"num_running_reqs": n.Running, "num_waiting_reqs": n.Waiting, "num_waiting_uncached_tokens": 0,
			"num_used_tokens": n.UsedTokens, "num_total_tokens": n.UsedTokens, "num_active_tokens": n.UsedTokens,
			"num_prealloc_ready_tokens": 0, "max_total_num_tokens": l.cfg.MaxTotalTokens,
			"max_running_requests": 2048, "token_usage": usage, "gen_throughput": float(0), "cache_hit_rate": float(0),
			"utilization": utilization, "total_prefill_uncached_tokens": 0, "total_prefill_busy_us": 0,
			"decode_moments": decodeMoments,
			"memory":         anyMap{"weight_gb": float(0.002), "kv_cache_gb": float(0.004), "graph_gb": float(0), "token_capacity": l.cfg.MaxTotalTokens},
			"disaggregation": anyMap{
				"mode": role.mode(), "prefill_bootstrap_queue_reqs": n.Bootstrap,
				"prefill_inflight_queue_reqs": n.Inflight, "decode_prealloc_queue_reqs": n.Prealloc,
				"decode_transfer_queue_reqs": n.Transfer, "decode_retracted_queue_reqs": 0,
				"kv_transfer_speed_gb_s": float(0), "kv_transfer_latency_ms": float(0),
			},
			"queues": anyMap{"waiting": 0, "grammar": 0, "paused": n.Held, "retracted": 0, "prealloc_ready": 0},
		})
	}
	if ranks == nil {
		ranks = []anyMap{}
	}
	writeJSON(w, http.StatusOK, mustJSON(anyMap{
		"timestamp": now.UTC().Format("2006-01-02T15:04:05.000000+00:00"), "version": version,
		"accelerator": nil, "num_accelerators": 1, "loads": ranks,
	}))
}

// serveMetrics has the gauges that routers and dashboards look at. As in the
// engine, decode's do not move while a request only waits.
func (l *life) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	n := l.loads()
	engineType := string(l.role())
	if engineType == string(Regular) {
		engineType = "unified"
	}
	labels := fmt.Sprintf(`{engine_type=%q,model_name=%q,moe_ep_rank="0",pp_rank="0",tp_rank="0"}`, engineType, l.cfg.Model)
	var b strings.Builder
	gauge := func(name, help string, value float64) {
		fmt.Fprintf(&b, "# HELP sglang:%s %s\n# TYPE sglang:%s gauge\nsglang:%s%s %g\n", name, help, name, name, labels, value)
	}
	gauge("num_running_reqs", "The number of running requests.", float64(n.Running))
	gauge("num_queue_reqs", "The number of requests in the waiting queue.", 0)
	gauge("num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue.", float64(n.Bootstrap))
	gauge("num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue.", float64(n.Inflight))
	gauge("num_used_tokens", "The number of used tokens.", float64(n.UsedTokens))
	gauge("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", float64(l.cfg.MaxTotalTokens))
	gauge("token_usage", "The token usage.", float64(n.UsedTokens)/float64(l.cfg.MaxTotalTokens))
	fmt.Fprintf(&b, "# HELP sglang:num_requests_total Number of requests processed.\n# TYPE sglang:num_requests_total counter\n"+
		"sglang:num_requests_total{engine_type=%q,model_name=%q} %d\n", engineType, l.cfg.Model, n.Served)
	writeBody(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(b.String()))
}
