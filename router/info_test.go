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

func TestModelsAreTheUnionOfTheWorkers(t *testing.T) {
	p0 := engine(t, "p0", pd.Prefill, map[string]string{"/v1/models": `{"object":"list","data":[{"id":"org/a","object":"model","max_model_len":12345678901234567890}]}`})
	d0 := engine(t, "d0", pd.Decode, map[string]string{"/v1/models": `{"object":"list","data":[{"id":"org/a","object":"other"},{"id":"b"},{"no":"id"}]}`})
	r := start(t, Config{Workers: fleet(dead(t, "p9", pd.Prefill), p0, d0)})

	resp, body := r.do("GET", "/v1/models", "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, `{"object":"list","data":[{"id":"org/a","object":"model","max_model_len":12345678901234567890},{"id":"b"}]}`, body)

	for _, path := range []string{"/v1/models/org/a", "/v1/models/org%2Fa"} {
		_, body = r.do("GET", path, "")
		assert.Contains(t, body, `"id":"org/a"`, path)
	}
	resp, body = r.do("GET", "/v1/models/c", "")
	assert.Equal(t, 404, resp.StatusCode)
	assert.JSONEq(t, `{"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}`, body)
}

func TestInfoWithoutAWorkerThatAnswers(t *testing.T) {
	r := start(t, Config{Workers: fleet(dead(t, "p0", pd.Prefill), engine(t, "d0", pd.Decode, nil))})
	for _, path := range []string{"/v1/models", "/v1/models/x", "/model_info", "/get_model_info", "/server_info", "/get_server_info", "/v1/loads"} {
		resp, body := r.do("GET", path, "")
		assert.Equal(t, 503, resp.StatusCode, path)
		assert.Equal(t, "no_worker_answered", resp.Header.Get("X-Tandem-Error"), path)
		assert.Contains(t, body, `"message"`, path)
	}
}

func TestModelInfoIsTheFirstPrefillsThatAnswers(t *testing.T) {
	p1 := engine(t, "p1", pd.Prefill, map[string]string{"/model_info": `{"model_path":"m","b":1,"a":2}`})
	p2 := engine(t, "p2", pd.Prefill, map[string]string{"/model_info": `{"model_path":"other"}`})
	r := start(t, Config{Workers: fleet(dead(t, "p0", pd.Prefill), engine(t, "d0", pd.Decode, nil), p1, p2)})
	for _, path := range []string{"/model_info", "/get_model_info"} {
		resp, body := r.do("GET", path, "")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, `{"model_path":"m","b":1,"a":2}`, body)
	}
}

