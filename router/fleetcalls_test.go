package router

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// called notes the calls that engines get.
type called struct {
	mu   sync.Mutex
	list []string
}

func (c *called) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, text)
}

// sorted are the calls so far, which are forgotten.
func (c *called) sorted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.Sorted(slices.Values(c.list))
	c.list = nil
	return out
}

// engine is one that notes its calls, and is of a model.
func (c *called) engine(t *testing.T, id pd.WorkerID, role pd.Role, model string) *pd.Worker {
	w := engineFunc(t, id, role, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		c.add(fmt.Sprintf("%s %s %s %s", id, req.Method, req.URL.RequestURI(), body))
		_, _ = io.WriteString(w, `{"success":true}`)
	})
	w.Model = model
	return w
}

// answerOf reads the answer of a fleet-wide call.
func answerOf(t *testing.T, body string) (out fleetAnswer) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(body), &out), body)
	return out
}

func TestACallToTheFleetReachesEveryEngineAsItCame(t *testing.T) {
	var calls called
	r := start(t, Config{Workers: fleet(calls.engine(t, "p0", pd.Prefill, "a"), calls.engine(t, "d0", pd.Decode, "a"))})
	for _, path := range []string{
		"/pause_generation", "/continue_generation", "/update_weights_from_disk", "/update_weights_from_tensor",
		"/update_weights_from_distributed", "/update_weights_from_ipc", "/update_weight_version",
		"/init_weights_update_group", "/destroy_weights_update_group", "/release_memory_occupation",
		"/resume_memory_occupation", "/load_lora_adapter", "/unload_lora_adapter", "/start_profile", "/stop_profile",
		"/set_internal_state", "/freeze_gc", "/configure_logging",
	} {
		resp, body := r.do("POST", path, `{ "model_path" :"m"}`)
		assert.Equal(t, http.StatusOK, resp.StatusCode, path)
		assert.Equal(t, `{"status":"success","message":"done by all: 2","total_workers":2,"successful":["p0","d0"],"failed":[],`+
			`"results":{"d0":{"status":200,"body":{"success":true}},"p0":{"status":200,"body":{"success":true}}}}`, body)
		call := ` POST ` + path + ` { "model_path" :"m"}`
		assert.Equal(t, []string{"d0" + call, "p0" + call}, calls.sorted())
	}
	resp, _ := r.do("POST", "/freeze_gc", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Equal(t, []string{"d0 POST /freeze_gc ", "p0 POST /freeze_gc "}, calls.sorted(), "no body is none")
	resp, _ = r.do("GET", "/freeze_gc", "")
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
}

func TestWhichEnginesACallIsFor(t *testing.T) {
	var calls called
	rank := func(w *pd.Worker, n int) *pd.Worker {
		one := *w
		one.ID, one.Rank = pd.WorkerID(fmt.Sprintf("%s@%d", w.ID, n)), &n
		return &one
	}
	d1 := calls.engine(t, "d1", pd.Decode, "b")
	r := start(t, Config{Workers: fleet(
		calls.engine(t, "p0", pd.Prefill, "a"), calls.engine(t, "d0", pd.Decode, "a"), rank(d1, 0), rank(d1, 1),
	)})
	f := func(query string, want ...string) {
		t.Helper()
		resp, body := r.do("POST", "/pause_generation"+query, `{}`)
		assert.Equal(t, http.StatusOK, resp.StatusCode, body)
		var got []string
		for _, id := range want {
			got = append(got, id+" POST /pause_generation {}")
		}
		assert.Equal(t, got, calls.sorted(), query)
		var ids []string
		for _, id := range answerOf(t, body).Successful {
			ids = append(ids, string(id))
		}
		slices.Sort(ids)
		assert.Equal(t, want, ids, "an engine is named once, whatever workers it is")
	}
	f("", "d0", "d1", "p0")
	f("?role=prefill", "p0")
	f("?role=decode", "d0", "d1")
	f("?role=decode&role=prefill", "d0", "d1", "p0")
	f("?model=a", "d0", "p0")
	f("?role=decode&model=b&timeout_secs=2.5&", "d1")

	for query, status := range map[string]int{
		"?role=encode": 400, "?role=": 400, "?timeout_secs=0": 400, "?timeout_secs=x": 400, "?timeout_secs=4000": 400,
		"?role=regular": 503, "?model=c": 404,
		// A name that is spelled wrong must not make it a call for all.
		"?model_id=a": 400, "?Role=decode": 400, "?xrole=decode": 400, "?timeout=1": 400,
	} {
		resp, body := r.do("POST", "/pause_generation"+query, `{}`)
		assert.Equal(t, status, resp.StatusCode, query)
		assert.Contains(t, body, `"error"`)
	}
	assert.Empty(t, calls.sorted())
	resp, body := r.do("POST", "/flush_cache?role=decode&timeout=1", "")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, body, `"workers_flushed":2`)
	assert.Equal(t, []string{"d0 POST /flush_cache?timeout=1 ", "d1 POST /flush_cache?timeout=1 "}, calls.sorted())
}

