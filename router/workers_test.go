package router

import (
	"context"
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
		 "worker_type":"prefill","is_healthy":true,"load":2},
		{"id":"decode-0","role":"decode","state":"dead","reason":"refuses connections","in_flight":0,"breaker":"closed",
		 "worker_type":"decode","is_healthy":false,"load":0}],
		"total":2,"stats":{"prefill_count":1,"decode_count":1,"regular_count":0}}`, body)
	resp, body = r.do("GET", "/workers/decode-0", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `"reason":"refuses connections"`)
}

func TestAWorkerIsDrainedAndResumed(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	resp, body := r.do("POST", "/workers/decode-0/drain", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `"state":"draining"`)
	assert.Contains(t, body, `"drained":true`)
	_, body = r.do("POST", "/workers/prefill-0/drain", "")
	assert.NotContains(t, body, "drained", "it has work yet")
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

func TestWhatCannotBeDrained(t *testing.T) {
	r := start(t, Config{Fleet: new(fakeFleet).fleet()})
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/workers/nobody", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/nobody/drain", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/nobody/resume", 404, "WORKER_NOT_FOUND"},
		{"POST", "/workers/decode-0/drain?timeout_secs=0", 400, "invalid_request"},
		{"POST", "/workers/decode-0/drain?timeout_secs=NaN", 400, "invalid_request"},
		{"POST", "/workers/decode-0/drain?timeout_secs=soon", 400, "invalid_request"},
		{"POST", "/workers/decode-0/drain?timeout_secs=1e9", 400, "invalid_request"},
	} {
		resp, body := r.do(c.method, c.path, "")
		assert.Equal(t, c.status, resp.StatusCode, c.path)
		assert.Equal(t, c.code, resp.Header.Get("X-Tandem-Error"), c.path)
		assert.Contains(t, body, `"error"`, c.path)
	}
}

func TestTheRoutesOfWorkersAreThereOnlyWithAFleet(t *testing.T) {
	r := start(t, Config{})
	resp, _ := r.do("GET", "/workers", "")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
}
