package router

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pd"
)

// pageHeaders are the headers of an answer that browsers decide on.
func pageHeaders(h http.Header) map[string]string {
	out := make(map[string]string)
	for name, values := range h {
		if short, ok := strings.CutPrefix(name, "Access-Control-"); ok {
			out[short] = strings.Join(values, " | ")
		}
	}
	return out
}

// liberal serves answers that any page may read, if engines were asked.
func liberal() *fakeServer {
	open := http.Header{
		"Access-Control-Allow-Origin": {"*"}, "Access-Control-Allow-Credentials": {"true"}, "Content-Type": {"text/event-stream"},
	}
	return serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		if req.Model == "refused" {
			return nil, &pd.Error{Status: 400, Body: []byte("{}"), Header: open.Clone()}
		}
		if req.Model == "panics" {
			panic("boom")
		}
		resp := stream(io.NopCloser(strings.NewReader("data: 1\n\n")))
		resp.Header = open.Clone()
		return resp, nil
	})
}

func TestPagesMayReadWhatTheirOriginAllows(t *testing.T) {
	const app, other = "https://app.example", "http://other.example:8080"
	type headers = map[string]string
	none := headers{}
	readable := func(origin string) headers {
		return headers{"Allow-Origin": origin, "Expose-Headers": "X-Request-Id"}
	}
	f := func(origins []string, from string, want headers) {
		t.Helper()
		r := start(t, Config{Origins: origins, Server: liberal(), APIKey: "k"})
		for name, c := range map[string]struct {
			status            int
			method, path, ask string
		}{
			"a stream":          {200, "POST", "/generate", `{"stream":true}`},
			"an engine's error": {400, "POST", "/v1/completions", `{"model":"refused","prompt":""}`},
			"an error of ours":  {400, "POST", "/v1/chat/completions", `{`},
			"a panic":           {500, "POST", "/generate", `{"model":"panics"}`},
			"no such path":      {404, "GET", "/v1/nothing", ""},
		} {
			resp, _ := r.do(c.method, c.path, c.ask, "Origin", from, "Authorization", "Bearer k")
			assert.Equal(t, c.status, resp.StatusCode, name)
			assert.Equal(t, want, pageHeaders(resp.Header), "%s for %s from %s", name, from, origins)
			if len(origins) > 0 && !slices.Contains(origins, "*") {
				assert.Equal(t, []string{"Origin"}, resp.Header.Values("Vary"), "a cache tells the pages apart: %s", name)
			}
		}
		resp, _ := r.do("POST", "/generate", "{}", "Origin", from)
		assert.Equal(t, 401, resp.StatusCode)
		assert.Equal(t, want, pageHeaders(resp.Header), "a page sees that its key is wrong")
	}
	f(nil, app, none)
	f([]string{app}, app, readable(app))
	f([]string{app}, other, none)
	f([]string{app}, app+".evil.example", none)
	f([]string{app}, "null", none)
	f([]string{app, other}, other, readable(other))
	f([]string{"HTTPS://App.example"}, app, readable(app))
	f([]string{"*"}, app, readable("*"))
	f([]string{app, "*"}, other, readable("*"))
}

func TestPreflight(t *testing.T) {
	const app = "https://app.example"
	server := serving(nil)
	f := func(origins []string, path string, status int, want map[string]string, header ...string) {
		t.Helper()
		r := start(t, Config{Origins: origins, Server: server, APIKey: "k", Fleet: new(fakeFleet).fleet()})
		resp, body := r.do("OPTIONS", path, "", header...)
		assert.Equal(t, status, resp.StatusCode)
		assert.Equal(t, want, pageHeaders(resp.Header), path)
		assert.NotEmpty(t, resp.Header.Get("X-Request-Id"))
		if status == http.StatusNoContent {
			assert.Empty(t, body)
		}
	}
	allowed := func(origin string, more ...string) map[string]string {
		out := map[string]string{
			"Allow-Origin": origin, "Expose-Headers": "X-Request-Id",
			"Allow-Methods": "GET, POST, PUT, PATCH, DELETE, OPTIONS", "Max-Age": "3600",
		}
		if len(more) > 0 {
			out["Allow-Headers"] = more[0]
		}
		return out
	}
	asks := []string{"Origin", app, "Access-Control-Request-Method", "POST"}
	withHeaders := append(asks, "Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")
	for _, path := range []string{"/generate", "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/nothing"} {
		f([]string{app}, path, 204, allowed(app), asks...)
		f([]string{app}, path, 204, allowed(app, "authorization,content-type,x-stainless-os"), withHeaders...)
	}
	f([]string{"*"}, "/generate", 204, allowed("*"), asks...)
	f([]string{"https://b.example"}, "/generate", 204, map[string]string{}, withHeaders...)
	f(nil, "/generate", 405, map[string]string{}, asks...)
	f([]string{app}, "/generate", 405, map[string]string{"Allow-Origin": app, "Expose-Headers": "X-Request-Id"}, "Origin", app)
	for _, path := range []string{"/workers", "/workers/decode-0/drain", "/flush_cache", "/abort_request", "/server_info"} {
		f([]string{app}, path, 405, map[string]string{}, asks...)
		f([]string{"*"}, path, 405, map[string]string{}, asks...)
	}
	assert.Zero(t, server.served.Load())
}

func TestPagesMayNotReadWhatLooksAfterWorkers(t *testing.T) {
	r := start(t, Config{Origins: []string{"*"}, Server: serving(nil), Fleet: new(fakeFleet).fleet()})
	for _, path := range []string{"/workers", "/workers/decode-0", "/health", "/readiness"} {
		resp, _ := r.do("GET", path, "", "Origin", "https://app.example")
		assert.Empty(t, pageHeaders(resp.Header), path)
	}
}
