package router

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// transcript notes calls and their answers.
type transcript struct {
	*rig
	text bytes.Buffer
}

// stamps are instants, which differ from run to run.
var stamps = regexp.MustCompile(`("timestamp": ?)\d{10}`)

// call makes one and notes it.
func (tr *transcript) call(method, path, body string) {
	tr.t.Helper()
	fmt.Fprintf(&tr.text, "%s %s\n", method, path)
	if body != "" {
		fmt.Fprintln(&tr.text, body)
	}
	resp, answer := tr.do(method, path, body)
	fmt.Fprintf(&tr.text, "-> %d\n", resp.StatusCode)
	if location := resp.Header.Get("Location"); location != "" {
		fmt.Fprintf(&tr.text, "Location: %s\n", location)
	}
	var pretty bytes.Buffer
	require.NoError(tr.t, json.Indent(&pretty, []byte(answer), "", "  "), answer)
	tr.text.WriteString(stamps.ReplaceAllString(pretty.String(), "${1}1750000000") + "\n\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// The life of a worker, in the gateway's calls and ours.
func TestTheAdminAPI(t *testing.T) {
	tr := &transcript{rig: start(t, Config{Fleet: new(fakeFleet).fleet()})}
	id := string(registry.IDOf("http://127.0.0.1:3"))
	tr.call("POST", "/workers", `{"url":"http://127.0.0.1:3/","worker_type":"prefill","bootstrap_port":8998,"model_id":"org/tiny",`+
		`"priority":70,"cost":1.5,"labels":{"zone":"a","rack":"1"},"api_key":"s3cret-0","runtime":"sglang","tool_parser":null,`+
		`"max_connection_attempts":20}`)
	tr.call("GET", "/workers/"+id, "")
	tr.call("POST", "/workers", `{"url":"http://127.0.0.1:3","worker_type":"prefill"}`)
	tr.call("PUT", "/workers/"+id, `{"priority":90,"labels":{"zone":"b"},"api_key":"s3cret-1","health_check_interval_secs":5}`)
	tr.call("GET", "/workers/"+id, "")
	tr.call("PATCH", "/workers/"+id, `{"cost":2,"labels":{"zone":null,"rack":"2"}}`)
	tr.call("GET", "/workers/"+id, "")
	tr.call("GET", "/workers?model=org%2Ftiny", "")
	tr.call("POST", "/workers/prefill-0/drain", "")
	tr.call("POST", "/workers/prefill-0/resume", "")
	tr.call("DELETE", "/workers/"+id, "")
	tr.call("GET", "/workers/"+id, "")
	tr.call("DELETE", "/workers/"+id, "")
	tr.call("DELETE", "/workers/prefill-0", "")
	tr.call("GET", "/workers/prefill-0", "")
	assert.NotContains(t, strings.ReplaceAll(tr.text.String(), `"api_key":"s3cret-`, ""), "s3cret", "a key is never shown")
	golden(t, "admin.golden", tr.text.String())
}

func TestWorkersThatCannotBeAdded(t *testing.T) {
	fake := new(fakeFleet)
	r := start(t, Config{Fleet: fake.fleet()})
	f := func(body string, status int, code, message string) {
		t.Helper()
		resp, answer := r.do("POST", "/workers", body)
		assert.Equal(t, status, resp.StatusCode, body)
		assert.Equal(t, flatFailure{message, code}, flatError(t, answer), body)
	}
	bad := func(body, message string) { t.Helper(); f(body, 400, "BAD_REQUEST", message) }
	bad(``, "the body is not valid JSON")
	bad(`{"url":`, "the body is not valid JSON")
	bad(`{} {}`, "the body is not valid JSON")
	bad(`null`, "the body must be a JSON object")
	bad(`[{"url":"http://a:1"}]`, "the body must be a JSON object")
	bad(`{}`, "url: it is needed")
	bad(`{"url":"http://a:1","url":"http://b:1"}`, "the body gives a field twice")
	bad(`{"url":"http://a:1","URL":"http://b:1"}`, "URL: there is no such field")
	bad(`{"url":"http://a:1","prio":1}`, "prio: there is no such field")
	bad(`{"url":"http://a:1","sk-1234":1}`, "a field: there is no such field")
	bad(`{"url":7}`, "url: want a text")
	bad(`{"url":"http://a:1","priority":"high"}`, "priority: want a whole number")
	bad(`{"url":"http://a:1","priority":1.5}`, "priority: want a whole number")
	bad(`{"url":"http://a:1","cost":"s3cret"}`, "cost: want a number")
	bad(`{"url":"http://a:1","disable_health_check":1}`, "disable_health_check: want true or false")
	bad(`{"url":"http://a:1","labels":{"zone":1}}`, "labels: want a text")
	bad(`{"url":"http://a:1","labels":["zone"]}`, "labels: want names with texts")
	bad(`{"url":"a:1"}`, "url: want http://HOST:PORT or https://HOST:PORT")
	bad(`{"url":"grpc://a:1"}`, "url: gRPC workers are not supported by this version: want http:// or https://")
	bad(`{"url":"http://u:s3cret@a:1"}`, "url: a worker's URL must hold no credentials")
	bad(`{"url":"http://a:1","worker_type":"encode"}`, "worker_type: want prefill, decode or regular")
	bad(`{"url":"http://a:1","worker_type":"prefill","bootstrap_port":0}`, "bootstrap_port: want a number from 1 to 65535, or none")
	bad(`{"url":"http://a:1","worker_type":"decode","bootstrap_port":1}`, "bootstrap_port: only a prefill worker has a bootstrap server")
	bad(`{"url":"http://a:1","worker_type":"decode","api_key":"a\nb"}`, "api_key: it holds a character that no header can carry")
	bad(`{"url":"http://a:1","worker_type":"decode","labels":"`+strings.Repeat("x", 100)+`"}`, "labels: want names with texts")
	f(`{"url":"http://127.0.0.1:2","worker_type":"decode"}`, 409, "WORKER_ALREADY_EXISTS", "there is a worker with this URL: decode-0")
	f(`{"url":"`+strings.Repeat("x", workerBody)+`"}`, 413, "PAYLOAD_TOO_LARGE", "the body must be at most 1048576 bytes")

	resp, answer := r.do("POST", "/workers", `{"url":"http://a:1"}`)
	assert.Equal(t, 400, resp.StatusCode, "a whole engine, by the gateway's default")
	assert.Contains(t, flatError(t, answer).Error, "prefill/decode pairs")
	assert.Len(t, fake.set.Members(), 2, "none has joined")
}

// The gateway takes them, and so do its clients' scripts.
func TestFieldsWithoutEffectAreNamed(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/workers", `{"url":"http://127.0.0.1:3","worker_type":"decode","runtime":"vllm","dp_aware":true,"health":{"a":1},"provider":null}`},
		{"PUT", "/workers/decode-0", `{"runtime":"vllm","dp_aware":true,"health":{"a":1},"provider":null}`},
		{"PATCH", "/workers/decode-0", `{"runtime":"vllm","dp_aware":true,"health":{"a":1},"provider":null}`},
	} {
		resp, body := r.do(c.method, c.path, c.body)
		assert.Equal(t, http.StatusAccepted, resp.StatusCode)
		var answer struct{ Warnings []string }
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		assert.Equal(t, []string{
			"dp_aware has no effect in this router", "health has no effect in this router", "runtime has no effect in this router",
		}, answer.Warnings, c.method)
	}
}

func TestChangesOfAWorker(t *testing.T) {
	f := func(method, body string, want func(w *pd.Worker)) {
		t.Run(method+" "+body, func(t *testing.T) {
			fake := new(fakeFleet)
			r := start(t, Config{Fleet: fake.fleet()})
			resp, answer := r.do("PUT", "/workers/decode-0", `{"labels":{"zone":"a","rack":"1"}}`)
			require.Equal(t, http.StatusAccepted, resp.StatusCode, answer)
			before := fake.set.Find("decode-0")
			expected := *before.Worker
			expected.Labels = map[string]string{"zone": "a", "rack": "1"}
			want(&expected)
			resp, answer = r.do(method, "/workers/decode-0", body)
			require.Equal(t, http.StatusAccepted, resp.StatusCode, answer)
			after := fake.set.Find("decode-0")
			assert.Equal(t, &expected, after.Worker)
			assert.True(t, after.Is(before), "what is known of it stays")
		})
	}
	for _, method := range []string{"PUT", "PATCH"} {
		f(method, `{}`, func(*pd.Worker) {})
		f(method, `{"priority":null,"cost":null,"labels":null,"api_key":null,"model_id":null,"disable_health_check":null}`, func(*pd.Worker) {})
		f(method, `{"priority":0,"cost":0.5}`, func(w *pd.Worker) { w.Priority, w.Cost = 0, 0.5 })
		f(method, `{"api_key":"k"}`, func(w *pd.Worker) { w.APIKey = "k" })
		f(method, `{"model_id":"org/a"}`, func(w *pd.Worker) { w.Model = "org/a" })
		f(method, `{"url":"http://127.0.0.1:2","worker_type":"decode","priority":3}`, func(w *pd.Worker) { w.Priority = 3 })
	}
	f("PUT", `{"labels":{"zone":"b"}}`, func(w *pd.Worker) { w.Labels = map[string]string{"zone": "b"} })
	f("PUT", `{"labels":{}}`, func(w *pd.Worker) { w.Labels = map[string]string{} })
	f("PATCH", `{"labels":{}}`, func(*pd.Worker) {})
	f("PATCH", `{"labels":{"zone":"b"}}`, func(w *pd.Worker) { w.Labels = map[string]string{"zone": "b", "rack": "1"} })
	f("PATCH", `{"labels":{"zone":null}}`, func(w *pd.Worker) { w.Labels = map[string]string{"rack": "1"} })
}

func TestChangesThatAreRefused(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	f := func(path, body string, status int, want flatFailure) {
		t.Helper()
		for _, method := range []string{"PUT", "PATCH"} {
			resp, answer := r.do(method, path, body)
			assert.Equal(t, status, resp.StatusCode, body)
			assert.Equal(t, want, flatError(t, answer), body)
		}
	}
	bad := func(body, message string) {
		t.Helper()
		f("/workers/decode-0", body, 400, flatFailure{message, "BAD_REQUEST"})
	}
	f("/workers/nobody", `{}`, 404, flatFailure{"there is no worker with this id", "WORKER_NOT_FOUND"})
	bad(``, "the body is not valid JSON")
	bad(`[]`, "the body must be a JSON object")
	bad(`{"prio":1}`, "prio: there is no such field")
	bad(`{"bootstrap_host":"a"}`, "bootstrap_host: there is no such field")
	bad(`{"priority":"s3cret"}`, "priority: want a whole number")
	bad(`{"labels":{"zone":[]}}`, "labels: want a text")
	bad(`{"api_key":"a\u0000b"}`, "api_key: it holds a character that no header can carry")
	bad(`{"url":"http://127.0.0.1:9"}`, "url: that of a worker cannot change: delete it and add another")
	bad(`{"url":"nonsense"}`, "url: that of a worker cannot change: delete it and add another")
	bad(`{"worker_type":"prefill"}`, "worker_type: that of a worker cannot change: delete it and add another")
	bad(`{"bootstrap_port":1}`, "bootstrap_port: that of a worker cannot change: delete it and add another")
}

func TestLabelsThatArePatchedAtOnceAllStay(t *testing.T) {
	fake := new(fakeFleet)
	r := start(t, Config{Fleet: fake.fleet()})
	var callers sync.WaitGroup
	want := map[string]string{}
	for i := range 16 {
		name := fmt.Sprintf("l%d", i)
		want[name] = "1"
		callers.Go(func() {
			resp, _ := r.do("PATCH", "/workers/decode-0", fmt.Sprintf(`{"labels":{%q:"1"}}`, name))
			assert.Equal(t, http.StatusAccepted, resp.StatusCode)
		})
	}
	callers.Wait()
	assert.Equal(t, want, fake.set.Find("decode-0").Worker.Labels)
}

func TestOtherMethodsOfWorkers(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	for _, c := range [][2]string{{"DELETE", "/workers"}, {"POST", "/workers/decode-0"}, {"GET", "/workers/decode-0/drain"}} {
		resp, body := r.do(c[0], c[1], "")
		assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode, c)
		assert.Equal(t, "METHOD_NOT_ALLOWED", flatError(t, body).Code, c)
	}
	resp, body := r.do("GET", "/workers/decode-0/other", "")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	assert.Equal(t, "NOT_FOUND", flatError(t, body).Code)
}

