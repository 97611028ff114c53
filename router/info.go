package router

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pd"
)

// errNoAnswer is the error of an info endpoint whose workers all failed.
func errNoAnswer(what string) *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Unavailable, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "no_worker_answered", Message: "no worker answered with " + what,
	}
}

// usable are the workers that can be used, or all where none can: one that hangs
// would hold up what the others say, and one that has not joined serves no model.
func (a *App) usable(v *visit) []*pd.Worker {
	workers := a.cfg.Workers()
	var out []*pd.Worker
	for i, can := range a.healthy(v, workers) {
		if can {
			out = append(out, workers[i])
		}
	}
	if out == nil {
		return workers
	}
	return out
}

// modelCards is the union of what the usable workers serve: each id once, in the
// order of the workers that name it first, as the first one describes it.
func (a *App) modelCards(v *visit) (ids []string, cards map[string]json.RawMessage, err error) {
	if err := v.begin(); err != nil {
		return nil, nil, err
	}
	cards = make(map[string]json.RawMessage)
	answered := false
	for _, r := range a.askAll(v, enginesOf(a.usable(v)), call{method: http.MethodGet, path: "/v1/models", timeout: infoTimeout}) {
		var list struct {
			Data []json.RawMessage `json:"data"`
		}
		if !r.ok() || json.Unmarshal(r.body, &list) != nil {
			continue
		}
		answered = true
		for _, card := range list.Data {
			var named struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(card, &named) != nil || named.ID == "" {
				continue
			}
			if _, ok := cards[named.ID]; !ok {
				ids = append(ids, named.ID)
				cards[named.ID] = card
			}
		}
	}
	if !answered {
		return nil, nil, errNoAnswer("its models")
	}
	return ids, cards, nil
}

// models is the union of the workers' models.
func (a *App) models(v *visit) error {
	ids, cards, err := a.modelCards(v)
	if err != nil {
		return err
	}
	data := make([]json.RawMessage, 0, len(ids))
	for _, id := range ids {
		data = append(data, cards[id])
	}
	return v.document(http.StatusOK, struct {
		Object string            `json:"object"`
		Data   []json.RawMessage `json:"data"`
	}{"list", data})
}

// model is one of them. Ids may hold slashes.
func (a *App) model(v *visit) error {
	id, err := url.PathUnescape(strings.Clone(v.c.Params("*")))
	if err != nil {
		return pd.InvalidField("model", "the model's id is not a valid path")
	}
	_, cards, err := a.modelCards(v)
	if err != nil {
		return err
	}
	card, ok := cards[id]
	if !ok {
		return &pd.Error{
			Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotFound,
			Code: "model_not_found", Param: "model", Message: "the model does not exist",
		}
	}
	v.json(http.StatusOK, card)
	return nil
}

// modelInfo is what the first usable worker that answers says of its model, of those
// that see the prompt: prefill, or whole engines.
func (a *App) modelInfo(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	workers := enginesOf(a.usable(v))
	reads := pd.Prefill
	if a.cfg.Regular {
		reads = pd.Regular
	}
	for _, w := range withRole(workers, reads) {
		replies := a.askAll(v, []*pd.Worker{w}, call{method: http.MethodGet, path: "/model_info", timeout: infoTimeout})
		if !replies[0].ok() {
			continue
		}
		if doc, err := publicJSON(replies[0].body, w, workers); err == nil {
			v.json(http.StatusOK, doc)
			return nil
		}
	}
	return errNoAnswer("its model's description")
}

