package router

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

// drainTimeoutMax is the longest that a client may give a draining worker.
const drainTimeoutMax = 24 * time.Hour

// Fleet is what the routes under /workers show and change. All of it is needed.
type Fleet struct {
	Registry *registry.Registry
	// Cut ends the requests that a worker is busy with, and says how many.
	Cut func(id pd.WorkerID) int
}

// workerInfo is a worker as the gateway's API words it, with its state.
type workerInfo struct {
	pools.WorkerStatus
	Type    string `json:"worker_type"`
	Healthy bool   `json:"is_healthy"`
	Load    int64  `json:"load"`
}

func infoOf(w registry.View) workerInfo {
	healthy := w.State != pools.Dead && w.State != pools.Starting
	return workerInfo{w.WorkerStatus, w.Role, healthy, w.InFlight}
}

// workers lists them all, prefill first.
func (a *App) workers(v *visit) error {
	status := a.cfg.Fleet.Registry.Status()
	out := struct {
		Workers []workerInfo       `json:"workers"`
		Total   int                `json:"total"`
		Stats   map[string]int     `json:"stats"`
		Avoided []pools.PairStatus `json:"avoided_pairs,omitempty"`
	}{Workers: []workerInfo{}, Total: len(status.Workers), Avoided: status.Avoided}
	out.Stats = map[string]int{"prefill_count": 0, "decode_count": 0, "regular_count": 0}
	for _, w := range status.Workers {
		out.Workers = append(out.Workers, infoOf(w))
		out.Stats[w.Role+"_count"]++
	}
	return v.document(http.StatusOK, out)
}

// worker shows one.
func (a *App) worker(v *visit) error {
	return v.showWorker(v.workerID())
}

// drainWorker has a worker take no new work. What it has goes on, with
// ?timeout_secs=N for that long at most; when it is drained it may be deleted.
func (a *App) drainWorker(v *visit) error {
	id := v.workerID()
	limit, err := drainLimit(v.c.Query("timeout_secs"))
	if err != nil {
		return err
	}
	cut := func() {
		defer a.recovered("")
		n := a.cfg.Fleet.Cut(id)
		a.cfg.Log.Warn().Str("worker", string(id)).Int("cut_requests", n).Msg("the worker's time to drain is over")
	}
	if err := a.drains.change(id, a.cfg.Fleet.Registry.Drain, limit, cut); err != nil {
		return changeError(err)
	}
	return v.showWorker(id)
}

// resumeWorker undoes drainWorker.
func (a *App) resumeWorker(v *visit) error {
	id := v.workerID()
	if err := a.drains.change(id, a.cfg.Fleet.Registry.Resume, 0, nil); err != nil {
		return changeError(err)
	}
	return v.showWorker(id)
}

// workerID is the id in the path, copied: fiber reuses its memory.
func (v *visit) workerID() pd.WorkerID { return pd.WorkerID(strings.Clone(v.c.Params("id"))) }

func drainLimit(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= drainTimeoutMax.Seconds()) {
		return 0, pd.InvalidField("timeout_secs", "timeout_secs must be a number of seconds, more than 0 and at most a day")
	}
	return max(1, time.Duration(seconds*float64(time.Second))), nil
}

func (v *visit) showWorker(id pd.WorkerID) error {
	for _, w := range v.app.cfg.Fleet.Registry.Status().Workers {
		if w.ID == id {
			return v.document(http.StatusOK, infoOf(w))
		}
	}
	return unknownWorker()
}

// changeError is the answer to a change that the registry refuses.
func changeError(err error) error {
	if errors.Is(err, registry.ErrUnknown) {
		return unknownWorker()
	}
	e := &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusBadRequest, Code: "BAD_REQUEST", Message: err.Error(),
	}
	switch {
	case errors.Is(err, registry.ErrExists):
		e.Status, e.Code = http.StatusConflict, "WORKER_ALREADY_EXISTS"
	case errors.Is(err, registry.ErrLeaving):
		e.Status, e.Code = http.StatusConflict, "WORKER_LEAVING"
	}
	return e
}

func unknownWorker() error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotFound,
		Code: "WORKER_NOT_FOUND", Message: "there is no worker with this id",
	}
}
