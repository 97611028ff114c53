//go:build clients

package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
	"github.com/tandem-pd/tandem/integration/simengine"
)

// adminKey is the router's key.
const adminKey = "s3cret-of-the-router"

// joinsWithin is how long a worker that serves may take to join: it is looked at
// every 5 s at most.
const joinsWithin = 20 * time.Second

// operator is a program in Python that calls a router with requests.
type operator struct {
	t     *testing.T
	calls *json.Encoder
	shown *json.Decoder
	key   string
}

// adminAnswer is an answer as the program has it.
type adminAnswer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	JSON    map[string]any    `json:"json"`
}

// newOperator starts the program, which ends with the test.
func newOperator(t *testing.T, base string) *operator {
	t.Helper()
	path, err := filepath.Abs("admin_client.py")
	require.NoError(t, err)
	cmd := exec.Command(installed(t, "venv", "bin", "python"), path, base)
	var errs strings.Builder
	cmd.Stderr = &errs
	calls, err := cmd.StdinPipe()
	require.NoError(t, err)
	shown, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(scriptedWithin, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		calls.Close()
		_, _ = io.Copy(io.Discard, shown)
		assert.NoError(t, cmd.Wait(), errs.String())
		late.Stop()
	})
	return &operator{t: t, calls: json.NewEncoder(calls), shown: json.NewDecoder(shown), key: "Bearer " + adminKey}
}

// call makes a call; a nil body is none.
func (o *operator) call(method, path string, body any) adminAnswer {
	o.t.Helper()
	call := map[string]any{"method": method, "path": path, "headers": map[string]string{"Authorization": o.key}}
	if body != nil {
		call["json"] = body
	}
	require.NoError(o.t, o.calls.Encode(call))
	var a adminAnswer
	require.NoError(o.t, o.shown.Decode(&a), "%s %s", method, path)
	return a
}

// until calls until an answer is as it is to be, and returns that.
func (o *operator) until(path string, ok func(adminAnswer) bool) adminAnswer {
	o.t.Helper()
	for end := time.Now().Add(joinsWithin); ; time.Sleep(50 * time.Millisecond) {
		a := o.call(http.MethodGet, path, nil)
		if ok(a) {
			return a
		}
		require.True(o.t, time.Now().Before(end), "GET %s: %+v", path, a)
	}
}

// fields are the names of a document's members, and what each holds: a JSON type,
// or a value.
type fields map[string]any

// jsonType is the type of the members that no value is known of.
type jsonType string

const (
	aText    jsonType = "string"
	aNumber  jsonType = "number"
	aBoolean jsonType = "boolean"
	aList    jsonType = "array"
	anObject jsonType = "object"
)

func typeOf(v any) jsonType {
	switch v.(type) {
	case string:
		return aText
	case float64:
		return aNumber
	case bool:
		return aBoolean
	case []any:
		return aList
	case map[string]any:
		return anObject
	default:
		return "null"
	}
}

// requireFields requires that a document has all of these members. It may have
// others, as the gateway's clients pass over what they do not know.
func requireFields(t *testing.T, doc map[string]any, want fields) {
	t.Helper()
	for name, value := range want {
		got, ok := doc[name]
		require.True(t, ok, "%s is missing: %v", name, doc)
		if kind, any := value.(jsonType); any {
			assert.Equal(t, kind, typeOf(got), name)
			continue
		}
		assert.EqualValues(t, value, got, name)
	}
}

// requireAccepted requires the answer to a change of a worker.
func requireAccepted(t *testing.T, a adminAnswer, id string) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, a.Status, "%v", a.JSON)
	assert.Contains(t, header(a, "Content-Type"), "application/json")
	requireFields(t, a.JSON, fields{"status": "accepted", "worker_id": id, "message": aText})
}

// requireRefused requires an error in the shape of the admin API's.
func requireRefused(t *testing.T, a adminAnswer, status int, code string) {
	t.Helper()
	assert.Equal(t, status, a.Status, "%v", a.JSON)
	requireFields(t, a.JSON, fields{"error": aText, "code": code})
	assert.NotContains(t, fmt.Sprint(a.JSON, a.Headers), "s3cret")
}

