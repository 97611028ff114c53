package simengine

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// route is one path of the API.
type route struct {
	methods []string
	admin   bool // takes the admin key, where there is one
	serve   http.HandlerFunc
}

// serveAPI is the HTTP server of an engine.
func (l *life) serveAPI(w http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.wg.Done()
	defer func() {
		v := recover()
		if v != nil && v != http.ErrAbortHandler {
			l.crash(fmt.Errorf("panic: %v", v))
		}
		if v != nil || l.ctx.Err() != nil { // a dead engine ends no answer well
			panic(http.ErrAbortHandler)
		}
	}()
	if !l.pass() {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Server", "uvicorn")
	w.Header().Set("Vary", "Origin")
	rt, known := l.routeOf(r.URL.Path)
	if !l.authorized(r, rt.admin) {
		writeJSON(w, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
		return
	}
	if !known {
		writeJSON(w, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	if f, ok := l.e.paths.Load(r.URL.Path); ok && l.failPath(w, r, f.(*Fault)) {
		return
	}
	if slices.Contains(rt.methods, r.Method) {
		rt.serve(w, r)
		return
	}
	w.Header().Set("Allow", strings.Join(rt.methods, ", "))
	writeJSON(w, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
}

func (l *life) routeOf(path string) (route, bool) {
	get := func(h http.HandlerFunc) (route, bool) { return route{methods: []string{"GET"}, serve: h}, true }
	post := func(h http.HandlerFunc) (route, bool) { return route{methods: []string{"POST"}, serve: h}, true }
	switch path {
	case string(epResponses), string(epMessages), string(epEmbeddings), string(epRerank), string(epClassify), string(epScore):
		return post(l.infer(endpoint(path)))
	case string(epGenerate):
		return route{methods: []string{"PUT", "POST"}, serve: l.infer(epGenerate)}, true
	case string(epChat):
		return post(l.infer(epChat))
	case string(epCompletions):
		return post(l.infer(epCompletions))
	case "/abort_request":
		return route{methods: []string{"POST"}, admin: true, serve: l.serveAbort}, true
	case "/flush_cache":
		return route{methods: []string{"GET", "POST"}, admin: true, serve: l.serveFlush}, true
	case "/health", "/health_generate":
		return get(l.serveHealth)
	case "/ping":
		return get(l.servePing)
	case "/model_info", "/get_model_info":
		return get(l.serveModelInfo)
	case "/server_info", "/get_server_info":
		return get(l.serveServerInfo)
	case "/v1/models":
		return get(l.serveModels)
	case "/v1/loads":
		return get(l.serveLoads)
	case "/metrics", "/metrics/":
		return get(l.serveMetrics)
	case "/v1/tokenize", "/tokenize":
		return post(l.serveTokenize)
	case "/v1/detokenize", "/detokenize":
		return post(l.serveDetokenize)
	}
	if serve := l.controlOf(path); serve != nil {
		return route{methods: []string{"POST"}, admin: true, serve: l.control(serve)}, true
	}
	if id, ok := strings.CutPrefix(path, "/v1/responses/"); ok && !strings.Contains(id, "/") {
		return route{methods: []string{"GET", "DELETE"}, serve: func(w http.ResponseWriter, r *http.Request) { l.serveStored(w, r, id) }}, true
	}
	if id, ok := strings.CutPrefix(path, "/v1/models/"); ok {
		return get(func(w http.ResponseWriter, _ *http.Request) { l.serveModel(w, id) })
	}
	return route{}, false
}

// authorized applies the engine's two keys: health and metrics are open to all,
// and where there is an admin key the administrative routes take only that.
func (l *life) authorized(r *http.Request, admin bool) bool {
	want := l.cfg.APIKey
	if admin && l.cfg.AdminKey != "" {
		want = l.cfg.AdminKey
	}
	path := r.URL.Path
	if want == "" || r.Method == http.MethodOptions || strings.HasPrefix(path, "/health") || strings.HasPrefix(path, "/metrics") {
		return true
	}
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+want)) == 1
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	writeBody(w, status, "application/json", body)
}

func writeText(w http.ResponseWriter, status int, body string) {
	writeBody(w, status, "text/plain; charset=utf-8", []byte(body))
}

func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}
