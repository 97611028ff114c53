package router

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
)

// Bounds of a call to the whole fleet, for each engine.
const (
	fleetTimeout    = 300 * time.Second // new weights are read from a disk
	fleetTimeoutMax = time.Hour         // that a client may ask for
)

// fleetRoutes are the calls by which engines are looked after, under the names
// that they have there. Each goes to all engines, or to those of a role or model.
func (a *App) fleetRoutes() {
	for _, path := range []string{
		"/pause_generation", "/continue_generation",
		"/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_distributed",
		"/update_weights_from_ipc", "/update_weight_version",
		"/init_weights_update_group", "/destroy_weights_update_group",
		"/release_memory_occupation", "/resume_memory_occupation",
		"/load_lora_adapter", "/unload_lora_adapter",
		"/start_profile", "/stop_profile", "/set_internal_state", "/freeze_gc", "/configure_logging",
	} {
		a.fiber.Post(path, a.route(path[1:], plain, a.fleetCall))
	}
}

// selection is which engines a call is for, and how long each may take.
type selection struct {
	roles   []pd.Role // empty for all
	model   string    // empty for all
	timeout time.Duration
	query   string // what else stood in the query, as it came, with its question mark
}

// selection reads ?role=, ?model= and ?timeout_secs=, which are for the router,
// out of the query; others are the engines' names for what they take there. Any
// more are refused: a name that is spelled wrong would make a call for a few one
// for all.
func (v *visit) selection(others ...string) (selection, error) {
	var sel selection
	var rest []string
	for pair := range strings.SplitSeq(string(v.c.Request().URI().QueryString()), "&") {
		name, value, _ := strings.Cut(pair, "=")
		if text, err := url.QueryUnescape(value); err == nil {
			value = text
		}
		switch name {
		case "role":
			role, ok := pd.ParseRole(value)
			if !ok {
				return selection{}, pd.InvalidField("role", "role must be prefill, decode or regular")
			}
			sel.roles = append(sel.roles, role)
		case "model":
			sel.model = value
		case "timeout_secs":
			var err error
			if sel.timeout, err = secondsOf(name, value, fleetTimeoutMax); err != nil {
				return selection{}, err
			}
		case "":
		default:
			if !slices.Contains(others, name) {
				return selection{}, pd.InvalidField("", "the query may have role, model and timeout_secs, and there is something else in it")
			}
			rest = append(rest, pair)
		}
	}
	if query := strings.Join(rest, "&"); query != "" {
		sel.query = "?" + query
	}
	return sel, nil
}

// of are those of engines that are selected.
func (sel *selection) of(engines []*pd.Worker) []*pd.Worker {
	return slices.DeleteFunc(engines, func(w *pd.Worker) bool {
		return len(sel.roles) > 0 && !slices.Contains(sel.roles, w.Role) || sel.model != "" && sel.model != w.Model
	})
}

// fleetAnswer is what became of a call to the fleet, in the style of flushed.
type fleetAnswer struct {
	Status     string                       `json:"status"` // success, partial_success or failed
	Message    string                       `json:"message"`
	Total      int                          `json:"total_workers"`
	Successful []pd.WorkerID                `json:"successful"`
	Failed     []fleetFailed                `json:"failed"`
	Results    map[pd.WorkerID]engineAnswer `json:"results"` // of those that answered
}

type fleetFailed struct {
	Worker pd.WorkerID `json:"worker"`
	Role   string      `json:"role"`
	Status int         `json:"status,omitempty"` // its answer's, if it gave one
	Error  string      `json:"error"`
}

type engineAnswer struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body"` // JSON as it came, else a text
}

// fleetCall makes a client's call to every engine that is selected, as it came,
// and waits for all of them. An engine is called once, whatever workers it is. The
// answer is 200 when all did it and 206 when some did. When none did it, it is
// what all of them say, or 502 where they differ or say nothing.
func (a *App) fleetCall(v *visit) error {
	sel, err := v.selection()
	if err != nil {
		return err
	}
	body, err := v.body(a.cfg.MaxPayload)
	if err != nil {
		return err
	}
	header, err := v.header()
	if err != nil {
		return err
	}
	header.Del(fiber.HeaderAcceptEncoding) // the answers are read here
	c := call{
		method: http.MethodPost, path: v.c.Route().Path, timeout: sel.timeout,
		header: header, body: body, together: true,
	}
	if c.timeout == 0 {
		c.timeout = fleetTimeout
	}
	if err := v.begin(); err != nil {
		return err
	}
	all := enginesOf(a.cfg.Workers())
	chosen := sel.of(slices.Clone(all))
	if len(chosen) == 0 {
		return sel.errNobody()
	}
	status, answer := fleetAnswerOf(a.askAll(v, chosen, c), all)
	return v.document(status, answer)
}

// fleetAnswerOf puts replies together. What all are is masked in them.
func fleetAnswerOf(replies []reply, all []*pd.Worker) (status int, out fleetAnswer) {
	out = fleetAnswer{
		Total: len(replies), Successful: []pd.WorkerID{}, Failed: []fleetFailed{},
		Results: make(map[pd.WorkerID]engineAnswer, len(replies)),
	}
	for i := range replies {
		r := &replies[i]
		if r.err == nil {
			out.Results[r.worker.ID] = engineAnswer{r.status, r.shown(all)}
		}
		if r.ok() {
			out.Successful = append(out.Successful, r.worker.ID)
		} else {
			out.Failed = append(out.Failed, fleetFailed{r.worker.ID, r.worker.Role.String(), r.status, r.failure()})
		}
	}
	out.Message = fmt.Sprintf("done by %d of %d", len(out.Successful), out.Total)
	switch {
	case len(out.Failed) == 0:
		out.Status, out.Message = "success", fmt.Sprintf("done by all: %d", out.Total)
		return http.StatusOK, out
	case len(out.Successful) > 0:
		out.Status = "partial_success"
		return http.StatusPartialContent, out
	}
	out.Status = "failed"
	return commonStatus(out.Failed), out
}

// commonStatus is the status of an error that all have answered with, else 502.
func commonStatus(failed []fleetFailed) int {
	status := failed[0].Status
	differs := func(f fleetFailed) bool { return f.Status != status }
	if status < 400 || slices.ContainsFunc(failed, differs) {
		return http.StatusBadGateway
	}
	return status
}

// shown is an engine's answer as a client may see it.
func (r *reply) shown(workers []*pd.Worker) json.RawMessage {
	text := string(r.body)
	if doc, err := publicJSON(r.body, r.worker, workers); err != nil {
		text = addressMask(r.worker, workers)(text)
	} else if text = string(doc); json.Valid(doc) { // it may be several
		return doc
	}
	doc, err := json.Marshal(text)
	if err != nil {
		panic("BUG: a string that does not marshal: " + err.Error())
	}
	return doc
}

// errNobody is the error of a call that nobody is selected for.
func (sel *selection) errNobody() *pd.Error {
	if sel.model != "" {
		return &pd.Error{
			Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotFound, Param: "model",
			Code: "model_not_found", Message: "no such worker serves this model",
		}
	}
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.NoWorker, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "no_worker", Message: "there is no such worker now",
	}
}
