package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

// switching is a router over two prefills and a decode, whose engines answer a
// switch of their role as the test says.
type switching struct {
	*rig
	set    *pools.Set
	url    string              // of prefill-0
	answer atomic.Value        // func(w http.ResponseWriter)
	asked  chan map[string]any // what the engine was asked
}

func startSwitching(t *testing.T) *switching {
	t.Helper()
	s := &switching{asked: make(chan map[string]any, 8)}
	s.says(http.StatusOK, `{"success":true,"message":"done","old_role":"prefill","new_role":"decode"}`)
	w := engineFunc(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, req *http.Request) {
		var body map[string]any
		assert.NoError(t, json.NewDecoder(req.Body).Decode(&body))
		s.asked <- body
		s.answer.Load().(func(http.ResponseWriter))(w)
	})
	s.url = w.URL
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{}), Suspect: func() {}})
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	reg, err := registry.New(set, registry.Options{Transport: transport})
	require.NoError(t, err)
	reg.Apply("static", []registry.Spec{
		{ID: "prefill-0", URL: w.URL, Role: pd.Prefill, Bootstrap: "8998"},
		{ID: "prefill-1", URL: "http://127.0.0.1:1", Role: pd.Prefill, Bootstrap: "8998"},
		{ID: "decode-0", URL: "http://127.0.0.1:2", Role: pd.Decode},
	})
	for _, m := range set.Members() {
		m.Up()
	}
	s.set = set
	s.rig = start(t, Config{Workers: set.Workers, Fleet: Fleet{Registry: reg, Cut: func(pd.WorkerID) int { return 0 }}})
	return s
}

