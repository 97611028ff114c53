package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestEachRequestIsOneLine(t *testing.T) {
	log := newLogLines()
	r := start(t, Config{Log: zerolog.New(log).Level(zerolog.InfoLevel), Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		switch req.Model {
		case "refused":
			return nil, &pd.Error{Status: 429, Code: "busy", Err: errors.New("PROMPT")}
		case "cut":
			return stream(io.NopCloser(failingReader{strings.NewReader("data: 1\n\n"), errors.New("PROMPT")})), nil
		}
		return whole("ok"), nil
	})})
	line := func(request string) map[string]any {
		t.Helper()
		_, err := io.ReadAll(r.dial(request))
		_ = err // the answers are other tests' matter
		text := log.next(t)
		assert.NotContains(t, text, "PROMPT")
		assert.NotContains(t, text, "SECRET")
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &fields))
		assert.Contains(t, fields, "ms")
		delete(fields, "ms")
		return fields
	}
	request := func(path, body string) string {
		return strings.Replace(post(path, body), "\r\n", "\r\nX-Request-Id: me\r\nAuthorization: SECRET\r\nCookie: SECRET\r\nConnection: close\r\n", 1)
	}
	base := func(endpoint string, status float64) map[string]any {
		return map[string]any{"level": "info", "message": "request", "id": "me", "endpoint": endpoint, "status": status}
	}
	assert.Equal(t, base("generate", 200), line(request("/generate", `{"text":"PROMPT"}`)))
	assert.Equal(t, base("chat", 429), line(request("/v1/chat/completions", `{"model":"refused","x":"PROMPT"}`)))
	assert.Equal(t, base("completions", 400), line(request("/v1/completions", `{"prompt":"PROMPT"`)))
	assert.Equal(t, base("unmatched", 404), line(request("/nothing?PROMPT", "PROMPT")))
	cut := base("generate", 200)
	cut["broken"] = true
	assert.Equal(t, cut, line(request("/generate", `{"model":"cut"}`)))
}

// panicking panics with a piece of a body when it is read.
type panicking struct{ closed chan struct{} }

func (p panicking) Read([]byte) (int, error) { panic("PROMPT") }

func (p panicking) Close() error {
	close(p.closed)
	return nil
}

func TestPanicsEndOneRequestOnly(t *testing.T) {
	log := newLogLines()
	closed := make(chan struct{})
	r := start(t, Config{Log: zerolog.New(log), Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		switch req.Model {
		case "handler":
			panic("PROMPT")
		case "body":
			return stream(panicking{closed}), nil
		}
		return whole("ok"), nil
	})})
	resp, body := r.do("POST", "/v1/completions", `{"model":"handler","prompt":"x"}`, "x-request-id", "me")
	assert.Equal(t, 500, resp.StatusCode)
	assert.JSONEq(t, `{"error":{"message":"the router failed to handle the request","type":"server_error","param":null,"code":"internal_error"}}`, body)
	assert.Equal(t, "me", resp.Header.Get("X-Request-Id"))
	text := log.next(t)
	assert.Contains(t, text, `"message":"panic"`)
	assert.Contains(t, text, "accesslog_test.go", "the stack is logged")
	assert.NotContains(t, text, "PROMPT")
	assert.Contains(t, log.next(t), `"status":500`)

	got := r.open("POST", "/generate", `{"model":"body"}`)
	defer got.Body.Close()
	_, err := io.ReadAll(got.Body)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	within(t, closed, "the body's close")
	assert.NotContains(t, log.next(t), "PROMPT")

	_, body = r.do("POST", "/generate", `{}`)
	assert.Equal(t, "ok", body, "the server lives on")
}

func TestPanicsInFanOutAreContained(t *testing.T) {
	var out bytes.Buffer
	r := start(t, Config{Log: zerolog.New(zerolog.SyncWriter(&out)), Workers: pair, Transport: panickingTransport{}})
	resp, _ := r.do("GET", "/v1/models", "")
	assert.Equal(t, 503, resp.StatusCode)
	assert.Contains(t, out.String(), `"message":"panic"`)
}

type panickingTransport struct{}

func (panickingTransport) RoundTrip(*http.Request) (*http.Response, error) { panic("x") }