// F118: the answer comes within the time for a worker, and says who was late.
func TestF118OneEngineHangs(t *testing.T) {
	var calls called
	hung := make(chan struct{})
	hanging := engineFunc(t, "d2", pd.Decode, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-req.Context().Done()
		close(hung)
	})
	r := start(t, Config{Workers: fleet(
		calls.engine(t, "p0", pd.Prefill, ""), calls.engine(t, "p1", pd.Prefill, ""),
		calls.engine(t, "d0", pd.Decode, ""), calls.engine(t, "d1", pd.Decode, ""), hanging,
	)})
	begun := time.Now()
	resp, body := r.do("POST", "/pause_generation?timeout_secs=1", `{}`)
	assert.Less(t, time.Since(begun), patience)
	assert.Equal(t, http.StatusPartialContent, resp.StatusCode)
	out := answerOf(t, body)
	assert.Equal(t, []any{"partial_success", "done by 4 of 5", 5}, []any{out.Status, out.Message, out.Total})
	assert.Equal(t, []pd.WorkerID{"p0", "p1", "d0", "d1"}, out.Successful)
	assert.Equal(t, []fleetFailed{{Worker: "d2", Role: "decode", Error: "no answer in time"}}, out.Failed)
	assert.Len(t, out.Results, 4)
	within(t, hung, "the call's end")
}

// Engines that set up a group answer when all of them are there.
func TestEnginesThatWaitForEachOtherAreAllCalledAtOnce(t *testing.T) {
	const n = fanOutParallel + 8
	var arrived sync.WaitGroup
	arrived.Add(n)
	var workers []*pd.Worker
	for i := range n {
		workers = append(workers, engineFunc(t, pd.WorkerID(fmt.Sprint("e", i)), pd.Decode, func(http.ResponseWriter, *http.Request) {
			arrived.Done()
			arrived.Wait()
		}))
	}
	r := start(t, Config{Workers: fleet(workers...)})
	resp, body := r.do("POST", "/init_weights_update_group?timeout_secs=60", `{}`)
	assert.Equal(t, http.StatusOK, resp.StatusCode, body)
}

