package router

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

// first picks the first member offered.
type first struct{}

func (first) Pick(_ *pd.Request, members []*pools.Member) *pools.Member { return members[0] }

// fakeFleet is two workers: a prefill that is busy with two requests and a decode
// that refuses connections.
type fakeFleet struct {
	set *pools.Set
	cut chan pd.WorkerID
}

func (f *fakeFleet) fleet() Fleet {
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{}), Suspect: func() {}})
	if err != nil {
		panic(err)
	}
	reg, err := registry.New(set, registry.Options{})
	if err != nil {
		panic(err)
	}
	reg.Apply("static", []registry.Spec{
		{ID: "prefill-0", URL: "http://127.0.0.1:1", Role: pd.Prefill, Bootstrap: "8998"},
		{ID: "decode-0", URL: "http://127.0.0.1:2", Role: pd.Decode},
	})
	prefill, decode := set.Find("prefill-0"), set.Find("decode-0")
	prefill.Up()
	prefill.SetReach(pools.ReachUp)
	decode.Up()
	plans, err := set.Plan(context.Background(), nil, 2, nil)
	if err != nil {
		panic(err)
	}
	for _, p := range plans {
		p.Decode.End(pd.Unused)
	}
	decode.Down("refuses connections")
	f.set, f.cut = set, make(chan pd.WorkerID, 1)
	return Fleet{Registry: reg, Cut: func(id pd.WorkerID) int {
		f.cut <- id
		return 3
	}}
}

