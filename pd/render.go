package pd

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
)

// CodeDuplicateRid is the code of an engine's refusal of a rid that it still
// holds.
const CodeDuplicateRid = "duplicate_rid"

// JSON is the error as one line of JSON in the shape of the endpoint:
//
//	/v1/*      {"error":{"message":…,"type":…,"param":…,"code":…}}
//	/generate  {"error":{"message":…,"type":…,"code":…}}
//
// where type is OpenAI's word for the status and code is the machine's word, on
// /generate the status. An engine's own body is kept, an OpenAI one that is
// flat is put under "error", as clients expect of an event.
func (e *Error) JSON(ep Endpoint) []byte {
	if line, ok := compactObject(e.Body); ok {
		var probe struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(line, &probe) == nil && probe.Error != nil {
			return line
		}
		return append(append([]byte(`{"error":`), line...), '}')
	}
	var out any
	if ep.OpenAI() {
		var param, code any
		if e.Param != "" {
			param = e.Param
		}
		if e.Code != "" {
			code = e.Code
		}
		out = map[string]any{"error": struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Param   any    `json:"param"`
			Code    any    `json:"code"`
		}{e.Message, ErrorType(e.Status), param, code}}
	} else {
		out = map[string]any{"error": struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    int    `json:"code"`
		}{e.Message, ErrorType(e.Status), e.Status}}
	}
	line, err := json.Marshal(out)
	if err != nil {
		panic("BUG: an error that does not marshal: " + err.Error())
	}
	return line
}

// AnthropicJSON is an error of ours as one line of JSON in the shape of
// /v1/messages: {"type":"error","error":{"type":…,"message":…}}, where the inner
// type is Anthropic's word for the status.
func (e *Error) AnthropicJSON() []byte {
	kind := ErrorType(e.Status)
	if kind == "server_error" {
		kind = "api_error"
	}
	line, err := json.Marshal(map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": e.Message}})
	if err != nil {
		panic("BUG: an error that does not marshal: " + err.Error())
	}
	return line
}

// Event is the error as an event of a stream of the endpoint.
func (e *Error) Event(ep Endpoint) []byte {
	return slices.Concat([]byte("data: "), e.JSON(ep), []byte("\n\n"))
}

func compactObject(body []byte) ([]byte, bool) {
	if !bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{")) {
		return nil, false
	}
	var line bytes.Buffer
	if json.Compact(&line, body) != nil {
		return nil, false
	}
	return line.Bytes(), true
}

// ErrorType is the class of an HTTP status, in the words that clients of OpenAI
// decide on.
func ErrorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "server_error"
}
