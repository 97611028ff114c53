package router

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pd"
)

func TestRenderIsTheOneAnswerToAnError(t *testing.T) {
	ours := pd.Error{Kind: pd.Unavailable, Status: 503, Code: "decode_unavailable", Message: "no", RetryAfter: "1", Err: errors.New("dial 10.0.0.1")}
	field := pd.InvalidField("n", "n must be a positive integer")
	engine := pd.Error{
		Kind: pd.Refused, Status: 429, Body: []byte(`{"busy":1}`), ContentType: "application/problem+json",
		Header: http.Header{"X-Engine": {"a", "b"}}, RetryAfter: "7", Code: "engine_error",
	}
	own := func(code string) http.Header {
		return http.Header{"X-Tandem-Error": {code}, "X-Smg-Error-Code": {code}}
	}
	retry := own("decode_unavailable")
	retry.Set("Retry-After", "1")
	for _, c := range []struct {
		name   string
		shape  shape
		err    *pd.Error
		status int
		header http.Header
		body   string
	}{
		{"ours on /generate", plain, &ours, 503, retry, `{"error":{"message":"no","type":"overloaded_error","code":503}}`},
		{"ours on /v1", openAI, &ours, 503, retry, `{"error":{"message":"no","type":"overloaded_error","param":null,"code":"decode_unavailable"}}`},
		{"ours on /v1/messages", anthropic, &ours, 503, retry, `{"error":{"message":"no","type":"overloaded_error"},"type":"error"}`},
		{"a field", openAI, field, 400, own("invalid_request"), `{"error":{"message":"n must be a positive integer","type":"invalid_request_error","param":"n","code":"invalid_request"}}`},
		{
			"an engine's own words", openAI, &engine, 429,
			http.Header{"X-Engine": {"a", "b"}, "Retry-After": {"7"}, "Content-Type": {"application/problem+json"}},
			`{"busy":1}`,
		},
		{"an empty answer of an engine", plain, &pd.Error{Status: 401, Body: []byte{}}, 401, http.Header{}, ``},
		{"a status that is none", plain, &pd.Error{Status: 200, Message: "x"}, 500, http.Header{}, `{"error":{"message":"x","type":"server_error","code":500}}`},
		{"a deadline", openAI, &pd.Error{Status: 504, Code: "decode_timeout", Message: "late"}, 504, own("decode_timeout"), `{"error":{"message":"late","type":"timeout_error","param":null,"code":"decode_timeout"}}`},
		{"no code", openAI, &pd.Error{Status: 502, Message: "x"}, 502, http.Header{}, `{"error":{"message":"x","type":"server_error","param":null,"code":null}}`},
		{"a server error on /v1/messages", anthropic, &pd.Error{Status: 502, Message: "x"}, 502, http.Header{}, `{"error":{"message":"x","type":"api_error"},"type":"error"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, header, body := render(c.shape, c.err)
			assert.Equal(t, c.status, status)
			assert.Equal(t, c.header, header)
			assert.Equal(t, c.body, string(body))
		})
	}
	assert.Equal(t, http.Header{"X-Engine": {"a", "b"}}, engine.Header, "the error is not changed")
}

func TestErrorOfServeIsTheAnswer(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		return nil, &pd.Error{
			Kind: pd.Refused, Status: 422, Body: []byte(`{"object":"error"}`), ContentType: "application/json",
			Header: http.Header{"Content-Type": {"text/x"}, "X-A": {"1", "2"}}, RetryAfter: "3",
		}
	})})
	resp, body := r.do("POST", "/v1/completions", `{"prompt":"x"}`, "x-request-id", "me")
	assert.Equal(t, 422, resp.StatusCode)
	assert.Equal(t, `{"object":"error"}`, body)
	assert.Equal(t, []string{"application/json"}, resp.Header["Content-Type"])
	assert.Equal(t, []string{"1", "2"}, resp.Header["X-A"])
	assert.Equal(t, "3", resp.Header.Get("Retry-After"))
	assert.Equal(t, "me", resp.Header.Get("X-Request-Id"))
	assert.Empty(t, resp.Header.Get("X-Tandem-Error"), "it is not our error")
}

func TestForeignErrorShowsNothing(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		return nil, errors.New("dial tcp 10.0.0.7:30000: refused")
	})})
	resp, body := r.do("POST", "/generate", `{}`)
	assert.Equal(t, 500, resp.StatusCode)
	assert.NotContains(t, body, "10.0.0.7")
	assert.Equal(t, "internal_error", resp.Header.Get("X-Tandem-Error"))
	assert.Equal(t, "internal_error", resp.Header.Get("X-SMG-Error-Code"))
}

func TestBadBodyIsRefusedBeforeDispatch(t *testing.T) {
	server := serving(nil)
	r := start(t, Config{Server: server})
	resp, body := r.do("POST", "/v1/chat/completions", `{"stream":"yes"}`)
	assert.Equal(t, 400, resp.StatusCode)
	assert.JSONEq(t, `{"error":{"message":"stream must be true or false","type":"invalid_request_error","param":"stream","code":"invalid_request"}}`, body)
	resp, body = r.do("POST", "/generate", `[]`)
	assert.Equal(t, 400, resp.StatusCode)
	assert.Contains(t, body, `"code":400`)
	resp, _ = r.do("POST", "/generate", ``)
	assert.Equal(t, 400, resp.StatusCode)
	assert.Zero(t, server.served.Load())
}

func TestUnknownPathsAndMethods(t *testing.T) {
	r := start(t, Config{})
	for _, c := range []struct {
		method, path string
		status       int
		allow, body  string
	}{
		{"GET", "/nothing", 404, "", `{"error":{"message":"there is no such path","type":"invalid_request_error","code":404}}`},
		{"POST", "/v1/nothing", 404, "", `{"error":{"message":"there is no such path","type":"invalid_request_error","param":null,"code":"not_found"}}`},
		{"GET", "/generate", 405, "POST, PUT", `{"error":{"message":"the path does not take this method","type":"invalid_request_error","code":405}}`},
		{"DELETE", "/v1/completions", 405, "POST", `{"error":{"message":"the path does not take this method","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}`},
		{"GET", "/workers", 404, "", `{"error":"there is no such path","code":"NOT_FOUND"}`},
		{"GET", "/pd_role_switch", 404, "", `{"error":"there is no such path","code":"NOT_FOUND"}`},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			resp, body := r.do(c.method, c.path, "")
			assert.Equal(t, c.status, resp.StatusCode)
			assert.Equal(t, c.allow, resp.Header.Get("Allow"))
			assert.Equal(t, c.body, body)
			assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
			assert.NotEmpty(t, resp.Header.Get("X-Request-Id"))
		})
	}
}

// No call to an engine could be made with such a name.
func TestHeaderNameWithASpaceIsRefusedBeforeDispatch(t *testing.T) {
	p0 := engineFunc(t, "p0", pd.Prefill, func(http.ResponseWriter, *http.Request) {
		assert.Fail(t, "the engine was called")
	})
	server := serving(sizes)
	r := start(t, Config{Server: server, Workers: fleet(p0)})
	for _, path := range []string{"/generate", "/v1/chat/completions", "/tokenize", "/abort_request"} {
		request := strings.Replace(post(path, `{"rid":"r"}`), "\r\n", "\r\nX A: b\r\n", 1)
		resp, _ := answered(t, r.dial(request))
		assert.Equal(t, 400, resp.StatusCode, path)
		assert.Equal(t, "invalid_http", resp.Header.Get("X-Tandem-Error"), path)
	}
	assert.Zero(t, server.served.Load())
}

func TestUnsupportedEndpoints(t *testing.T) {
	r := start(t, Config{})
	f := func(path, want string) {
		t.Helper()
		resp, body := r.do("POST", path, `{"input":"x"}`)
		assert.Equal(t, 501, resp.StatusCode, path)
		assert.Contains(t, body, want, path)
		assert.Equal(t, "unsupported_endpoint", resp.Header.Get("X-Tandem-Error"), path)
	}
	for _, path := range []string{"/v1/embeddings", "/v1/rerank", "/v1/classify", "/v1/score", "/v1/responses"} {
		f(path, `"code":"unsupported_endpoint"`)
	}
	f("/rerank", `"code":501`)
	f("/v1/messages", `"type":"error"`)
}