// header is a header as it was sent, whatever the case of its name.
func header(a adminAnswer, name string) string {
	for key, value := range a.Headers {
		if textproto.CanonicalMIMEHeaderKey(key) == textproto.CanonicalMIMEHeaderKey(name) {
			return value
		}
	}
	return ""
}

// workerInfo are the members that every worker has.
func workerInfo(more fields) fields {
	all := fields{
		"id": aText, "url": aText, "model_id": aText, "priority": aNumber, "cost": aNumber, "worker_type": aText,
		"is_healthy": aBoolean, "load": aNumber, "connection_mode": "HTTP", "disable_health_check": aBoolean,
	}
	maps.Copy(all, more)
	return all
}

// adminRig is a router with a key of its own, an operator and engines that want
// another key.
type adminRig struct {
	*operator
	base string
}

const engineKey = "s3cret-of-engines"

func newAdminRig(t *testing.T) *adminRig {
	t.Helper()
	port := freePort(t)
	router := run(t, "tandem", tandem(t), "--pd-disaggregation", "--api-key", adminKey, "--host", "127.0.0.1", "--port", port)
	base := "http://127.0.0.1:" + port
	router.ready(t, base+"/health")
	t.Cleanup(func() { router.interrupt(t) })
	return &adminRig{newOperator(t, base), base}
}

func (r *adminRig) engine(role simengine.Role) *simengine.Engine {
	r.t.Helper()
	e, err := simengine.Start(simengine.Config{Role: role, APIKey: engineKey, HealthDelay: -1, TimeScale: 0.1})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { assert.NoError(r.t, e.Close()) })
	return e
}

// add is what the gateway's clients send of a worker, all of it.
func add(e *simengine.Engine) map[string]any {
	body := map[string]any{
		"url": e.URL(), "worker_type": string(e.Role()), "api_key": engineKey, "model_id": "tiny",
		"priority": 70, "cost": 1.5, "labels": map[string]string{"zone": "a", "rack": "1"}, "runtime": "sglang",
		"health_check_timeout_secs": 30, "health_check_interval_secs": 60, "health_success_threshold": 2,
		"health_failure_threshold": 3, "disable_health_check": false, "max_connection_attempts": 20,
	}
	if port := e.BootstrapPort(); port != 0 {
		body["bootstrap_port"] = port
	}
	return body
}

// joined adds an engine and waits until it takes part.
func (r *adminRig) joined(e *simengine.Engine) (id string) {
	r.t.Helper()
	a := r.call(http.MethodPost, "/workers", add(e))
	require.Equal(r.t, http.StatusAccepted, a.Status, "%v", a.JSON)
	id = a.JSON["worker_id"].(string)
	r.until("/workers/"+id, func(a adminAnswer) bool { return a.JSON["is_healthy"] == true })
	return id
}

// generate sends a request through the router, with its key.
func (r *adminRig) generate() int {
	r.t.Helper()
	body, err := json.Marshal(cases.Body{"text": "Hello", "sampling_params": cases.Greedy(2)})
	require.NoError(r.t, err)
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+"/generate", strings.NewReader(string(body)))
	require.NoError(r.t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", r.key)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	require.NoError(r.t, err)
	defer response.Body.Close()
	return response.StatusCode
}