// says sets what the engine answers.
func (s *switching) says(status int, body string) {
	s.answer.Store(func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func (s *switching) post(body string) (status int, answer string) {
	s.t.Helper()
	resp, answer := s.do("POST", "/pd_role_switch", body)
	return resp.StatusCode, answer
}

func TestAWorkerSwitchesItsRole(t *testing.T) {
	for _, who := range []string{`"worker_id":"prefill-0"`, `"worker_url":"%s/"`} {
		t.Run(who, func(t *testing.T) {
			s := startSwitching(t)
			if who[:12] == `"worker_url"` {
				who = fmt.Sprintf(who, s.url)
			}
			status, answer := s.post(`{` + who + `,"new_role":"decode","drain_timeout_secs":5,"max_running_requests":7}`)
			assert.Equal(t, http.StatusOK, status)
			assert.JSONEq(t, `{"success":true,"message":"done","old_role":"prefill","new_role":"decode","worker_id":"prefill-0"}`, answer)
			assert.Equal(t, map[string]any{"new_role": "decode", "max_running_requests": 7.0}, within(t, s.asked, "the engine's call"))
			_, answer = s.do("GET", "/workers/prefill-0", "")
			assert.Contains(t, answer, `"worker_type":"decode"`)

			status, answer = s.post(`{"worker_id":"prefill-0","new_role":"prefill"}`)
			assert.Equal(t, http.StatusConflict, status, "it is not to flap")
			assert.Contains(t, answer, `"code":"SWITCHED_JUST_NOW"`)
			assert.Empty(t, s.asked)
		})
	}
}

func TestAnEngineThatRefusesToSwitch(t *testing.T) {
	s := startSwitching(t)
	s.says(http.StatusBadRequest, fmt.Sprintf(`{"success":false,"message":"%s has no memory","safe_to_restore":true}`, s.url))
	status, answer := s.post(`{"worker_id":"prefill-0","new_role":"decode"}`)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.JSONEq(t, `{"success":false,"message":"prefill-0 has no memory","code":"ENGINE_REFUSED","old_role":"prefill","new_role":"decode",
		"worker_id":"prefill-0","safe_to_restore":true,"restored":true}`, answer)
	_, answer = s.do("GET", "/workers/prefill-0", "")
	assert.Contains(t, answer, `"state":"ready"`)

	s.says(http.StatusBadRequest, `{"success":false,"message":"broken","safe_to_restore":false}`)
	status, answer = s.post(`{"worker_id":"prefill-0","new_role":"decode"}`)
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, answer, `"safe_to_restore":false`)
	assert.NotContains(t, answer, "restored")
	_, answer = s.do("GET", "/workers/prefill-0", "")
	assert.NotContains(t, answer, `"state":"ready"`)
	assert.Contains(t, answer, `"job_type":"SwitchWorkerRole"`)
}

func TestSwitchesThatAreRefused(t *testing.T) {
	s := startSwitching(t)
	f := func(body string, status int, code, message string) {
		t.Helper()
		got, answer := s.post(body)
		assert.Equal(t, status, got, body)
		var out switched
		require.NoError(t, json.Unmarshal([]byte(answer), &out), answer)
		assert.False(t, out.Success)
		assert.Equal(t, []string{code, message}, []string{out.Code, out.Message}, body)
	}
	const either = "want either worker_id or worker_url"
	f(``, 400, "BAD_REQUEST", "the body is not valid JSON")
	f(`[]`, 400, "BAD_REQUEST", "the body must be a JSON object")
	f(`{"worker_id":7,"new_role":"decode"}`, 400, "BAD_REQUEST", "worker_id: want a text")
	f(`{"worker_id":"prefill-0"}`, 400, "BAD_REQUEST", "new_role: want prefill or decode")
	f(`{"worker_id":"prefill-0","new_role":"regular"}`, 400, "BAD_REQUEST", "new_role: want prefill or decode")
	f(`{"new_role":"decode"}`, 400, "BAD_REQUEST", either)
	f(`{"worker_id":"prefill-0","worker_url":"http://127.0.0.1:1","new_role":"decode"}`, 400, "BAD_REQUEST", either)
	f(`{"worker_url":"nonsense","new_role":"decode"}`, 400, "BAD_REQUEST", "worker_url: want http://HOST:PORT or https://HOST:PORT")
	for _, seconds := range []string{"0", "-1", "1e9"} {
		f(`{"worker_id":"prefill-0","new_role":"decode","drain_timeout_secs":`+seconds+`}`, 400, "BAD_REQUEST",
			"drain_timeout_secs: want a number of seconds, more than 0 and at most a day")
	}
	f(`{"worker_id":"nobody","new_role":"decode"}`, 404, "WORKER_NOT_FOUND", "there is no worker with this id")
	f(`{"worker_url":"http://127.0.0.1:99","new_role":"decode"}`, 404, "WORKER_NOT_FOUND", "there is no worker with this id")
	f(`{"worker_id":"decode-0","new_role":"prefill"}`, 409, "LAST_OF_ITS_ROLE", registry.ErrLast.Error())
	f(`{"worker_id":"prefill-1","new_role":"decode"}`, 502, "ENGINE_UNREACHABLE", registry.ErrUnreached.Error())
	s.says(http.StatusOK, "no JSON")
	f(`{"worker_id":"prefill-0","new_role":"decode"}`, 502, "ENGINE_NO_ANSWER", registry.ErrNoAnswer.Error())
}

func TestWhatARefusedSwitchIsCalled(t *testing.T) {
	for code, c := range map[string]struct {
		err    error
		status int
	}{
		"WORKER_NOT_FOUND":   {registry.ErrUnknown, 404},
		"WORKER_LEAVING":     {registry.ErrLeaving, 409},
		"BAD_REQUEST":        {registry.ErrBadSwitch, 400},
		"SWITCH_IN_PROGRESS": {registry.ErrBusySwitching, 409},
		"SWITCHED_JUST_NOW":  {registry.ErrTooSoon, 409},
		"LAST_OF_ITS_ROLE":   {registry.ErrLast, 409},
		"WORKER_BUSY":        {registry.ErrStillBusy, 409},
		"ENGINE_UNREACHABLE": {registry.ErrUnreached, 502},
		"ENGINE_NO_ANSWER":   {registry.ErrNoAnswer, 502},
	} {
		for _, err := range []error{c.err, errors.Join(errors.New("more"), c.err)} {
			e := switchError(err)
			assert.Equal(t, []any{c.status, code}, []any{e.Status, e.Code})
		}
	}
}

func TestAWorkerIsNotDrainedWhileItSwitches(t *testing.T) {
	s := startSwitching(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	s.answer.Store(func(w http.ResponseWriter) {
		close(entered)
		<-leave
		_, _ = io.WriteString(w, `{"success":true}`)
	})
	var switching sync.WaitGroup
	switching.Go(func() { s.post(`{"worker_id":"prefill-0","new_role":"decode"}`) })
	within(t, entered, "the engine's call")
	for _, path := range []string{"/workers/prefill-0/drain", "/workers/prefill-0/resume"} {
		resp, answer := s.do("POST", path, "")
		assert.Equal(t, http.StatusConflict, resp.StatusCode)
		assert.Contains(t, answer, `"code":"SWITCH_IN_PROGRESS"`)
	}
	close(leave)
	switching.Wait()
}