// All that may be known of a worker.
func TestAWorkersDocument(t *testing.T) {
	at := time.Unix(1_750_000_000, 0).UTC()
	view := func() registry.View {
		return registry.View{
			WorkerStatus: pools.WorkerStatus{
				Worker: &pd.Worker{
					ID: "p", Role: pd.Prefill, URL: "http://p:1", BootstrapHost: "p", BootstrapPort: 8998, APIKey: "s3cret", DPSize: 2,
					Model: "org/a", KVTokens: 4096, PageSize: 16, Priority: 50, Cost: 1, Labels: map[string]string{"zone": "a"},
				},
				ID: "p", Role: "prefill", State: pools.Broken, InFlight: 3, Breaker: "open", Bootstrap: pools.ReachUp,
				LastError: &pools.LastError{At: at, Code: "500"},
				Served:    &pools.Served{Requests: 2, PromptTokens: 100, CachedTokens: 40},
			},
			Source: "file", Since: at, Facts: registry.Facts{Version: "0.5.11"},
		}
	}
	shown := func(v registry.View) string {
		doc, err := json.MarshalIndent(infoOf(&v), "", "  ")
		require.NoError(t, err)
		return string(doc)
	}
	golden(t, "worker.golden", shown(view())+"\n")
	f := func(want string, job *registry.Job) {
		t.Helper()
		v := view()
		v.Job = job
		got, err := json.Marshal(infoOf(&v).Job)
		require.NoError(t, err)
		assert.JSONEq(t, want, string(got))
	}
	f(`null`, nil)
	for kind, name := range map[registry.JobType]string{
		registry.JobAdd: "AddWorker", registry.JobRemove: "RemoveWorker", registry.JobSwitch: "SwitchWorkerRole",
	} {
		f(`{"job_type":"`+name+`","worker_url":"http://p:1","status":"failed","message":"why","timestamp":1750000000}`,
			&registry.Job{Type: kind, Status: registry.JobFailed, Message: "why", At: at})
	}
}