// A worker is added, listed, changed, drained and deleted as it is with the gateway.
func TestTheAdminAPIByRequests(t *testing.T) {
	r := newAdminRig(t)
	prefill, decode := r.engine(simengine.Prefill), r.engine(simengine.Decode)
	prefill.SetPathFault("/health", &simengine.Fault{Status: http.StatusServiceUnavailable})

	a := r.call(http.MethodPost, "/workers", add(prefill))
	id, _ := a.JSON["worker_id"].(string)
	requireAccepted(t, a, id)
	require.NoError(t, uuid.Validate(id))
	path := "/workers/" + id
	assert.Equal(t, path, header(a, "Location"))
	requireFields(t, a.JSON, fields{"url": prefill.URL(), "location": path})

	t.Run("one that starts says what is under way", func(t *testing.T) {
		a := r.call(http.MethodGet, path, nil)
		require.Equal(t, http.StatusOK, a.Status)
		requireFields(t, a.JSON, workerInfo(fields{"id": id, "url": prefill.URL(), "is_healthy": false, "job_status": anObject}))
		requireFields(t, a.JSON["job_status"].(map[string]any), fields{
			"job_type": "AddWorker", "worker_url": prefill.URL(), "status": aText, "message": aText, "timestamp": aNumber,
		})
		assert.Contains(t, []any{"pending", "processing", "failed"}, a.JSON["job_status"].(map[string]any)["status"])
	})
	prefill.SetPathFault("/health", nil)
	a = r.until(path, func(a adminAnswer) bool { return a.JSON["is_healthy"] == true })
	t.Run("one that has joined", func(t *testing.T) {
		requireFields(t, a.JSON, workerInfo(fields{
			"id": id, "url": prefill.URL(), "model_id": "tiny", "priority": 70, "cost": 1.5, "worker_type": "prefill",
			"load": 0, "bootstrap_port": prefill.BootstrapPort(), "metadata": anObject, "disable_health_check": false,
		}))
		assert.Equal(t, map[string]any{"zone": "a", "rack": "1"}, a.JSON["metadata"])
		assert.NotContains(t, a.JSON, "job_status")
		assert.NotContains(t, a.JSON, "api_key")
	})
	other := r.joined(decode)
	assert.Equal(t, http.StatusOK, r.generate(), "and works, by its own key")

	t.Run("the list", func(t *testing.T) {
		a := r.call(http.MethodGet, "/workers", nil)
		require.Equal(t, http.StatusOK, a.Status)
		requireFields(t, a.JSON, fields{"workers": aList, "total": 2, "stats": anObject})
		requireFields(t, a.JSON["stats"].(map[string]any), fields{"prefill_count": 1, "decode_count": 1, "regular_count": 0})
		var ids []any
		for _, w := range a.JSON["workers"].([]any) {
			requireFields(t, w.(map[string]any), workerInfo(nil))
			ids = append(ids, w.(map[string]any)["id"])
		}
		assert.Equal(t, []any{id, other}, ids)
		assert.NotContains(t, fmt.Sprint(a.JSON), "s3cret")
	})
	t.Run("PUT", func(t *testing.T) {
		requireAccepted(t, r.call(http.MethodPut, path, map[string]any{
			"priority": 10, "cost": 2.5, "labels": map[string]string{"zone": "b"}, "api_key": engineKey, "health_check_interval_secs": 5,
		}), id)
		a := r.call(http.MethodGet, path, nil)
		requireFields(t, a.JSON, fields{"priority": 10, "cost": 2.5, "metadata": anObject})
		assert.Equal(t, map[string]any{"zone": "b"}, a.JSON["metadata"])
	})
	t.Run("PATCH", func(t *testing.T) {
		requireAccepted(t, r.call(http.MethodPatch, path, map[string]any{"labels": map[string]any{"rack": "2"}}), id)
		a := r.call(http.MethodGet, path, nil)
		requireFields(t, a.JSON, fields{"priority": 10})
		assert.Equal(t, map[string]any{"zone": "b", "rack": "2"}, a.JSON["metadata"])
	})
	t.Run("drain", func(t *testing.T) {
		a := r.call(http.MethodPost, path+"/drain", nil)
		require.Equal(t, http.StatusOK, a.Status)
		requireFields(t, a.JSON, workerInfo(fields{"id": id, "state": "draining"}))
		assert.Equal(t, http.StatusServiceUnavailable, r.generate(), "no prefill takes work")
		r.until(path, func(a adminAnswer) bool { return a.JSON["drained"] == true })
		assert.Equal(t, http.StatusOK, r.call(http.MethodPost, path+"/resume", nil).Status)
		assert.Equal(t, http.StatusOK, r.generate())
	})
	t.Run("DELETE", func(t *testing.T) {
		requireAccepted(t, r.call(http.MethodDelete, path, nil), id)
		r.until(path, func(a adminAnswer) bool { return a.Status == http.StatusNotFound })
		requireFields(t, r.call(http.MethodGet, "/workers", nil).JSON, fields{"total": 1})
		assert.Equal(t, http.StatusServiceUnavailable, r.generate())
	})
	assert.Equal(t, id, r.joined(prefill), "its URL's id, however often it comes")
	assert.Equal(t, http.StatusOK, r.generate())
}