// serverInfo joins what the workers say of themselves, in the shape of SGLang's
// small load balancer: the internal states of those that generate, and the whole
// of each answer. Where the workers are whole engines, regular stands in the place
// of prefill and decode: SGLang's benchmark looks for the states in decode if there
// is one. A worker's id stands first in its answer; secrets and addresses are left
// out.
func (a *App) serverInfo(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	workers := enginesOf(a.cfg.Workers())
	states, answered := []json.RawMessage{}, false
	var infos [3][]json.RawMessage // by role
	for role := range infos {
		infos[role] = []json.RawMessage{}
	}
	for _, r := range a.askAll(v, workers, call{method: http.MethodGet, path: "/server_info", timeout: infoTimeout}) {
		doc, ok := r.public(workers)
		answered = answered || ok
		named, err := withWorker(r.worker.ID, doc)
		if err != nil {
			return err
		}
		role := r.worker.Role
		infos[role] = append(infos[role], named)
		var info struct {
			States []json.RawMessage `json:"internal_states"`
		}
		if role != pd.Prefill && json.Unmarshal(doc, &info) == nil {
			states = append(states, info.States...)
		}
	}
	if !answered {
		return errNoAnswer("its server's description")
	}
	type list = []json.RawMessage
	if a.cfg.Regular {
		return v.document(http.StatusOK, struct {
			States  list `json:"internal_states"`
			Regular list `json:"regular"`
		}{states, infos[pd.Regular]})
	}
	return v.document(http.StatusOK, struct {
		States  list `json:"internal_states"`
		Prefill list `json:"prefill"`
		Decode  list `json:"decode"`
	}{states, infos[pd.Prefill], infos[pd.Decode]})
}

// public is the reply's JSON as a client may see it; when there is none, ok is
// false and the document says why.
func (r *reply) public(workers []*pd.Worker) (doc json.RawMessage, ok bool) {
	why := r.failure()
	if why == "" {
		doc, err := publicJSON(r.body, r.worker, workers)
		if err == nil {
			return doc, true
		}
		why = "the answer is not JSON"
	}
	doc, err := json.Marshal(struct {
		Error string `json:"error"`
	}{why})
	if err != nil {
		return json.RawMessage("{}"), false
	}
	return doc, false
}

// withWorker puts a worker's id first in a JSON object.
func withWorker(id pd.WorkerID, object json.RawMessage) (json.RawMessage, error) {
	name, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	if len(object) < 2 || object[0] != '{' {
		return slices.Concat([]byte(`{"worker":`), name, []byte(`,"answer":`), object, []byte("}")), nil
	}
	comma := []byte(",")
	if object[1] == '}' {
		comma = nil
	}
	return slices.Concat([]byte(`{"worker":`), name, comma, object[1:]), nil
}

// load is one worker's load.
type load struct {
	Worker pd.WorkerID `json:"worker"`
	Role   string      `json:"role"`
	Load   int64       `json:"load"`
}

// getLoads is the load of every worker: the requests that run on it and wait
// there, over all its data-parallel ranks; -1 when it does not say.
func (a *App) getLoads(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	out := struct {
		Workers []load `json:"workers"`
	}{[]load{}}
	for _, r := range a.askAll(v, enginesOf(a.cfg.Workers()), call{method: http.MethodGet, path: "/v1/loads", timeout: infoTimeout}) {
		l := load{r.worker.ID, r.worker.Role.String(), -1}
		var answer struct {
			Loads []struct {
				Running int64 `json:"num_running_reqs"`
				Waiting int64 `json:"num_waiting_reqs"`
			} `json:"loads"`
		}
		if r.ok() && json.Unmarshal(r.body, &answer) == nil && answer.Loads != nil {
			l.Load = 0
			for _, rank := range answer.Loads {
				l.Load += rank.Running + rank.Waiting
			}
		}
		out.Workers = append(out.Workers, l)
	}
	return v.document(http.StatusOK, out)
}

// loads is every worker's own answer under its id. The query goes to all.
func (a *App) loads(v *visit) error {
	if err := v.begin(); err != nil {
		return err
	}
	workers := enginesOf(a.cfg.Workers())
	out := struct {
		Workers map[pd.WorkerID]json.RawMessage `json:"workers"`
	}{make(map[pd.WorkerID]json.RawMessage)}
	answered := false
	for _, r := range a.askAll(v, workers, call{method: http.MethodGet, path: "/v1/loads" + v.query(), timeout: infoTimeout}) {
		doc, ok := r.public(workers)
		answered = answered || ok
		out.Workers[r.worker.ID] = doc
	}
	if !answered {
		return errNoAnswer("its load")
	}
	return v.document(http.StatusOK, out)
}