func TestWhatAFleetThatFailsAnswers(t *testing.T) {
	answers := func(id pd.WorkerID, status int, body string) *pd.Worker {
		return engineFunc(t, id, pd.Decode, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	ok, refuses := answers("ok", 200, ""), answers("refuses", 400, `{"success":false,"message":"no"}`)
	f := func(status int, word, message string, workers ...*pd.Worker) fleetAnswer {
		t.Helper()
		r := start(t, Config{Workers: fleet(workers...)})
		resp, body := r.do("POST", "/update_weights_from_disk", `{}`)
		assert.Equal(t, status, resp.StatusCode, body)
		out := answerOf(t, body)
		assert.Equal(t, []any{word, message, len(workers)}, []any{out.Status, out.Message, out.Total})
		return out
	}
	out := f(206, "partial_success", "done by 1 of 3", ok, refuses, dead(t, "gone", pd.Prefill))
	assert.Equal(t, []fleetFailed{
		{"refuses", "decode", 400, "answered with status 400"}, {"gone", "prefill", 0, "cannot be reached"},
	}, out.Failed)
	assert.Equal(t, map[pd.WorkerID]engineAnswer{
		"ok": {200, json.RawMessage(`""`)}, "refuses": {400, json.RawMessage(`{"success":false,"message":"no"}`)},
	}, out.Results)
	f(400, "failed", "done by 0 of 2", refuses, answers("too", 400, ""))
	f(502, "failed", "done by 0 of 2", refuses, answers("other", 500, ""))
	f(502, "failed", "done by 0 of 2", refuses, dead(t, "gone", pd.Prefill))
	f(502, "failed", "done by 0 of 1", dead(t, "gone", pd.Prefill))
	f(502, "failed", "done by 0 of 1", answers("elsewhere", 307, ""))
}

func TestEnginesAnswersShowNoSecretAndNoAddress(t *testing.T) {
	var workers []*pd.Worker
	text := "" // set once the addresses are known
	for _, id := range []pd.WorkerID{"p0", "d0", "d1"} {
		workers = append(workers, engineFunc(t, id, pd.Decode, func(w http.ResponseWriter, _ *http.Request) {
			switch id {
			case "p0":
				_, _ = fmt.Fprintf(w, `{"api_key":"s3cret","peer":%q,"n":12345678901234567890}`, text)
			case "d0":
				_, _ = io.WriteString(w, "done at "+text)
			default:
				_, _ = fmt.Fprintf(w, `{"peer":%q} {"api_key":"s3cret"}`, text)
			}
		}))
	}
	text = workers[0].URL
	r := start(t, Config{Workers: fleet(workers...)})
	_, body := r.do("POST", "/set_internal_state", `{}`)
	out := answerOf(t, body)
	assert.JSONEq(t, `{"peer":"p0","n":12345678901234567890}`, string(out.Results["p0"].Body))
	assert.Contains(t, string(out.Results["p0"].Body), "12345678901234567890")
	assert.Equal(t, `"done at p0"`, string(out.Results["d0"].Body))
	assert.JSONEq(t, `"{\"peer\":\"p0\"}\n{}"`, string(out.Results["d1"].Body))
	assert.NotContains(t, body, hostOf(workers[0]))
	assert.NotContains(t, body, "s3cret")
}

func TestACallToTheFleetCarriesTheClientsHeaders(t *testing.T) {
	headers := make(chan http.Header, 2)
	w := engineFunc(t, "p0", pd.Prefill, func(_ http.ResponseWriter, req *http.Request) { headers <- req.Header })
	r := start(t, Config{Workers: fleet(w)})
	r.do("POST", "/pause_generation", `{}`, "Content-Type", "application/json", "Authorization", "Bearer engine", "X-Request-Id", "r1",
		"Accept-Encoding", "gzip", "Connection", "X-Hop", "X-Hop", "1")
	got := within(t, headers, "the call")
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Authorization": "Bearer engine", "X-Request-Id": "r1", "Accept-Encoding": "", "X-Hop": "",
	} {
		assert.Equal(t, want, got.Get(name), name)
	}
	r = start(t, Config{Workers: fleet(w), APIKey: key, MaxPayload: 10})
	r.do("POST", "/pause_generation", `{}`, "Authorization", "Bearer "+key)
	assert.Empty(t, within(t, headers, "the call").Get("Authorization"), "it is the router's")
	resp, _ := r.do("POST", "/pause_generation", `{}`)
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	resp, _ = r.do("POST", "/pause_generation", strings.Repeat(" ", 11), "Authorization", "Bearer "+key)
	assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	assert.Empty(t, headers)
}

func TestACallToTheFleetEndsWithItsClient(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	r := start(t, Config{Workers: fleet(engineFunc(t, "p0", pd.Prefill, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		close(entered)
		<-req.Context().Done()
		close(ended)
	}))})
	c := r.dial(post("/pause_generation", "{}"))
	within(t, entered, "the call")
	require.NoError(t, c.Close())
	within(t, ended, "the call's end")
}
