package engine

import (
	"fmt"
	"strconv"
	"strings"
)

// legKind is the dialect of an answer.
type legKind int

const (
	generate legKind = iota
	chat
	completions
	legKinds
)

// legPaths are the calls that make a leg; every other path is a probe.
var legPaths = map[string]legKind{
	"/generate":            generate,
	"/v1/chat/completions": chat,
	"/v1/completions":      completions,
}

const (
	abortPath  = "/abort_request"
	answerSize = 1 << 10 // bytes of a JSON answer and of prefill's one event
	streamHead = "HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	done       = "data: [DONE]\n\n"
)

var streamEnd = chunk(done) + "0\r\n\r\n"

// answers holds every byte sequence a Mode may send, made once per mode.
type answers struct {
	mode          Mode
	json          [legKinds][]byte
	event         [legKinds][]byte // one chunk
	stall         [legKinds][]byte // head and one event
	prefillStream [legKinds][]byte // head, one event, [DONE], end
	refusal       []byte
	probes        map[string]string // path to body; %s is the role
}

func newAnswers(m Mode) *answers {
	a := &answers{mode: m, probes: probes()}
	for k := range legKinds {
		a.json[k] = response(200, fill(jsonShape[k], answerSize))
		event := chunk("data: " + fill(eventShape[k], m.EventBytes-len("data: \n\n")) + "\n\n")
		a.event[k] = []byte(event)
		a.stall[k] = []byte(streamHead + event)
		first := chunk("data: " + fill(eventShape[k], answerSize) + "\n\n")
		a.prefillStream[k] = []byte(streamHead + first + streamEnd)
	}
	a.refusal = response(400, `{"error":{"message":"The input is longer than the context.","type":"BadRequestError","param":null,"code":400}}`)
	return a
}

// The shapes of real answers; * is where text fills them up to their size.
var jsonShape = [legKinds]string{
	generate: `{"text":"*","output_ids":[288,339,348,145,262,34],"meta_info":{"id":"995f5566afbe4a73a5b742f4e37ca830",` +
		`"finish_reason":{"type":"length","length":6},"prompt_tokens":40,"weight_version":"default","completion_tokens":6,` +
		`"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null,"e2e_latency":0.0639}}`,
	chat: `{"id":"2919cccb60384fbfa49ea67ab30ea66c","object":"chat.completion","created":1795966467,"model":"bench",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"*"},"logprobs":null,"finish_reason":"length","matched_stop":null}],` +
		`"usage":{"prompt_tokens":5,"total_tokens":10,"completion_tokens":5},"metadata":{"weight_version":"default"}}`,
	completions: `{"id":"2919cccb60384fbfa49ea67ab30ea66c","object":"text_completion","created":1795966467,"model":"bench",` +
		`"choices":[{"index":0,"text":"*","logprobs":null,"finish_reason":"length","matched_stop":null}],` +
		`"usage":{"prompt_tokens":5,"total_tokens":10,"completion_tokens":5},"metadata":{"weight_version":"default"}}`,
}

var eventShape = [legKinds]string{
	generate: `{"text":"*","output_ids":[1],"meta_info":{"id":"995f5566afbe4a73","finish_reason":null,"prompt_tokens":40,"completion_tokens":1}}`,
	chat: `{"id":"2919cccb60384fbf","object":"chat.completion.chunk","created":1795966467,"model":"bench",` +
		`"choices":[{"index":0,"delta":{"content":"*"},"finish_reason":null}]}`,
	completions: `{"id":"2919cccb60384fbf","object":"text_completion","created":1795966467,"model":"bench",` +
		`"choices":[{"index":0,"text":"*","finish_reason":null}]}`,
}

// probes are the calls by which routers learn what a worker is.
func probes() map[string]string {
	server := `{"model_path":"bench","served_model_name":"bench","tokenizer_path":"","context_length":1048576,` +
		`"dp_size":1,"tp_size":1,"disaggregation_mode":"%s","disaggregation_bootstrap_port":8998,"version":"0.5.23",` +
		`"max_total_num_tokens":1048576,"internal_states":[{"dp_size":1}]}`
	model := `{"model_path":"bench","served_model_name":"bench","tokenizer_path":"","is_generation":true,` +
		`"weight_version":"default","disaggregation_mode":"%s","model_type":"llama","architectures":["LlamaForCausalLM"]}`
	return map[string]string{
		"/server_info":     server,
		"/get_server_info": server,
		"/model_info":      model,
		"/get_model_info":  model,
		"/v1/models":       `{"object":"list","data":[{"id":"bench","object":"model","created":1795965655,"owned_by":"sglang","root":"bench","max_model_len":1048576}]}`,
		"/health":          "",
		"/health_generate": "",
		abortPath:          "",
	}
}

// probe is the answer to a call that is no leg.
func (a *answers) probe(role Role, path string) []byte {
	body, ok := a.probes[path]
	if !ok {
		return response(404, `{"detail":"Not Found"}`)
	}
	return response(200, strings.ReplaceAll(body, "%s", string(role)))
}

func response(status int, body string) []byte {
	text := map[int]string{200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nserver: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s",
		status, text, len(body), body)
}

// fill replaces the * of shape by as much text as makes it size bytes long.
func fill(shape string, size int) string {
	return strings.Replace(shape, "*", strings.Repeat("x", max(1, size-len(shape)+1)), 1)
}

func chunk(s string) string {
	return strconv.FormatInt(int64(len(s)), 16) + "\r\n" + s + "\r\n"
}
