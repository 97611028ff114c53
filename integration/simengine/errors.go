package simengine

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// valueError is a request that the engine understands and refuses.
type valueError string

func (e valueError) Error() string { return string(e) }

// malformed is a body that is no JSON, or no object.
type malformed struct{ message string }

func (e *malformed) Error() string { return e.message }

// errIndex is a bootstrap list shorter than its batch, which no engine checks.
var errIndex = errors.New("list index out of range")

// Why an item ended early, as the cause of its context.
var errAborted = errors.New("aborted by request")

// end is how an item ended.
type end struct {
	tokens  int    // generated and visible
	status  int    // of the scheduler's abort; 0 if it served the item, or aborted it on request
	message string // of the abort
	aborted bool   // ended by a request, with what there was
	gone    bool   // the engine is down
}

func failed(status int, format string, args ...any) end {
	return end{status: status, message: fmt.Sprintf(format, args...)}
}

// The texts of failures. Operators and routers read them, so they are the
// engine's own to the letter.

const (
	causeAborted     = "Aborted by AbortReq."
	causeOtherRank   = "Failed due to an unknown reason from another rank"
	causeDeadDecode  = "Decode instance could be dead, remote mooncake session %s is not alive"
	causeSendFailed  = "Failed to send kv chunk of %s to %s"
	causeDeadPrefill = "Failed to get kvcache from prefill instance, it might be dead"
	causeLost        = "Lost connection with prefill instance (bootstrap_addr: %s)"
	causeTimeout     = "Request %s timed out after %.1fs in KVPoll.%s"
)

// transferError words the failure of one side in one of its stages, "bootstrap"
// or "transfer" on prefill, "handshake" or "transfer" on decode.
func (it *item) transferError(stage, cause string) end {
	role, prefix := "Prefill", ""
	if it.role == Decode {
		role, prefix = "Decode", "decode_req."
	}
	e := failed(http.StatusInternalServerError,
		"%s %s failed for request rank=0 %sreq.rid='%s' %sreq.bootstrap_room=%s with exception KVTransferError(bootstrap_room=%s): %s",
		role, stage, prefix, it.rid, prefix, it.room, it.room, cause)
	it.l.logf("%s", e.message)
	return e
}

// FlatError is the error body of the OpenAI endpoints, and of /generate where a
// scheduler or a schema speaks: kind is its "type", as "500" or "Bad Request".
func FlatError(message, kind string, code int) []byte {
	var j jsonBuilder
	j.open('{')
	j.kstr("object", "error")
	j.kstr("message", message)
	j.kstr("type", kind)
	j.kraw("param", "null")
	j.kint("code", int64(code))
	j.close('}')
	return j.b
}

// NativeError is the error body of /generate.
func NativeError(message string) []byte {
	b := append([]byte(`{"error":{"message":`), appendString(nil, message)...)
	return append(b, "}}"...)
}

// schemaError is the answer to a body of the wrong shape. It names a file of
// the engine, as the real one does.
func schemaError(ep endpoint, err error) []byte {
	details := []string{fmt.Sprintf(
		"{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'input': {}, 'ctx': {'error': %q}}", err.Error())}
	if field, ok := errors.AsType[*fieldError](err); ok {
		details = field.details()
	}
	line, handler := 928, "generate_request"
	switch ep {
	case epChat:
		line, handler = 1870, "openai_v1_chat_completions"
	case epCompletions:
		line, handler = 1856, "openai_v1_completions"
	}
	plural := ""
	if len(details) > 1 {
		plural = "s"
	}
	message := fmt.Sprintf("%d validation error%s:\n  %s\n\n  File \"/opt/engine/sgl-venv/lib/python3.11/site-packages/sglang/srt/entrypoints/http_server.py\", line %d, in %s\n    POST %s [%s]",
		len(details), plural, strings.Join(details, "\n  "), line, handler, ep, strings.Join(details, ", "))
	return FlatError(message, "Bad Request", http.StatusBadRequest)
}

// refuse answers a request that never reached the scheduler.
func (c *call) refuse(err error) {
	ep := c.req.ep
	native := ep == epGenerate
	_, value := errors.AsType[valueError](err)
	switch {
	case errors.Is(err, errIndex) && native && c.req.stream:
		c.out.stream()
		c.out.cut()
	case errors.Is(err, errIndex) && native:
		c.out.plain(http.StatusInternalServerError, "text/plain; charset=utf-8", []byte("Internal Server Error"))
	case errors.Is(err, errIndex):
		c.out.json(http.StatusInternalServerError, FlatError(err.Error(), "InternalServerError", http.StatusInternalServerError))
	case !value:
		c.out.json(http.StatusBadRequest, schemaError(ep, err))
	case native && c.req.stream:
		c.out.stream()
		c.out.event([]byte(`{"error":{"message":` + string(appendString(nil, err.Error())) +
			`,"type":"invalid_request_error","code":400,"retryable":false}}`))
		c.out.done()
	case native:
		c.out.json(http.StatusBadRequest, NativeError(err.Error()))
	default:
		c.out.json(http.StatusBadRequest, FlatError(err.Error(), "BadRequestError", http.StatusBadRequest))
	}
}

// refuseEnd answers a plain call whose item was aborted by the scheduler.
func (c *call) refuseEnd(e end) {
	switch {
	case e.status != http.StatusBadRequest:
		c.out.json(e.status, FlatError(e.message, fmt.Sprint(e.status), e.status))
	case c.req.ep == epGenerate:
		c.out.json(e.status, NativeError(e.message))
	default:
		c.out.json(e.status, FlatError(e.message, "BadRequestError", e.status))
	}
}