func TestWorkersAreShownWithTheirStates(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	resp, body := r.do("GET", "/workers", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.JSONEq(t, `{"workers":[
		{"id":"prefill-0","role":"prefill","state":"ready","in_flight":2,"breaker":"closed","bootstrap":"up",
		 "url":"http://127.0.0.1:1","model_id":"unknown","priority":0,"cost":0,"worker_type":"prefill","is_healthy":true,
		 "load":2,"connection_mode":"HTTP","bootstrap_port":8998,"disable_health_check":false,"source":"static"},
		{"id":"decode-0","role":"decode","state":"dead","reason":"refuses connections","in_flight":0,"breaker":"closed",
		 "url":"http://127.0.0.1:2","model_id":"unknown","priority":0,"cost":0,"worker_type":"decode","is_healthy":false,
		 "load":0,"connection_mode":"HTTP","disable_health_check":false,"source":"static",
		 "job_status":{"job_type":"AddWorker","worker_url":"http://127.0.0.1:2","status":"failed","message":"refuses connections",
		 "timestamp":1750000000}}],
		"total":2,"stats":{"prefill_count":1,"decode_count":1,"regular_count":0}}`, stamps.ReplaceAllString(body, "${1}1750000000"))
	resp, body = r.do("GET", "/workers/decode-0", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `"reason":"refuses connections"`)
}

func TestWhatIsWrongWithASourceOfWorkersIsShown(t *testing.T) {
	fleet := new(fakeFleet).fleet()
	r := start(t, Config{Fleet: fleet})
	_, body := r.do("GET", "/workers", "")
	assert.NotContains(t, body, "source_errors")
	fleet.Registry.Trouble("file", errors.New("line 3: not valid YAML"))
	_, body = r.do("GET", "/workers", "")
	var list struct {
		Errors map[string]sourceTrouble `json:"source_errors"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	assert.Equal(t, "line 3: not valid YAML", list.Errors["file"].Err)
	assert.False(t, list.Errors["file"].At.IsZero())
}

func TestWorkersOfOneModel(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	r.do("POST", "/workers", `{"url":"http://127.0.0.1:3","worker_type":"decode","model_id":"org/a"}`)
	f := func(query string, decodes, prefills int, ids ...string) {
		t.Helper()
		var list struct {
			Workers []struct{ ID string }
			Total   int
			Stats   map[string]int
		}
		_, body := r.do("GET", "/workers"+query, "")
		require.NoError(t, json.Unmarshal([]byte(body), &list))
		var got []string
		for _, w := range list.Workers {
			got = append(got, w.ID)
		}
		assert.Equal(t, ids, got, query)
		assert.Equal(t, len(ids), list.Total, query)
		assert.Equal(t, map[string]int{"prefill_count": prefills, "decode_count": decodes, "regular_count": 0}, list.Stats, query)
	}
	added := string(registry.IDOf("http://127.0.0.1:3"))
	f("", 2, 1, "prefill-0", "decode-0", added)
	f("?model=org%2Fa", 1, 0, added)
	f("?model=unknown", 1, 1, "prefill-0", "decode-0")
	f("?model=none", 0, 0)
}

func TestAWorkerIsDrainedAndResumed(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	resp, body := r.do("POST", "/workers/decode-0/drain", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `"state":"draining"`)
	assert.Contains(t, body, `"drained":true`)
	_, body = r.do("POST", "/workers/prefill-0/drain", "")
	assert.NotContains(t, body, `"drained":true`, "it has work yet")
	_, body = r.do("POST", "/workers/prefill-0/resume", "")
	assert.Contains(t, body, `"state":"ready"`)
}

func TestAWorkersTimeToDrainMayBeLimited(t *testing.T) {
	fake := new(fakeFleet)
	r := start(t, Config{Fleet: fake.fleet()})
	r.do("POST", "/workers/decode-0/drain?timeout_secs=3600", "")
	resp, _ := r.do("POST", "/workers/decode-0/drain?timeout_secs=0.01", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, pd.WorkerID("decode-0"), within(t, fake.cut, "the cut"))

	r.do("POST", "/workers/prefill-0/drain?timeout_secs=0.2", "")
	r.do("POST", "/workers/prefill-0/resume", "")
	time.Sleep(300 * time.Millisecond)
	assert.Empty(t, fake.cut, "a worker that was resumed is not cut")
}

// A worker that was deleted while its time to drain was limited may come back, and
// is then another one.
func TestAWorkerThatWasAddedAgainIsNotCut(t *testing.T) {
	fake := new(fakeFleet)
	r := start(t, Config{Fleet: fake.fleet()})
	r.do("POST", "/workers/decode-0/drain?timeout_secs=0.2", "")
	resp, _ := r.do("DELETE", "/workers/decode-0", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode)
	resp, body := r.do("POST", "/workers", `{"url":"http://127.0.0.1:2","worker_type":"decode"}`)
	require.Equal(t, http.StatusAccepted, resp.StatusCode, body)
	time.Sleep(300 * time.Millisecond)
	assert.Empty(t, fake.cut)
}

func TestWhatCannotBeDrained(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/workers/nobody", 404, "WORKER_NOT_FOUND"},
		{"GET", "/workers/%25zz", 404, "WORKER_NOT_FOUND"},
		{"DELETE", "/workers/nobody", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/nobody/drain", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/nobody/resume", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/decode-0/drain?timeout_secs=0", 400, "BAD_REQUEST"},
		{"POST", "/workers/decode-0/drain?timeout_secs=NaN", 400, "BAD_REQUEST"},
		{"POST", "/workers/decode-0/drain?timeout_secs=soon", 400, "BAD_REQUEST"},
		{"POST", "/workers/decode-0/drain?timeout_secs=1e9", 400, "BAD_REQUEST"},
	} {
		resp, body := r.do(c.method, c.path, "")
		assert.Equal(t, c.status, resp.StatusCode, c.path)
		assert.Equal(t, c.code, flatError(t, body).Code, c.path)
	}
}

// A worker that goes is drained, but not for operators to undo.
func TestAWorkerThatLeavesIsNotResumed(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	r.do("DELETE", "/workers/prefill-0", "")
	for _, what := range []string{"drain", "resume"} {
		resp, body := r.do("POST", "/workers/prefill-0/"+what, "")
		assert.Equal(t, http.StatusConflict, resp.StatusCode)
		assert.Equal(t, "WORKER_LEAVING", flatError(t, body).Code)
	}
	_, body := r.do("GET", "/workers/prefill-0", "")
	assert.Contains(t, body, `"job_type":"RemoveWorker"`)
}

// flatFailure is an error as the gateway's admin API has it.
type flatFailure struct{ Error, Code string }

func flatError(t *testing.T, body string) (out flatFailure) {
	t.Helper()
	var keys map[string]string
	require.NoError(t, json.Unmarshal([]byte(body), &keys), body)
	require.Len(t, keys, 2, body)
	return flatFailure{keys["error"], keys["code"]}
}

func TestTheRoutesOfWorkersAreThereOnlyWithAFleet(t *testing.T) {
	r := start(t, Config{})
	resp, _ := r.do("GET", "/workers", "")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
}
