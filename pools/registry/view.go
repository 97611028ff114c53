package registry

import (
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// View is a worker as operators see it: one for each rank where ranks are workers.
type View struct {
	pools.WorkerStatus
	// Source is who named it first: "api", or a source's name.
	Source string
	// Since is when it was named.
	Since time.Time
	// Facts are what its engine has said, zero before.
	Facts Facts
	// Leaving says that it is drained to be removed.
	Leaving bool
	// Refused is why its engine does not join although it is well; empty if it may.
	Refused string
	// Job is what is still to be done for it; nil for nothing.
	Job *Job
}

// Job is a change of the fleet that is not over.
type Job struct {
	Type    JobType
	Status  JobStatus
	Message string // why it has come no further; may be empty
	At      time.Time
}

// JobType is what a job is to bring about.
type JobType string

// The types of jobs.
const (
	JobAdd    JobType = "add"
	JobRemove JobType = "remove"
	JobSwitch JobType = "switch"
)

// JobStatus is how far a job has come.
type JobStatus string

// The states of a job. One that has failed is tried again, but by who knows when.
const (
	JobPending    JobStatus = "pending"
	JobProcessing JobStatus = "processing"
	JobFailed     JobStatus = "failed"
)

// Status is all that operators see.
type Status struct {
	Workers []View
	Avoided []pools.PairStatus
}

// Status lists the workers, prefill first.
func (r *Registry) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := make(map[pd.WorkerID]*entry)
	for _, e := range r.entries {
		for _, w := range e.members {
			of[w.ID] = e
		}
	}
	now := r.set.Status()
	out := Status{Workers: make([]View, 0, len(now.Workers)), Avoided: now.Avoided}
	for _, w := range now.Workers {
		v := View{WorkerStatus: w}
		if e := of[w.ID]; e != nil {
			v.Since, v.Facts, v.Leaving, v.Refused = e.since, e.facts, !e.leaving.IsZero(), e.refused
			if len(e.claims) > 0 {
				v.Source = e.claims[0].source
			}
		}
		out.Workers = append(out.Workers, v)
	}
	return out
}