// The mistakes of clients, by the gateway's codes.
func TestTheAdminAPIRefusesByRequests(t *testing.T) {
	r := newAdminRig(t)
	decode := r.engine(simengine.Decode)
	id := r.joined(decode)

	requireRefused(t, r.call(http.MethodPost, "/workers", add(decode)), http.StatusConflict, "WORKER_ALREADY_EXISTS")
	for _, body := range []any{
		map[string]any{},
		[]string{},
		map[string]any{"url": "127.0.0.1:1"},
		map[string]any{"url": "grpc://127.0.0.1:1"},
		map[string]any{"url": 7},
		map[string]any{"url": "http://127.0.0.1:1", "worker_type": "encode"},
		map[string]any{"url": "http://127.0.0.1:1", "worker_type": "prefill", "bootstrap_port": 70000},
		map[string]any{"url": "http://127.0.0.1:1", "worker_type": "decode", "priority": "high"},
		map[string]any{"url": "http://u:s3cret@127.0.0.1:1", "worker_type": "decode"},
	} {
		requireRefused(t, r.call(http.MethodPost, "/workers", body), http.StatusBadRequest, "BAD_REQUEST")
	}
	requireRefused(t, r.call(http.MethodPut, "/workers/"+id, map[string]any{"priority": "high"}), http.StatusBadRequest, "BAD_REQUEST")
	requireRefused(t, r.call(http.MethodPatch, "/workers/"+id, map[string]any{"worker_type": "prefill"}), http.StatusBadRequest, "BAD_REQUEST")
	for _, unknown := range []string{uuid.NewString(), "nonsense"} {
		path := "/workers/" + unknown
		for _, a := range []adminAnswer{
			r.call(http.MethodGet, path, nil), r.call(http.MethodPut, path, map[string]any{"priority": 1}),
			r.call(http.MethodPatch, path, map[string]any{"priority": 1}), r.call(http.MethodDelete, path, nil),
			r.call(http.MethodPost, path+"/drain", nil),
		} {
			requireRefused(t, a, http.StatusNotFound, "WORKER_NOT_FOUND")
		}
	}
	requireFields(t, r.call(http.MethodGet, "/workers", nil).JSON, fields{"total": 1})

	r.key = "Bearer another"
	for _, a := range []adminAnswer{
		r.call(http.MethodGet, "/workers", nil), r.call(http.MethodPost, "/workers", add(r.engine(simengine.Decode))),
		r.call(http.MethodDelete, "/workers/"+id, nil), r.call(http.MethodPost, "/workers/"+id+"/drain", nil),
	} {
		assert.Equal(t, http.StatusUnauthorized, a.Status, "%v", a.JSON)
	}
	r.key = "Bearer " + adminKey
	requireFields(t, r.call(http.MethodGet, "/workers/"+id, nil).JSON, workerInfo(fields{"state": "ready"}))
}

// A worker that is deleted while it starts never joins.
func TestAWorkerThatStartsIsDeletedByRequests(t *testing.T) {
	r := newAdminRig(t)
	prefill, decode := r.engine(simengine.Prefill), r.engine(simengine.Decode)
	r.joined(prefill)
	decode.SetPathFault("/health", &simengine.Fault{Status: http.StatusServiceUnavailable})
	a := r.call(http.MethodPost, "/workers", add(decode))
	id, _ := a.JSON["worker_id"].(string)
	requireAccepted(t, a, id)
	requireAccepted(t, r.call(http.MethodDelete, "/workers/"+id, nil), id)
	decode.SetPathFault("/health", nil)
	r.until("/workers/"+id, func(a adminAnswer) bool { return a.Status == http.StatusNotFound })
	for range 20 { // a worker that starts is looked at again after a second
		assert.Equal(t, http.StatusServiceUnavailable, r.generate())
		time.Sleep(100 * time.Millisecond)
	}
	requireFields(t, r.call(http.MethodGet, "/workers", nil).JSON, fields{"total": 1})
	for _, rec := range decode.Records() {
		assert.NotEqual(t, "/generate", rec.Path)
	}
}
