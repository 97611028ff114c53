package router

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestWholeEnginesAreAskedOnEveryPath(t *testing.T) {
	got := make(chan *pd.Request, 1)
	r := start(t, Config{Regular: true, Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		got <- req
		return whole(`{"a":1}`), nil
	})})
	f := func(method, target string, ep pd.Endpoint, body, model string, stream bool) {
		t.Run(method+" "+target, func(t *testing.T) {
			resp, answer := r.do(method, target, body, "X-Odd", "a")
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, `{"a":1}`, answer)
			req := within(t, got, "the request")
			assert.Equal(t, ep, req.Endpoint)
			assert.Equal(t, [2]string{method, target}, [2]string{req.Method, req.Path()})
			assert.Equal(t, body, string(req.Payload().Bytes()))
			assert.Equal(t, model, req.Model)
			assert.Equal(t, stream, req.Stream)
			assert.Equal(t, "a", req.Header.Get("X-Odd"))
			assert.Equal(t, resp.Header.Get("X-Request-Id"), req.Header.Get("X-Request-Id"))
		})
	}
	const object = ` {"model":"m", "stream":true,"n":"3"} `
	f("POST", "/generate", pd.Generate, object, "m", true)
	f("PUT", "/generate?x=%20y", pd.Generate, object, "m", true)
	f("POST", "/v1/chat/completions", pd.Chat, object, "m", true)
	f("POST", "/v1/completions", pd.Completions, object, "m", true)
	for _, path := range []string{
		"/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
		"/v1/tokenize", "/v1/detokenize", "/tokenize", "/detokenize", "/rerank", "/encode", "/classify", "/invocations", "/v1/of/tomorrow",
	} {
		f("POST", path, pd.Other, object, "m", true)
	}
	f("GET", "/v1/responses/resp_1?include=a&include=b", pd.Other, "", "", false)
	f("DELETE", "/v1/responses/resp_1", pd.Other, "", "", false)
	f("POST", "/v1/responses/resp_1/cancel", pd.Other, "", "", false)
	f("PATCH", "/v1/files/a%2Fb", pd.Other, "[1]", "", false)
	f("PUT", "/v1/files/x", pd.Other, "\x00\xff", "", false)
	f("POST", "/v1/audio/transcriptions", pd.Other, "--x\r\n\r\n\xff--x--", "", false)
}

func TestWhatWholeEnginesAreNotAsked(t *testing.T) {
	r := start(t, Config{Regular: true, Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		t.Error("nothing of this is for an engine")
		return whole(``), nil
	})})
	f := func(method, target, body string, status int) {
		t.Helper()
		resp, answer := r.do(method, target, body)
		assert.Equal(t, status, resp.StatusCode, "%s %s: %s", method, target, answer)
	}
	f("POST", "/v1/chat/completions", `[]`, 400)
	f("POST", "/v1/chat/completions", `{"stream":"true"}`, 400)
	f("OPTIONS", "/v1/embeddings", "", 405)
	f("POST", "/update_weights", `{}`, 404)
	f("GET", "/", "", 404)
	for _, path := range []string{"/v1/../flush_cache", "/v1/%2e%2e/flush_cache", "/v1/./x", "/v1/a%2f..%2fb"} {
		c := r.dial("POST " + path + " HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}")
		resp, _ := answered(t, c)
		assert.Equal(t, 404, resp.StatusCode, path)
	}
}

func TestErrorsOfOtherPathsHaveTheShapeOfTheirAPI(t *testing.T) {
	r := start(t, Config{Regular: true, Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		return nil, &pd.Error{Kind: pd.NoWorker, Status: 503, Code: "no_regular_available", Message: "none", RetryAfter: "1"}
	})})
	f := func(path, want string) {
		t.Helper()
		resp, body := r.do("POST", path, `x`)
		assert.Equal(t, 503, resp.StatusCode)
		assert.JSONEq(t, want, body, path)
	}
	const ofOpenAI = `{"error":{"message":"none","type":"overloaded_error","param":null,"code":"no_regular_available"}}`
	f("/v1/embeddings", ofOpenAI)
	f("/v1/responses", ofOpenAI)
	f("/v1/messages", `{"type":"error","error":{"type":"overloaded_error","message":"none"}}`)
	f("/v1/messages/count_tokens", `{"type":"error","error":{"type":"overloaded_error","message":"none"}}`)
	f("/rerank", `{"error":{"message":"none","type":"overloaded_error","code":503}}`)
}