func TestAWorkerThatCannotBeUsedIsNotAskedForItsModel(t *testing.T) {
	hangs := engineFunc(t, "p0", pd.Prefill, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	well := engineFunc(t, "p1", pd.Prefill, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[{"id":"tiny"}]}`))
	})
	r := start(t, Config{Workers: fleet(hangs, well), Healthy: func(_ context.Context, w *pd.Worker) bool { return w.ID == "p1" }})
	for _, path := range []string{"/v1/models", "/v1/models/tiny", "/model_info"} {
		resp, body := r.do("GET", path, "")
		assert.Equal(t, http.StatusOK, resp.StatusCode, path)
		assert.Contains(t, body, "tiny")
	}
}

func TestServerInfoJoinsTheWorkers(t *testing.T) {
	p0 := engine(t, "p0", pd.Prefill, map[string]string{"/server_info": `{"disaggregation_mode":"prefill","api_key":"sk-1","internal_states":[{"p":1}]}`})
	d0 := engine(t, "d0", pd.Decode, map[string]string{"/server_info": `{"internal_states":[{"x":1,"admin_api_key":"sk-2"},{"x":2}],"max_total_tokens":7}`})
	d1 := dead(t, "d1", pd.Decode)
	r := start(t, Config{Workers: fleet(p0, d0, d1)})
	for _, path := range []string{"/server_info", "/get_server_info"} {
		resp, body := r.do("GET", path, "")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, `{"internal_states":[{"x":1},{"x":2}],`+
			`"prefill":[{"worker":"p0","disaggregation_mode":"prefill","internal_states":[{"p":1}]}],`+
			`"decode":[{"worker":"d0","internal_states":[{"x":1},{"x":2}],"max_total_tokens":7},{"worker":"d1","error":"cannot be reached"}]}`, body)
	}
}

func TestLoads(t *testing.T) {
	const load = `{"version":"1","loads":[{"dp_rank":0,"num_running_reqs":2,"num_waiting_reqs":3},{"dp_rank":1,"num_running_reqs":1,"num_waiting_reqs":0}]}`
	queries := make(chan string, 4)
	p0 := engineFunc(t, "p0", pd.Prefill, func(w http.ResponseWriter, req *http.Request) {
		queries <- req.URL.RawQuery
		_, _ = w.Write([]byte(load))
	})
	d0 := engine(t, "d0", pd.Decode, map[string]string{"/v1/loads": "# HELP no json"})
	r := start(t, Config{Workers: fleet(p0, d0, dead(t, "d1", pd.Decode))})

	_, body := r.do("GET", "/get_loads", "")
	assert.JSONEq(t, `{"workers":[{"worker":"p0","role":"prefill","load":6},{"worker":"d0","role":"decode","load":-1},{"worker":"d1","role":"decode","load":-1}]}`, body)
	assert.Empty(t, within(t, queries, "the query"))

	_, body = r.do("GET", "/v1/loads?include=core", "")
	assert.JSONEq(t, `{"workers":{"p0":`+load+`,"d0":{"error":"the answer is not JSON"},"d1":{"error":"cannot be reached"}}}`, body)
	assert.Equal(t, "include=core", within(t, queries, "the query"))
}

func TestInfoCallsCarryTheKeyAndNothingElse(t *testing.T) {
	headers := make(chan http.Header, 2)
	record := func(w http.ResponseWriter, req *http.Request) {
		headers <- req.Header
		_, _ = w.Write([]byte(`{"data":[]}`))
	}
	own := engineFunc(t, "p0", pd.Prefill, record)
	own.APIKey = "worker-key"
	r := start(t, Config{Workers: fleet(own)})
	r.do("GET", "/v1/models", "", "Authorization", "Bearer client", "Cookie", "a=1", "X-Other", "1")
	got := within(t, headers, "the call")
	assert.Equal(t, []string{"Bearer worker-key"}, got["Authorization"])

	r = start(t, Config{Workers: fleet(engineFunc(t, "d0", pd.Decode, record))})
	r.do("GET", "/v1/models", "", "Authorization", "Bearer client", "Cookie", "a=1", "X-Other", "1")
	got = within(t, headers, "the call")
	got.Del("Connection") // the test's transport's own
	assert.Equal(t, http.Header{"Authorization": {"Bearer client"}}, got)
}

func TestInfoCallEndsWhenTheClientLeaves(t *testing.T) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	p0 := engineFunc(t, "p0", pd.Prefill, func(_ http.ResponseWriter, req *http.Request) {
		close(entered)
		<-req.Context().Done()
		close(cancelled)
	})
	r := start(t, Config{Workers: fleet(p0)})
	c := r.dial("GET /model_info HTTP/1.1\r\nHost: t\r\n\r\n")
	within(t, entered, "the call")
	require.NoError(t, c.Close())
	within(t, cancelled, "the call's end")
}

func TestPublicJSON(t *testing.T) {
	workers := []*pd.Worker{
		{ID: "p0", URL: "http://10.0.0.7:30000"},
		{ID: "d0", URL: "http://10.0.0.70:30000"},
		{ID: "d1", URL: "http://10.0.0.8:3000"},
		{ID: "d2", URL: "http://10.0.0.8:30001"},
	}
	f := func(in, want string) {
		t.Helper()
		got, err := publicJSON([]byte(in), workers[2], workers)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	f(`{"b":1,"a":[1.50,1e3,12345678901234567890,null,true,"é\n"]}`, `{"b":1,"a":[1.50,1e3,12345678901234567890,null,true,"é\n"]}`)
	f(`{"api_key":"s","x":{"y":[{"ADMIN_API_KEY":{"z":1},"keep":1}]}}`, `{"x":{"y":[{"keep":1}]}}`)
	f(`{"ssl_keyfile_password":"s","hf_token":"t","client_secret":"u","password":"v","token":"w"}`, `{}`)
	f(`{"max_total_tokens":1,"token_usage":2,"tokenizer_path":"p","num_tokens":3,"secret_free":4}`, `{"max_total_tokens":1,"token_usage":2,"tokenizer_path":"p","num_tokens":3,"secret_free":4}`)
	f(`["api_key","s"]`, `["api_key","s"]`)
	f(`{"host":"10.0.0.7","url":"http://10.0.0.7:30000/x","peer":"at 10.0.0.70:30000."}`, `{"host":"p0","url":"p0/x","peer":"at d0."}`)
	f(`{"10.0.0.7:30000":1}`, `{"p0":1}`)
	f(`["http://10.0.0.8:3000/a","10.0.0.8:30001"]`, `["d1/a","d2"]`)
	f(`{"host":"10.0.0.8"}`, `{"host":"d1"}`) // shared with d2, but d1 speaks

	for _, bad := range []string{``, `{`, `{"a":}`, `nope`, `{} {`} {
		_, err := publicJSON([]byte(bad), workers[0], workers)
		assert.Error(t, err, bad)
	}
}

func FuzzPublicJSONShowsNoSecret(f *testing.F) {
	for _, seed := range []string{`{"api_key":"SECRET"}`, `[{"a":{"hf_token":["SECRET"]}}]`, `{"api_key":"SECRET","api_key":"SECRET"}`, `{"x":1}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		wrapped := `{"api_key":"SECRET","inner":` + strings.ReplaceAll(doc, "SECRET", "") + `,"password":"SECRET"}`
		out, err := publicJSON([]byte(wrapped), pair()[0], pair())
		if err == nil {
			assert.NotContains(t, string(out), "SECRET")
		}
	})
}

func TestAbortIsPassedOn(t *testing.T) {
	asked := make(chan pd.AbortRequest, 1)
	r := start(t, Config{Server: &fakeServer{abort: func(_ context.Context, a pd.AbortRequest) (*pd.AbortResult, error) {
		asked <- a
		return &pd.AbortResult{Status: 202, Header: http.Header{"Content-Type": {"text/plain"}, "X-A": {"1"}}, Body: []byte("done")}, nil
	}}})
	resp, body := r.do("POST", "/abort_request", `{"rid":"r1"}`, "Authorization", "Bearer k", "Connection", "X-Hop", "X-Hop", "1")
	assert.Equal(t, 202, resp.StatusCode)
	assert.Equal(t, "done", body)
	assert.Equal(t, "1", resp.Header.Get("X-A"))
	got := within(t, asked, "the abort")
	assert.Equal(t, "r1", got.Rid)
	assert.False(t, got.All)
	assert.Equal(t, "Bearer k", got.Header.Get("Authorization"))
	assert.Empty(t, got.Header.Get("X-Hop"))

	r.do("POST", "/abort_request", `{"abort_all":true,"rid":null}`)
	assert.True(t, within(t, asked, "the abort").All)

	for _, bad := range []string{``, `{}`, `{"rid":""}`, `{"rid":5}`, `{"rid":null,"abort_all":false}`, `[]`} {
		resp, _ := r.do("POST", "/abort_request", bad)
		assert.Equal(t, 400, resp.StatusCode, bad)
	}
	assert.Empty(t, asked)
}

func TestFlushCacheReachesEveryWorker(t *testing.T) {
	queries := make(chan string, 8)
	flush := func(w http.ResponseWriter, req *http.Request) { queries <- req.Method + " " + req.URL.RequestURI() }
	p0, d0 := engineFunc(t, "p0", pd.Prefill, flush), engineFunc(t, "d0", pd.Decode, flush)
	r := start(t, Config{Workers: fleet(p0, d0)})
	resp, body := r.do("POST", "/flush_cache?timeout=2.5", "")
	assert.Equal(t, 200, resp.StatusCode)
	assert.JSONEq(t, `{"status":"success","message":"the cache of all 2 workers was flushed","workers_flushed":2,"total_http_workers":2,"total_workers":2}`, body)
	for range 2 {
		assert.Equal(t, "POST /flush_cache?timeout=2.5", within(t, queries, "the flush"))
	}

	d1 := dead(t, "d1", pd.Decode)
	r = start(t, Config{Workers: fleet(p0, d1)})
	resp, body = r.do("POST", "/flush_cache", "")
	assert.Equal(t, 206, resp.StatusCode)
	assert.JSONEq(t, `{"status":"partial_success","message":"the cache of 1 of 2 workers was flushed","workers_flushed":1,
		"total_http_workers":2,"total_workers":2,"successful":["p0"],"failed":[{"worker":"d1","error":"cannot be reached"}]}`, body)

	for _, bad := range []string{"x", "-1", "601", "NaN", "1e9"} {
		resp, _ = r.do("POST", "/flush_cache?timeout="+bad, "")
		assert.Equal(t, 400, resp.StatusCode, bad)
	}
}

func TestTokenizeGoesToAPrefillWorker(t *testing.T) {
	p0 := engineFunc(t, "p0", pd.Prefill, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		w.Header().Set("X-Engine", "1")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte(req.URL.RequestURI() + " " + string(body)))
	})
	r := start(t, Config{Workers: fleet(engine(t, "d0", pd.Decode, nil), dead(t, "p9", pd.Prefill), p0)})
	for _, path := range []string{"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize"} {
		resp, body := r.do("POST", path+"?a=b", `{ "prompt" :1}`)
		assert.Equal(t, http.StatusTeapot, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("X-Engine"))
		assert.Equal(t, path+`?a=b { "prompt" :1}`, body)
		_, body = r.do("POST", path+"/?a=b", `{ "prompt" :1}`)
		assert.Equal(t, path+`?a=b { "prompt" :1}`, body, "an engine would redirect, to its own address")
	}
	r = start(t, Config{Workers: fleet(engineFunc(t, "p0", pd.Prefill, func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "http://"+req.Host+"/elsewhere", http.StatusTemporaryRedirect)
	}))})
	resp, body := r.do("POST", "/tokenize", `{}`)
	assert.Equal(t, 502, resp.StatusCode, "a redirect would show the engine's address")
	assert.Empty(t, resp.Header.Get("Location"))
	assert.Contains(t, body, "prefill worker p0 sent an answer with status 307")

	r = start(t, Config{Workers: fleet(dead(t, "p0", pd.Prefill))})
	resp, _ = r.do("POST", "/tokenize", `{}`)
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, "prefill_unavailable", resp.Header.Get("X-Tandem-Error"))
}

func TestTokenizeGoesToAWorkerOfItsModel(t *testing.T) {
	says := func(id pd.WorkerID) *pd.Worker {
		return engine(t, id, pd.Prefill, map[string]string{"/tokenize": string(id)})
	}
	of := map[string]*pd.Worker{"x": says("px"), "y": says("py")}
	r := start(t, Config{Workers: fleet(of["x"], of["y"]), WorkersOf: func(model string) ([]*pd.Worker, error) {
		if of[model] == nil {
			return nil, &pd.Error{Stage: pd.StagePlan, Kind: pd.Invalid, Status: http.StatusNotFound, Code: "model_not_found"}
		}
		return []*pd.Worker{of[model]}, nil
	}})
	for _, model := range []string{"x", "y"} {
		_, body := r.do("POST", "/tokenize", `{"prompt":"a","model":"`+model+`"}`)
		assert.Equal(t, "p"+model, body)
	}
	resp, _ := r.do("POST", "/tokenize", `{"prompt":"a","model":"z"}`)
	assert.Equal(t, "model_not_found", resp.Header.Get("X-Tandem-Error"))
}
