package router

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

// drainTimeoutMax is the longest that a client may give a draining worker.
const drainTimeoutMax = 24 * time.Hour

// Fleet is what the admin API shows and changes. All of it is needed.
type Fleet struct {
	Registry *registry.Registry
	// Cut ends the requests that a worker is busy with, and says how many.
	Cut func(id pd.WorkerID) int
}

// workerRoutes are the admin API, which takes a fleet.
func (a *App) workerRoutes() {
	if a.cfg.Fleet.Registry == nil {
		return
	}
	f := a.fiber
	f.Get("/workers", a.route("workers", flat, a.workers))
	f.Post("/workers", a.route("worker_add", flat, a.addWorker))
	f.Get("/workers/:id", a.route("worker", flat, a.worker))
	f.Put("/workers/:id", a.route("worker_update", flat, a.putWorker))
	f.Patch("/workers/:id", a.route("worker_update", flat, a.patchWorker))
	f.Delete("/workers/:id", a.route("worker_remove", flat, a.removeWorker))
	f.Post("/workers/:id/drain", a.route("worker_drain", flat, a.drainWorker))
	f.Post("/workers/:id/resume", a.route("worker_resume", flat, a.resumeWorker))
	f.Post("/pd_role_switch", a.route("pd_role_switch", flat, a.switchRole))
}

// workers lists them all, or those of ?model=NAME, prefill first.
func (a *App) workers(v *visit) error {
	status := a.cfg.Fleet.Registry.Status()
	out := struct {
		Workers []workerInfo       `json:"workers"`
		Total   int                `json:"total"`
		Stats   map[string]int     `json:"stats"`
		Avoided []pools.PairStatus `json:"avoided_pairs,omitempty"`
		// Troubles is what is wrong with those who say which workers there are.
		Troubles map[string]sourceTrouble `json:"source_errors,omitempty"`
	}{Workers: []workerInfo{}, Avoided: status.Avoided}
	out.Stats = map[string]int{"prefill_count": 0, "decode_count": 0, "regular_count": 0}
	model := v.c.Query("model")
	for i := range status.Workers {
		info := infoOf(&status.Workers[i])
		if model != "" && info.Model != model {
			continue
		}
		out.Workers = append(out.Workers, info)
		out.Stats[info.Role+"_count"]++
	}
	out.Total = len(out.Workers)
	for source, trouble := range a.cfg.Fleet.Registry.Troubles() {
		if out.Troubles == nil {
			out.Troubles = make(map[string]sourceTrouble)
		}
		out.Troubles[source] = sourceTrouble(trouble)
	}
	return v.document(http.StatusOK, out)
}

// sourceTrouble is what last went wrong with a source of workers. What it said
// before goes on.
type sourceTrouble struct {
	At  time.Time `json:"at"`
	Err string    `json:"error"`
}

// worker shows one.
func (a *App) worker(v *visit) error {
	id, err := v.workerID()
	if err != nil {
		return err
	}
	return v.showWorker(id)
}

// drainWorker has a worker take no new work. What it has goes on, with
// ?timeout_secs=N for that long at most; when it is drained it may be deleted.
func (a *App) drainWorker(v *visit) error {
	id, err := v.workerID()
	if err != nil {
		return err
	}
	limit, err := secondsOf("timeout_secs", v.c.Query("timeout_secs"), drainTimeoutMax)
	if err != nil {
		return err
	}
	ids := []pd.WorkerID{id}
	if ranks := a.found(id); len(ranks) > 0 {
		ids = ids[:0]
		for _, w := range ranks {
			ids = append(ids, w.ID)
		}
	}
	cut := func() {
		defer a.recovered("")
		a.cutDraining(ids)
	}
	if err := a.drains.change(id, a.cfg.Fleet.Registry.Drain, limit, cut); err != nil {
		return changeError(err)
	}
	return v.showWorker(id)
}

// cutDraining ends what workers are busy with whose time to drain is over. One
// that takes work has been deleted meanwhile, and added again.
func (a *App) cutDraining(ids []pd.WorkerID) {
	for _, id := range ids {
		if now := a.found(id); len(now) > 0 && now[0].State != pools.Draining {
			continue
		}
		n := a.cfg.Fleet.Cut(id)
		a.cfg.Log.Warn().Str("worker", string(id)).Int("cut_requests", n).Msg("the worker's time to drain is over")
	}
}

// resumeWorker undoes drainWorker.
func (a *App) resumeWorker(v *visit) error {
	id, err := v.workerID()
	if err != nil {
		return err
	}
	if err := a.drains.change(id, a.cfg.Fleet.Registry.Resume, 0, nil); err != nil {
		return changeError(err)
	}
	return v.showWorker(id)
}

// workerID is the id in the path, copied: fiber reuses its memory.
func (v *visit) workerID() (pd.WorkerID, error) {
	id, err := url.PathUnescape(strings.Clone(v.c.Params("id")))
	if err != nil {
		return "", unknownWorker()
	}
	return pd.WorkerID(id), nil
}

// secondsOf reads a number of seconds, more than 0 and at most limit; 0 if there
// is none.
func secondsOf(name, text string, limit time.Duration) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= limit.Seconds()) {
		return 0, pd.InvalidField(name, fmt.Sprintf("%s must be a number of seconds, more than 0 and at most %.0f", name, limit.Seconds()))
	}
	return max(1, time.Duration(seconds*float64(time.Second))), nil
}

// found is worker id as operators see it: one, or one for each rank of the engine
// that has the id.
func (a *App) found(id pd.WorkerID) (out []registry.View) {
	for _, w := range a.cfg.Fleet.Registry.Status().Workers {
		if w.ID == id || engineID(w.Worker) == id {
			out = append(out, w)
		}
	}
	return out
}

func (v *visit) showWorker(id pd.WorkerID) error {
	found := v.app.found(id)
	if len(found) == 0 {
		return unknownWorker()
	}
	return v.document(http.StatusOK, infoOfEngine(id, found))
}

// changeError is the answer to a change that the registry refuses.
func changeError(err error) *pd.Error {
	e := badRequest(err.Error())
	switch {
	case errors.Is(err, registry.ErrUnknown):
		return unknownWorker()
	case errors.Is(err, registry.ErrFull):
		e.Status, e.Code = http.StatusServiceUnavailable, "TOO_MANY_WORKERS"
	case errors.Is(err, registry.ErrExists):
		e.Status, e.Code = http.StatusConflict, "WORKER_ALREADY_EXISTS"
	case errors.Is(err, registry.ErrLeaving):
		e.Status, e.Code = http.StatusConflict, "WORKER_LEAVING"
	case errors.Is(err, registry.ErrBusySwitching):
		e.Status, e.Code = http.StatusConflict, "SWITCH_IN_PROGRESS"
	}
	return e
}

func badRequest(message string) *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusBadRequest, Code: "BAD_REQUEST", Message: message,
	}
}

func unknownWorker() *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotFound,
		Code: "WORKER_NOT_FOUND", Message: "there is no worker with this id",
	}
}