func TestAnswersWithoutABody(t *testing.T) {
	closed := make(chan struct{}, 2)
	r := start(t, Config{Regular: true, Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		resp := whole("")
		resp.Body = &closing{Reader: strings.NewReader(""), closed: closed}
		resp.Header.Set("X-Odd", "a")
		if req.Method == http.MethodHead {
			resp.Length = 123
		} else {
			resp.Status = http.StatusNoContent
		}
		return resp, nil
	})})
	head, _ := r.do("HEAD", "/v1/files/a", "")
	assert.Equal(t, 200, head.StatusCode)
	assert.EqualValues(t, 123, head.ContentLength)
	assert.Equal(t, "a", head.Header.Get("X-Odd"))
	within(t, closed, "the body's close")
	gone, body := r.do("DELETE", "/v1/files/a", "")
	assert.Equal(t, 204, gone.StatusCode)
	assert.Empty(t, body)
	within(t, closed, "the body's close")
}

type closing struct {
	io.Reader
	closed chan struct{}
}

func (c *closing) Close() error {
	c.closed <- struct{}{}
	return nil
}

func TestOtherPathsWaitForTheirTurnAndNeedTheKey(t *testing.T) {
	r := start(t, Config{Regular: true, APIKey: "k", MaxConcurrent: 1, QueueSize: -1, Server: serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
		return stream(newFakeBody(ctx)), nil
	})})
	resp, _ := r.do("POST", "/v1/embeddings", `{}`)
	assert.Equal(t, 401, resp.StatusCode)
	open := r.open("POST", "/v1/embeddings", `{}`, "Authorization", "Bearer k")
	defer open.Body.Close()
	resp, _ = r.do("POST", "/v1/embeddings", `{}`, "Authorization", "Bearer k")
	assert.Equal(t, 429, resp.StatusCode)
}

func TestOneWholeEngineIsEnoughToBeReady(t *testing.T) {
	a := engine(t, "a", pd.Regular, map[string]string{"/health_generate": "{}"})
	healthy := false
	r := start(t, Config{Regular: true, Workers: fleet(a), Healthy: func(context.Context, *pd.Worker) bool { return healthy }})
	resp, _ := r.do("GET", "/readiness", "")
	assert.Equal(t, 503, resp.StatusCode)
	healthy = true
	resp, body := r.do("GET", "/readiness", "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.JSONEq(t, `{"status":"ready","healthy_workers":1,"total_workers":1}`, body)
	resp, body = r.do("GET", "/health_generate", "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.JSONEq(t, `{"status":"healthy","workers":[{"worker":"a","role":"regular","status":200}]}`, body)
}

func TestInfosOfWholeEngines(t *testing.T) {
	a := engine(t, "a", pd.Regular, map[string]string{
		"/v1/models": `{"data":[{"id":"m"}]}`, "/model_info": `{"model_path":"m"}`,
		"/server_info": `{"api_key":"sk","internal_states":[{"x":1}]}`, "/v1/loads": `{"loads":[{"num_running_reqs":2,"num_waiting_reqs":1}]}`,
	})
	b := engine(t, "b", pd.Regular, map[string]string{"/v1/models": `{"data":[{"id":"e"}]}`, "/server_info": `{"internal_states":[{"x":2}]}`})
	r := start(t, Config{Regular: true, Workers: fleet(dead(t, "z", pd.Regular), a, b)})
	f := func(path, want string) {
		t.Helper()
		resp, body := r.do("GET", path, "")
		require.Equal(t, 200, resp.StatusCode, body)
		assert.Equal(t, want, body, path)
	}
	f("/v1/models", `{"object":"list","data":[{"id":"m"},{"id":"e"}]}`)
	f("/v1/models/e", `{"id":"e"}`)
	f("/model_info", `{"model_path":"m"}`)
	f("/server_info", `{"internal_states":[{"x":1},{"x":2}],"regular":[{"worker":"z","error":"cannot be reached"},`+
		`{"worker":"a","internal_states":[{"x":1}]},{"worker":"b","internal_states":[{"x":2}]}]}`)
	f("/get_loads", `{"workers":[{"worker":"z","role":"regular","load":-1},{"worker":"a","role":"regular","load":3},{"worker":"b","role":"regular","load":-1}]}`)
}
