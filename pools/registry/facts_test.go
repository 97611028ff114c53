package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestWhatAnEngineSaysOfItself(t *testing.T) {
	f := func(why string, answers map[string]answer, want Facts) {
		t.Helper()
		e := newEngine("")
		e.answers = answers
		facts, err := ask(t.Context(), transport(t), &pd.Worker{URL: e.serve(t)})
		require.NoError(t, err, why)
		assert.Equal(t, want, facts, why)
	}
	info := func(text string) map[string]answer { return map[string]answer{"/server_info": {200, text}} }

	f("everything", info(`{"served_model_name":"chat","model_path":"/models/chat","disaggregation_mode":"prefill","dp_size":4,
		"max_total_num_tokens":100000,"page_size":64,"disaggregation_bootstrap_port":8998,"version":"0.5.9"}`),
		Facts{Model: "chat", Mode: "prefill", DPSize: 4, KVTokens: 100000, PageSize: 64, BootstrapPort: 8998, Version: "0.5.9"})
	f("no served name", info(`{"model_path":"/models/chat"}`), Facts{Model: "/models/chat"})
	f("a served name of null", info(`{"served_model_name":null,"model_path":"p"}`), Facts{Model: "p"})
	f("the old path", map[string]answer{"/get_server_info": {200, `{"served_model_name":"m"}`}}, Facts{Model: "m"})
	f("the model by its own path", map[string]answer{
		"/server_info": {200, `{"dp_size":2}`}, "/model_info": {200, `{"served_model_name":"m","model_path":"p"}`},
	}, Facts{Model: "m", DPSize: 2})
	f("and by the old one of that", map[string]answer{
		"/server_info": {200, `{"dp_size":2}`}, "/get_model_info": {200, `{"model_path":"p"}`},
	}, Facts{Model: "p", DPSize: 2})
	f("a role switched since the launch",
		info(`{"served_model_name":"m","disaggregation_mode":"prefill","internal_states":[{},{"disaggregation_mode":"decode"}]}`),
		Facts{Model: "m", Mode: "decode", live: true})
	f("states that say nothing of it", info(`{"served_model_name":"m","disaggregation_mode":"prefill","internal_states":[{"x":1}]}`),
		Facts{Model: "m", Mode: "prefill"})

	f("no such paths", nil, Facts{})
	f("a page", info(`<html>welcome</html>`), Facts{})
	f("nothing", info(``), Facts{})
	f("a list", info(`[1]`), Facts{})
	f("one odd field, and the others", info(`{"dp_size":"four","served_model_name":"m","page_size":1.5,"internal_states":{"a":1},
		"disaggregation_mode":"decode"}`), Facts{Model: "m", Mode: "decode"})
	f("numbers that nothing has", info(`{"served_model_name":"m","dp_size":-1,"max_total_num_tokens":-1,"page_size":-1,
		"disaggregation_bootstrap_port":65536}`), Facts{Model: "m"})
	f("a name that is none", info(`{"served_model_name":"`+strings.Repeat("x", maxName+1)+`"}`), Facts{})
	f("more than is read", info(`{"served_model_name":"m","x":"`+strings.Repeat("x", maxInfo)+`"}`), Facts{})
	for _, status := range []int{401, 403, 404, 405, 302, 204} {
		f(fmt.Sprint(status), map[string]answer{"/server_info": {status, ""}, "/get_server_info": {status, ""}}, Facts{})
	}
}

func TestAnEngineThatCannotAnswerNowIsAskedAgain(t *testing.T) {
	f := func(why string, script func(e *engine)) {
		t.Helper()
		e := newEngine("decode")
		script(e)
		url := e.serve(t)
		_, err := ask(t.Context(), transport(t), &pd.Worker{URL: url, APIKey: "secret"})
		require.Error(t, err, why)
		assert.NotContains(t, err.Error(), "127.0.0.1", why)
		assert.NotContains(t, err.Error(), "secret", why)
	}
	for _, status := range []int{500, 502, 503, 429} {
		f(fmt.Sprint(status), func(e *engine) { e.says("/server_info", status, "") })
	}
	f("a broken connection", func(e *engine) { e.breaks("/server_info", true) })
	f("the model", func(e *engine) {
		e.says("/server_info", 200, `{}`)
		e.says("/model_info", 503, ``)
	})

	_, err := ask(t.Context(), transport(t), &pd.Worker{URL: "http://127.0.0.1:1"})
	assert.EqualError(t, err, "/server_info cannot be had")
}

