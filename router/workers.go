package router

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// drainTimeoutMax is the longest that a client may give a draining worker.
const drainTimeoutMax = 24 * time.Hour

// Fleet is what the routes under /workers show and change. All of it is needed,
// and none of it may block.
type Fleet struct {
	Status        func() pools.Status
	Drain, Resume func(id pd.WorkerID) bool // false for an unknown worker
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

func infoOf(w pools.WorkerStatus) workerInfo {
	healthy := w.State != pools.Dead && w.State != pools.Starting
	return workerInfo{w, w.Role, healthy, w.InFlight}
}

// workers lists them all, prefill first.
func (a *App) workers(v *visit) error {
	status := a.cfg.Fleet.Status()
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
	if !a.drains.change(id, a.cfg.Fleet.Drain, limit, cut) {
		return unknownWorker()
	}
	return v.showWorker(id)
}

// resumeWorker undoes drainWorker.
func (a *App) resumeWorker(v *visit) error {
	id := v.workerID()
	if !a.drains.change(id, a.cfg.Fleet.Resume, 0, nil) {
		return unknownWorker()
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
	for _, w := range v.app.cfg.Fleet.Status().Workers {
		if w.ID == id {
			return v.document(http.StatusOK, infoOf(w))
		}
	}
	return unknownWorker()
}

func unknownWorker() error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusNotFound,
		Code: "WORKER_NOT_FOUND", Message: "there is no worker with this id",
	}
}
