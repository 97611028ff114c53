package simengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// capture is one recorded exchange with a real engine.
type capture struct {
	name, method, path string
	request            []byte
	failure            string // why there was no answer
	status             int
	header             http.Header
	body               []byte
}

// readCapture reads a file of testdata/sglang-pd: the request line and body,
// then the answer as it came (chunks joined), then how long it took.
func readCapture(t *testing.T, name string) capture {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "sglang-pd", name+".txt"))
	require.NoError(t, err)
	c := capture{name: name}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	question, answer, _ := strings.Cut(string(text), "\n\n")
	if strings.HasPrefix(question, "HTTP/") {
		question, answer = "", string(text)
	}
	if line, body, ok := strings.Cut(question, "\n"); ok {
		c.method, c.path, _ = strings.Cut(line, " ")
		c.path, _, _ = strings.Cut(c.path, " ")
		if body != "None" {
			c.request = []byte(body)
		}
	}
	if strings.HasPrefix(answer, "EXC ") {
		c.failure = answer
		return c
	}
	head, body, _ := strings.Cut(answer, "\n\n")
	lines := strings.Split(head, "\n")
	_, err = fmt.Sscanf(lines[0], "HTTP/1.1 %d", &c.status)
	require.NoError(t, err, name)
	c.header = http.Header{}
	for _, line := range lines[1:] {
		k, v, _ := strings.Cut(line, ": ")
		c.header.Add(k, v)
	}
	body = regexp.MustCompile(`\n\[[^\]\n]*\]\n*$`).ReplaceAllString("\n"+body, "")
	c.body = []byte(strings.TrimPrefix(body, "\n"))
	return c
}