// An engine that wants a key everywhere is given its own by the monitor and by
// those who ask for facts.
func TestAWorkersKeyIsSentWithEveryCall(t *testing.T) {
	own, all := newEngine("prefill"), newEngine("decode")
	f := newFleet(t, Options{Transport: transport(t), APIKey: "common"})
	specs := []Spec{{URL: own.serve(t), Role: pd.Prefill, APIKey: "own"}, {URL: all.serve(t), Role: pd.Decode}}
	f.Apply("file", specs)
	f.ready(t, IDOf(specs[0].URL), pd.Prefill)
	f.ready(t, IDOf(specs[1].URL), pd.Decode)
	for _, path := range []string{"/health", "/server_info"} {
		assert.Equal(t, "Bearer own", own.key(path), path)
		assert.Equal(t, "Bearer common", all.key(path), path)
	}
}

func TestAnEngineThatIsNotWhatItIsToBeIsRefused(t *testing.T) {
	f := func(role pd.Role, mode, want string) {
		t.Helper()
		err := contradiction(role, mode)
		if want == "" {
			assert.NoError(t, err)
			return
		}
		assert.EqualError(t, err, want)
	}
	f(pd.Prefill, "prefill", "")
	f(pd.Prefill, "", "")
	f(pd.Regular, "null", "")
	f(pd.Regular, "", "")
	f(pd.Prefill, "decode", "refused: it runs as a decode engine, and is to be a prefill worker: it was launched so (--disaggregation-mode), or has switched its role")
	f(pd.Decode, "null", "refused: it runs as a whole engine, and is to be a decode worker: it was launched so (--disaggregation-mode), or has switched its role")
	f(pd.Regular, "prefill", "refused: it runs as a prefill engine of a pair, and is to serve alone: it was launched so (--disaggregation-mode), or has switched its role")
}

func TestARefusedWorkerJoinsOnceItIsWhatItIsToBe(t *testing.T) {
	e := newEngine("decode")
	f := newFleet(t, Options{Transport: transport(t)})
	id, err := f.Add(Spec{URL: e.serve(t), Role: pd.Prefill})
	require.NoError(t, err)
	soon(t, "it is refused", func() bool { return view(t, f.Registry, id).Refused != "" })
	v := view(t, f.Registry, id)
	assert.Equal(t, pools.Starting, v.State)
	assert.Contains(t, v.Reason, "it runs as a decode engine, and is to be a prefill worker")
	assert.Equal(t, []any{JobAdd, JobFailed, v.Refused}, []any{v.Job.Type, v.Job.Status, v.Job.Message})
	e.is("prefill")
	f.ready(t, id, pd.Prefill)
	v = view(t, f.Registry, id)
	assert.Equal(t, []any{"", (*Job)(nil), "m"}, []any{v.Refused, v.Job, v.Worker.Model})
}

func TestAnEngineWithoutFactsJoins(t *testing.T) {
	for _, status := range []int{404, 401} {
		e := newEngine("")
		e.says("/server_info", status, "")
		f := newFleet(t, Options{Transport: transport(t)})
		id, err := f.Add(Spec{URL: e.serve(t), Role: pd.Decode})
		require.NoError(t, err)
		f.ready(t, id, pd.Decode)
		assert.Empty(t, f.set.Find(id).Worker.Model)
	}
}

// inMemory calls a handler without a network.
type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, req)
	return w.Result(), nil
}

func TestAnEngineThatIsNotUpYetJoinsSoonAfterItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine("decode")
		e.says("/server_info", 503, "")
		f := newFleet(t, Options{Transport: inMemory{e}})
		id, err := f.Add(Spec{URL: "http://d:1", Role: pd.Decode})
		require.NoError(t, err)
		time.Sleep(90 * time.Second)
		v := view(t, f.Registry, id)
		assert.Equal(t, pools.Starting, v.State)
		assert.Equal(t, "/server_info is answered with status 503", v.Reason)
		assert.Equal(t, []any{JobAdd, JobProcessing, v.Reason}, []any{v.Job.Type, v.Job.Status, v.Job.Message})
		e.is("decode")
		time.Sleep(5 * time.Second)
		assert.Equal(t, pools.Ready, f.set.Find(id).State())
	})
}
