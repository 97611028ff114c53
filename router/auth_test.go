package router

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/pd"
)

const key = "s3cret-of-the-router"

// keyed is a router with a key over two engines, one of them with a key of its
// own, that note which Authorization they are sent.
type keyed struct {
	*rig

	mu   sync.Mutex
	log  strings.Builder
	sent map[string][]string // by who was sent it
	n    int
}

// Write takes the router's log.
func (k *keyed) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Write(p)
}

// logged is the log so far.
func (k *keyed) logged() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.String()
}

func (k *keyed) note(who string, values []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sent[who] = append(k.sent[who], values...)
	k.n++
}

// calls is how many have come so far.
func (k *keyed) calls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
}

func startKeyed(t *testing.T) *keyed {
	t.Helper()
	k := &keyed{sent: make(map[string][]string)}
	worker := func(id pd.WorkerID, role pd.Role, own string) *pd.Worker {
		w := engineFunc(t, id, role, func(w http.ResponseWriter, req *http.Request) {
			k.note(string(id), req.Header["Authorization"])
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}],"loads":[]}`)
		})
		w.APIKey = own
		return w
	}
	server := serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		k.note("orchestrator", req.Header["Authorization"])
		return whole("ok"), nil
	})
	server.abort = func(_ context.Context, a pd.AbortRequest) (*pd.AbortResult, error) {
		k.note("orchestrator", a.Header["Authorization"])
		return &pd.AbortResult{Status: http.StatusOK}, nil
	}
	k.rig = start(t, Config{
		APIKey: key, Server: server, Fleet: new(fakeFleet).fleet(), Log: zerolog.New(k),
		Workers: fleet(worker("p0", pd.Prefill, "of-p0"), worker("d0", pd.Decode, "")),
	})
	return k
}

func TestEveryRouteButHealthAndInfoAsksForTheKey(t *testing.T) {
	k := startKeyed(t)
	public := []string{
		"/get_model_info", "/get_server_info", "/health", "/health_generate", "/liveness", "/model_info",
		"/ping", "/readiness", "/server_info", "/v1/models", "/v1/models/*",
	}
	var open []string
	for _, route := range k.fiber.GetRoutes(true) {
		id := "decode-0"
		if route.Method == http.MethodDelete {
			id = "prefill-0" // which the others do without
		}
		path := strings.NewReplacer(":id", id, "*", "m").Replace(route.Path)
		isPublic := slices.Contains(public, route.Path)
		if isPublic && route.Method == http.MethodGet {
			open = append(open, route.Path)
		}
		for name, c := range map[string]struct {
			header []string
			has    bool
		}{
			"no key":    {nil, false},
			"wrong key": {[]string{"Authorization", "Bearer wrong"}, false},
			"right key": {[]string{"Authorization", "Bearer " + key}, true},
		} {
			what := fmt.Sprintf("%s %s with %s", route.Method, route.Path, name)
			before, sent := k.calls(), ""
			if route.Method == http.MethodPost || route.Method == http.MethodPut {
				sent = `{"rid":"r"}`
			}
			resp, body := k.do(route.Method, path, sent, c.header...)
			assert.NotContains(t, body, key, what)
			if isPublic || c.has {
				assert.NotContains(t, []int{401, 404, 405}, resp.StatusCode, what)
				continue
			}
			assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, what)
			assert.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"), what)
			assert.Equal(t, before, k.calls(), "%s reaches nobody", what)
		}
	}
	slices.Sort(open)
	assert.Equal(t, public, open, "the public routes that there are")
	assert.NotContains(t, k.logged(), "s3cret")
	assert.NotContains(t, k.logged(), "wrong")
}

func TestTheRoutersKeyGoesToNobody(t *testing.T) {
	k := startKeyed(t)
	for _, request := range [][2]string{
		{"POST", "/generate"},
		{"POST", "/v1/chat/completions"},
		{"POST", "/abort_request"},
		{"POST", "/flush_cache"},
		{"POST", "/tokenize"},
		{"GET", "/v1/models"},
		{"GET", "/model_info"},
		{"GET", "/server_info"},
		{"GET", "/get_loads"},
		{"GET", "/health_generate"},
	} {
		resp, _ := k.do(request[0], request[1], `{"rid":"r"}`, "Authorization", "Bearer "+key)
		assert.Equal(t, http.StatusOK, resp.StatusCode, request[1])
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Empty(t, k.sent["orchestrator"], "for the engines")
	assert.Empty(t, k.sent["d0"])
	assert.Equal(t, []string{"Bearer of-p0"}, slices.Compact(k.sent["p0"]), "a worker's own key goes to it alone")
}

func TestARefusalHasTheEndpointsShape(t *testing.T) {
	k := startKeyed(t)
	f := func(path, want string) {
		t.Helper()
		resp, body := k.do("POST", path, "{}")
		assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		assert.Equal(t, want, body)
		assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		assert.Equal(t, "invalid_api_key", resp.Header.Get("X-Tandem-Error"))
		assert.Equal(t, "invalid_api_key", resp.Header.Get("X-SMG-Error-Code"))
	}
	const message = `"message":"this needs the router's key, as Authorization: Bearer KEY"`
	f("/generate", `{"error":{`+message+`,"type":"authentication_error","code":401}}`)
	f("/workers/decode-0/drain", `{"error":"this needs the router's key, as Authorization: Bearer KEY","code":"INVALID_API_KEY"}`)
	f("/v1/completions", `{"error":{`+message+`,"type":"authentication_error","param":null,"code":"invalid_api_key"}}`)
	f("/v1/messages", `{"error":{`+message+`,"type":"authentication_error"},"type":"error"}`)
}

func TestWhatOpensTheLock(t *testing.T) {
	f := func(want bool, values ...string) {
		t.Helper()
		var h fasthttp.RequestHeader
		for _, v := range values {
			h.Add("authorization", v)
		}
		assert.Equal(t, want, newLock("k1").opens(&h), "%q", values)
		assert.True(t, newLock("").opens(&h), "nothing is asked for: %q", values)
	}
	f(true, "Bearer k1")
	f(true, "bearer k1")
	f(true, "Bearer   k1")
	f(false)
	f(false, "")
	f(false, "k1")
	f(false, "Bearer")
	f(false, "Bearer ")
	f(false, "Bearerk1")
	f(false, "Basic k1")
	f(false, "Bearer k")
	f(false, "Bearer k12")
	f(false, "Bearer K1")
	f(false, "Bearer k1 k1")
	f(false, "Bearer k1", "Bearer k1")
	f(false, "Bearer wrong", "Bearer k1")
}

// A comparison that ends at the first difference would tell a key byte by byte.
func TestKeysAreComparedInConstantTime(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "auth.go", nil, 0)
	require.NoError(t, err)
	calls := make(map[string]int)
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok {
				calls[pkg.Name+"."+sel.Sel.Name]++
			}
		}
		return true
	})
	assert.Equal(t, 1, calls["subtle.ConstantTimeCompare"])
	assert.Equal(t, 2, calls["sha256.Sum256"], "digests are compared, so that the length is not told either")
	assert.Zero(t, calls["bytes.Equal"]+calls["bytes.HasPrefix"])
	a := New(Config{APIKey: key, Workers: pair, Server: serving(nil)})
	assert.Empty(t, a.cfg.APIKey, "the key itself is not kept")
}

func TestWithoutTheKeyNoBodyIsRead(t *testing.T) {
	r := start(t, Config{APIKey: key, MaxPayload: 1000, Server: serving(nil)})
	head := func(lines string) string { return "POST /generate HTTP/1.1\r\nHost: t\r\n" + lines + "\r\n" }
	for name, request := range map[string]string{
		"a body of which one byte comes": head("Content-Length: 900\r\n") + "{",
		"chunks that do not come":        head("Transfer-Encoding: chunked\r\n"),
		"a body that waits for a word":   head("Content-Length: 900\r\nExpect: 100-continue\r\n"),
		"a body that would be too large": head("Content-Length: 9000\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			resp, _ := answered(t, r.dial(request))
			assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		})
	}
	c := r.dial(head("Content-Length: 900\r\nExpect: 100-continue\r\nAuthorization: Bearer " + key + "\r\n"))
	buf := make([]byte, 12)
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 100", string(buf), "who has the key may send")
}