// replay sends a captured request to a simulated engine, with the pair's own
// bootstrap address where the capture has the real pair's.
func (p *pair) replay(ctx context.Context, c capture, e *Engine) reply {
	body := c.request
	if e != p.prefill {
		body = bytes.ReplaceAll(body, []byte(`"bootstrap_port": 8998`), fmt.Appendf(nil, `"bootstrap_port": %d`, p.prefill.BootstrapPort()))
		body = bytes.ReplaceAll(body, []byte(`[8998, 8998]`), fmt.Appendf(nil, `[%d, %[1]d]`, p.prefill.BootstrapPort()))
	}
	req, err := http.NewRequestWithContext(ctx, c.method, e.URL()+c.path, bytes.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if len(resp.TransferEncoding) > 0 {
		resp.Header.Set("Transfer-Encoding", resp.TransferEncoding[0])
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: text, err: err}
}

// requireLike holds an answer against a captured one: the status, the headers,
// and the shape of the body; of errors every word.
func requireLike(t *testing.T, c capture, got reply) {
	t.Helper()
	switch {
	case strings.Contains(c.failure, "TimeoutError"):
		require.ErrorIs(t, got.err, context.DeadlineExceeded, "%s hangs", c.name)
		return
	case c.failure != "":
		require.Error(t, got.err, "%s dies", c.name)
		require.NotErrorIs(t, got.err, context.DeadlineExceeded, "%s dies", c.name)
		return
	}
	require.NoError(t, got.err, c.name)
	require.Equal(t, c.status, got.status, "%s: %s", c.name, got.body)
	assert.Equal(t, headerNames(c.header), headerNames(got.header), c.name)
	assert.Equal(t, c.header.Get("Content-Type"), got.header.Get("Content-Type"), c.name)
	switch {
	case c.status >= http.StatusBadRequest:
		assert.Equal(t, withoutIDs(c.body), withoutIDs(got.body), c.name)
	case strings.HasPrefix(c.header.Get("Content-Type"), "text/event-stream"):
		assert.Equal(t, eventShapes(t, c.body), eventShapes(t, got.body), c.name)
	case strings.HasSuffix(c.path, "_info"):
		requireInfo(t, c, got)
	case len(c.body) == 0 || c.body[0] != '{' && c.body[0] != '[':
		assert.Equal(t, strings.TrimSpace(string(c.body)), strings.TrimSpace(string(got.body)), c.name)
	default:
		assert.Equal(t, shapeOf(t, c.body), shapeOf(t, got.body), c.name)
	}
}

func headerNames(h http.Header) []string { return slices.Sorted(maps.Keys(h)) }

var (
	ridPattern  = regexp.MustCompile(`[0-9a-f]{32}`)
	addrPattern = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

func withoutIDs(body []byte) string {
	s := ridPattern.ReplaceAllString(strings.TrimSpace(string(body)), "<rid>")
	return addrPattern.ReplaceAllString(s, "<addr>")
}

// requireInfo holds the members that routers read against the captured ones.
func requireInfo(t *testing.T, c capture, got reply) {
	t.Helper()
	want, have := decodeObject(t, c.body), got.object(t)
	for _, key := range []string{
		"model_path", "served_model_name", "host", "port", "tp_size", "dp_size", "pp_size", "page_size",
		"disaggregation_mode", "disaggregation_bootstrap_port", "disaggregation_transfer_backend", "load_balance_method",
		"api_key", "admin_api_key", "status", "max_total_num_tokens", "max_req_input_len", "startup_time",
		"internal_states", "version", "kv_events", "tokenizer_path", "is_generation", "preferred_sampling_params",
		"weight_version", "load_format", "reasoning_parser", "tool_call_parser", "has_image_understanding",
		"has_audio_understanding", "model_type", "architectures",
	} {
		if _, there := want[key]; there {
			require.Contains(t, have, key, c.name)
			assert.IsType(t, want[key], have[key], "%s: %s", c.name, key)
		}
	}
	for _, key := range []string{"status", "disaggregation_mode", "load_balance_method", "max_total_num_tokens", "max_req_input_len", "version"} {
		assert.Equal(t, want[key], have[key], "%s: %s", c.name, key)
	}
}

// eventShapes are the different shapes of a stream's events, the first and the
// last two by place.
func eventShapes(t *testing.T, body []byte) map[string][]string {
	t.Helper()
	var shapes []string
	for _, e := range (reply{body: body}).events() {
		if strings.Contains(e, "[… cut here") { // one event of a long capture
			continue
		}
		if e == "[DONE]" {
			shapes = append(shapes, e)
			continue
		}
		shapes = append(shapes, shapeOf(t, []byte(e)))
	}
	require.GreaterOrEqual(t, len(shapes), 2)
	return map[string][]string{
		"first": shapes[:1], "last": shapes[len(shapes)-2:],
		"all": slices.Compact(slices.Sorted(slices.Values(shapes))),
	}
}

// shapeOf is a JSON text with its scalars replaced by their types.
func shapeOf(t *testing.T, text []byte) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v), "%s", text)
	return shape("", v)
}

func shape(key string, v any) string {
	switch key {
	case "cached_tokens_details", "matched_stop": // null, or what there is to tell
		return "nullable"
	}
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "bool"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "float"
		}
		return "int"
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, shape("", e))
		}
		slices.Sort(parts)
		return "[" + strings.Join(slices.Compact(parts), "|") + "]"
	case object:
		if key == "finish_reason" {
			return finishShape(v)
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if k != "decode_throughput" { // only of those that took long enough
				parts = append(parts, k+":"+shape(k, v[k]))
			}
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return "?"
}

// finishShape is the same for "stop" and "length": which of them it is depends
// on the model.
func finishShape(v object) string {
	keys := strings.Join(slices.Sorted(maps.Keys(v)), ",")
	switch {
	case v["type"] == "stop" && keys == "matched,type", v["type"] == "length" && keys == "length,type":
		return "ended"
	}
	return fmt.Sprint(v["type"], " ", keys)
}