func TestAnEngineWhoseRanksAreWorkers(t *testing.T) {
	rank := func(n int, state pools.State, inFlight int64, drained bool) registry.View {
		id := pd.WorkerID(fmt.Sprintf("e@%d", n))
		return registry.View{WorkerStatus: pools.WorkerStatus{
			Worker: &pd.Worker{ID: id, Role: pd.Decode, URL: "http://e:1", Rank: &n, DPSize: 2},
			ID:     id, Role: "decode", State: state, InFlight: inFlight, Breaker: "closed", Drained: drained,
		}}
	}
	info := infoOfEngine("e", []registry.View{rank(0, pools.Ready, 2, false), rank(1, pools.Draining, 0, true)})
	assert.Equal(t, pd.WorkerID("e"), info.ID)
	assert.Equal(t, []any{pools.Draining, int64(2), int64(2), false, 2}, []any{info.State, info.InFlight, info.Load, info.Drained, len(info.Ranks)})
	assert.Nil(t, info.DPRank)
	assert.Equal(t, []pd.WorkerID{"e@0", "e@1"}, []pd.WorkerID{info.Ranks[0].ID, info.Ranks[1].ID})
	one := infoOfEngine("e@1", []registry.View{rank(1, pools.Ready, 0, false)})
	assert.Equal(t, pd.WorkerID("e@1"), one.ID)
	assert.Empty(t, one.Ranks)
}
