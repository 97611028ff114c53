package router

import (
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/registry"
)

// unknownModel is what the gateway calls the model of a worker that has not said.
const unknownModel = "unknown"

// workerInfo is a worker by the keys of the gateway's API, with what is known of
// it here beside them. It is the one document that shows addresses: the API names
// workers by them, and whoever has the router's key may add others. It shows no
// key.
type workerInfo struct {
	pools.WorkerStatus
	URL           string            `json:"url"`
	Model         string            `json:"model_id"`
	Priority      int               `json:"priority"`
	Cost          float64           `json:"cost"`
	Type          string            `json:"worker_type"`
	Healthy       bool              `json:"is_healthy"`
	Load          int64             `json:"load"`
	Connection    string            `json:"connection_mode"`
	BootstrapPort int               `json:"bootstrap_port,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Unchecked     bool              `json:"disable_health_check"`
	Job           *jobStatus        `json:"job_status,omitempty"`

	Source   string       `json:"source,omitempty"` // who named it: api, or a source's name
	DPSize   int          `json:"dp_size,omitempty"`
	DPRank   *int         `json:"dp_rank,omitempty"`
	KVTokens int          `json:"max_total_num_tokens,omitempty"`
	Version  string       `json:"engine_version,omitempty"`
	Ranks    []workerInfo `json:"ranks,omitempty"` // where each is a worker
}

// jobStatus is what is under way with a worker, as the gateway words it.
type jobStatus struct {
	Type      string             `json:"job_type"` // AddWorker, RemoveWorker or SwitchWorkerRole
	URL       string             `json:"worker_url"`
	Status    registry.JobStatus `json:"status"`
	Message   string             `json:"message"`
	Timestamp int64              `json:"timestamp"` // since when it is so, in Unix seconds
}

func infoOf(v *registry.View) workerInfo {
	w := v.Worker
	info := workerInfo{
		WorkerStatus: v.WorkerStatus, URL: w.URL, Model: w.Model, Priority: w.Priority, Cost: w.Cost, Type: v.Role,
		Healthy: v.State != pools.Dead && v.State != pools.Starting, Load: v.InFlight, Connection: "HTTP",
		BootstrapPort: w.BootstrapPort, Metadata: w.Labels, Unchecked: w.Unchecked, Job: jobOf(v), Source: v.Source,
		DPSize: w.DPSize, DPRank: w.Rank, KVTokens: w.KVTokens, Version: v.Facts.Version,
	}
	if info.Model == "" {
		info.Model = unknownModel
	}
	return info
}

// jobOf is what is under way with a worker, nil when nothing is.
func jobOf(v *registry.View) *jobStatus {
	if v.Job == nil {
		return nil
	}
	job := &jobStatus{URL: v.Worker.URL, Status: v.Job.Status, Message: v.Job.Message, Timestamp: v.Job.At.Unix()}
	switch v.Job.Type {
	case registry.JobAdd:
		job.Type = "AddWorker"
		if job.Message == "" {
			job.Message = "its engine has not answered yet"
		}
	case registry.JobRemove:
		job.Type = "RemoveWorker"
	case registry.JobSwitch:
		job.Type = "SwitchWorkerRole"
	}
	return job
}

// infoOfEngine is a worker, or an engine whose ranks are workers: its load is
// theirs, and its state that of the first of them that is not ready.
func infoOfEngine(id pd.WorkerID, found []registry.View) workerInfo {
	if len(found) == 1 {
		return infoOf(&found[0])
	}
	shown := 0
	for i := range found {
		if found[i].State != pools.Ready {
			shown = i
			break
		}
	}
	whole := infoOf(&found[shown])
	whole.ID, whole.DPRank, whole.Served = id, nil, nil
	whole.InFlight, whole.Load, whole.Drained = 0, 0, true
	for i := range found {
		rank := infoOf(&found[i])
		whole.Ranks = append(whole.Ranks, rank)
		whole.InFlight += rank.InFlight
		whole.Load += rank.Load
		whole.Drained = whole.Drained && rank.Drained
	}
	return whole
}