// capturePair is a pair whose timers run 20 times faster than the real one's.
func capturePair(t *testing.T, scale float64) *pair {
	p := newPair(t, func(prefill, decode *Config) {
		for _, c := range []*Config{prefill, decode} {
			c.TimeScale, c.HideDebug = scale, true
			c.Speed.TokenInterval = 2 * time.Millisecond
		}
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	p.client = &http.Client{Transport: transport}
	require.NoError(t, p.decode.Close())
	p.decode = start(t, Config{
		Role: Decode, TimeScale: scale, HideDebug: true, DefaultBootstrapPort: p.prefill.BootstrapPort(),
		Speed: Speed{TokenInterval: 2 * time.Millisecond},
	})
	return p
}

const captureScale = 0.05

// hangs bounds a call that the capture gave up on.
func hangs(t *testing.T, c capture) context.Context {
	limit := 20 * time.Second
	if strings.Contains(c.failure, "TimeoutError") {
		limit = 150 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func TestAnExchangeGoesAsTheRealPairsDid(t *testing.T) {
	for _, group := range []string{
		"01_generate", "02_chat", "03_chat_stream", "04_generate_logprob", "05_generate_stream_logprob", "06_batch",
		"07_completions", "08_decode_first_2s", "09_prefill_first_2s", "24_mismatched_rooms", "27_room_string",
		"28_room_big_2^63-1", "29_room_zero", "30_prefill_wrong_host_ignored", "31_bootstrap_port_null_on_both",
		"32_too_long_both", "33_prefill_too_long_chat_stream", "34_prefill_400_decode_ok", "42_ok_after_all",
		"50_same_room_reused_sequentially", "51_decode_longer_prompt", "52_decode_shorter_prompt",
	} {
		t.Run(group, func(t *testing.T) {
			p := capturePair(t, captureScale)
			first, second := readCapture(t, group+"_prefill"), readCapture(t, group+"_decode")
			decode := make(chan reply, 1)
			go func() { decode <- p.replay(hangs(t, second), second, p.decode) }()
			if strings.Contains(group, "decode_first") {
				require.NoError(t, p.decode.Wait(t.Context(), 1))
			}
			requireLike(t, first, p.replay(hangs(t, first), first, p.prefill))
			requireLike(t, second, <-decode)
			require.NoError(t, p.prefill.Fatal())
			require.NoError(t, p.decode.Fatal())
		})
	}
}

func TestASingleCallGoesAsTheRealEnginesDid(t *testing.T) {
	for _, name := range []string{
		"20_prefill_no_bootstrap_fields", "21_decode_no_bootstrap_fields", "22_prefill_host_only_no_room",
		"23_decode_host_only_no_room", "25_decode_bad_port", "26_decode_bad_host", "40_abort_unknown_rid",
		"41_health_decode", "41_health_prefill", "41_loads_after_decode", "41_loads_after_prefill",
		"60_flush_cache_prefill", "61_err_unknown_field", "62_err_404", "63_err_405",
		"get_get_model_info_decode", "get_get_model_info_prefill", "get_get_server_info_decode",
		"get_get_server_info_prefill", "get_health_decode", "get_health_prefill", "get_server_info_decode",
		"get_server_info_prefill", "get_v1_loads_decode", "get_v1_loads_prefill", "get_v1_models_decode", "get_v1_models_prefill",
	} {
		t.Run(name, func(t *testing.T) {
			p := capturePair(t, captureScale)
			c := readCapture(t, name)
			// The captures that were taken with curl have no request line.
			switch name {
			case "60_flush_cache_prefill":
				c.method, c.path = http.MethodPost, "/flush_cache"
			case "61_err_unknown_field":
				c.method, c.path, c.request = http.MethodPost, "/generate", []byte(`{"input_ids":[5,6],"foo":1,"sampling_params":{"max_new_tokens":1}}`)
			case "62_err_404":
				c.method, c.path = http.MethodGet, "/nope"
			case "63_err_405":
				c.method, c.path = http.MethodDelete, "/generate"
			case "25_decode_bad_port", "26_decode_bad_host": // nobody there, but on this machine
				dead := deadPort(t)
				c.request = bytes.ReplaceAll(c.request, []byte("192.0.2.1"), []byte("127.0.0.1"))
				c.request = bytes.ReplaceAll(c.request, []byte(`"bootstrap_port": 9,`), []byte(`"bootstrap_port": 8998,`))
				c.request = bytes.ReplaceAll(c.request, []byte("8998"), []byte(strconv.Itoa(dead)))
			}
			e := p.decode
			if strings.Contains(name, "prefill") || strings.HasPrefix(name, "6") {
				e = p.prefill
			}
			requireLike(t, c, p.replay(hangs(t, c), c, e))
		})
	}
}

// deadPort is a port of this machine where nobody listens: the near end of a
// connection, so that no other server takes it.
func deadPort(t *testing.T) int {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	near, err := net.Dial("tcp", far.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() })
	return near.LocalAddr().(*net.TCPAddr).Port
}

func TestAnAbortEndsAsTheRealOnesDid(t *testing.T) {
	f := func(aborted, other, abort string, role Role) {
		t.Run(aborted, func(t *testing.T) {
			p := capturePair(t, captureScale)
			e, peer := p.decode, p.prefill
			if role == Prefill {
				e, peer = p.prefill, p.decode
			}
			c := readCapture(t, aborted)
			answer := make(chan reply, 1)
			go func() { answer <- p.replay(hangs(t, c), c, e) }()
			waiting := func(l Loads) bool { return l.Transfer+l.Bootstrap > 0 }
			if other != "" {
				second := readCapture(t, other)
				requireLike(t, second, p.replay(hangs(t, second), second, peer))
				waiting = func(l Loads) bool { return l.Running > 0 }
			}
			require.NoError(t, e.WaitFor(t.Context(), func([]Record) bool { return waiting(e.Loads()) }))
			time.Sleep(20 * time.Millisecond) // some tokens, where there are any
			cut := readCapture(t, abort)
			requireLike(t, cut, p.replay(hangs(t, cut), cut, e))
			requireLike(t, c, <-answer)
		})
	}
	f("35_decode_waiting_aborted", "", "35_abort_decode", Decode)
	f("36_prefill_waiting_aborted", "", "36_abort_prefill", Prefill)
	f("37_decode_midstream_aborted", "37_prefill", "37_abort_decode_midstream", Decode)
	f("38_decode_nostream_aborted", "38_prefill", "38_abort_decode_midway", Decode)
	f("39_chat_stream_decode_aborted", "39_prefill", "39_abort_decode_midstream", Decode)
}

func TestAPrefillDiesOfANegativeRoomAsTheRealOneDid(t *testing.T) {
	p := capturePair(t, captureScale)
	before, after := readCapture(t, "28_room_big_2^63-1_prefill"), readCapture(t, "28_room_big_2^63-1_decode")
	decode := make(chan reply, 1)
	send := func(c capture) { go func() { decode <- p.replay(hangs(t, c), c, p.decode) }() }
	send(after) // decode knows this prefill
	requireLike(t, before, p.replay(hangs(t, before), before, p.prefill))
	requireLike(t, after, <-decode)

	killing, hanging := readCapture(t, "53_room_negative_prefill"), readCapture(t, "53_room_negative_decode")
	send(hanging)
	requireLike(t, killing, p.replay(hangs(t, killing), killing, p.prefill))
	require.ErrorContains(t, p.prefill.Fatal(), "negative")
	lost, refused := readCapture(t, "54_room_over_2^63_decode"), readCapture(t, "54_room_over_2^63_prefill")
	requireLike(t, refused, p.replay(hangs(t, refused), refused, p.prefill))
	requireLike(t, hanging, <-decode)
	send(lost)
	requireLike(t, lost, <-decode)

	unreachable := readCapture(t, "55_ok_again_decode")
	send(unreachable)
	requireLike(t, unreachable, <-decode)
}

func TestAPrefillServesARoomWhoseDecodeHasNotNoticedItsClientLeave(t *testing.T) {
	p := capturePair(t, 1)
	gone, late := readCapture(t, "65_decode_client_gone_2s"), readCapture(t, "66_prefill_after_decode_gone")
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan reply, 1)
	go func() { answer <- p.replay(ctx, gone, p.decode) }()
	require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == 1 }))
	cancel()
	require.Error(t, (<-answer).err)
	requireLike(t, late, p.replay(hangs(t, late), late, p.prefill))
}
