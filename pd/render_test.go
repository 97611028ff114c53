package pd

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestErrorJSON(t *testing.T) {
	own := Error{Status: 503, Code: "decode_unavailable", Message: `no "decode" <there>`}
	field := *InvalidField("n", "n must be at most 128")
	engine := func(body string) Error {
		return Error{Status: 500, Code: "decode_error", Message: "m", Body: []byte(body)}
	}
	tests := []struct {
		name string
		ep   Endpoint
		err  Error
		want string
	}{
		{"ours on /v1", Chat, own, `{"error":{"message":"no \"decode\" \u003cthere\u003e","type":"overloaded_error","param":null,"code":"decode_unavailable"}}`},
		{"ours on /v1, of a field", Completions, field, `{"error":{"message":"n must be at most 128","type":"invalid_request_error","param":"n","code":"invalid_request"}}`},
		{"ours on /generate", Generate, own, `{"error":{"message":"no \"decode\" \u003cthere\u003e","type":"overloaded_error","code":503}}`},
		{"an engine's, nested", Chat, engine("{\n \"error\": {\"code\": 1e2}\n}"), `{"error":{"code":1e2}}`},
		{"an engine's, flat", Chat, engine(`{"object":"error","message":"x"}`), `{"error":{"object":"error","message":"x"}}`},
		{"an engine's text", Chat, engine("Internal Server Error"), `{"error":{"message":"m","type":"server_error","param":null,"code":"decode_error"}}`},
		{"an engine's cut JSON", Generate, engine(`{"error":`), `{"error":{"message":"m","type":"server_error","code":500}}`},
		{"an engine's list", Generate, engine(`[1]`), `{"error":{"message":"m","type":"server_error","code":500}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			line := tt.err.JSON(tt.ep)
			assert.Equal(t, tt.want, string(line))
			assert.True(t, json.Valid(line))
			assert.False(t, bytes.ContainsAny(line, "\r\n"), "it fits on one line of an event")
			assert.Equal(t, "data: "+tt.want+"\n\n", string(tt.err.Event(tt.ep)))
		})
	}
}

func TestAnthropicJSON(t *testing.T) {
	f := func(status int, kind string) {
		line := (&Error{Status: status, Code: "x", Message: `no "worker" <there>`}).AnthropicJSON()
		assert.Equal(t, `{"error":{"message":"no \"worker\" \u003cthere\u003e","type":"`+kind+`"},"type":"error"}`, string(line))
	}
	f(400, "invalid_request_error")
	f(401, "authentication_error")
	f(429, "rate_limit_error")
	f(500, "api_error")
	f(502, "api_error")
	f(503, "overloaded_error")
	f(504, "timeout_error")
}

func TestErrorType(t *testing.T) {
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "invalid_request_error", 408: "timeout_error",
		413: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error", 500: "server_error", 502: "server_error",
		503: "overloaded_error", 504: "timeout_error",
	} {
		assert.Equal(t, want, ErrorType(status), status)
	}
}
