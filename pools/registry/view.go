package registry

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// View is a worker as operators see it: one for each rank where ranks are workers.
// Its Reason says why it is out. A worker that could not be made one of the set's
// is there too, with a state of starting or dead.
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
	Message string    // why it has come no further; may be empty
	At      time.Time // since when it is so
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

// The states of a job. One that has failed goes on being tried, except for a
// switch.
const (
	JobPending    JobStatus = "pending"    // it waits for another one
	JobProcessing JobStatus = "processing" // it goes on
	JobFailed     JobStatus = "failed"     // it has not succeeded yet
)

// Status is all that operators see.
type Status struct {
	Workers []View
	Avoided []pools.PairStatus
}

// Status lists the workers, prefill first, and behind the others of their role
// those that could not be made members.
func (r *Registry) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.set.Status()
	out := Status{Workers: make([]View, 0, len(now.Workers)), Avoided: now.Avoided}
	for _, w := range now.Workers {
		v := View{WorkerStatus: w}
		if e := r.byID(w.ID); e != nil && len(e.members) > 0 {
			v.of(e)
		}
		out.Workers = append(out.Workers, v)
	}
	absent := false
	for _, e := range r.entries {
		if e.stays() && len(e.members) == 0 {
			absent = true
			out.Workers = append(out.Workers, r.absentee(e))
		}
	}
	if absent {
		slices.SortStableFunc(out.Workers, func(a, b View) int { return cmp.Compare(a.Worker.Role, b.Worker.Role) })
	}
	return out
}

// absentee is the view of an entry that has no member.
func (r *Registry) absentee(e *entry) View {
	w, _ := r.worker(e) // what is wrong with it has been noted
	v := View{WorkerStatus: pools.WorkerStatus{
		Worker: w, ID: w.ID, Role: w.Role.String(), State: pools.Starting, Breaker: "closed",
	}}
	if w.Role == pd.Prefill {
		v.Bootstrap = pools.ReachUnknown
	}
	if e.failed.text != "" && !e.waits() {
		v.State = pools.Dead
	}
	v.of(e)
	return v
}

// of fills in what the registry knows of a worker.
func (v *View) of(e *entry) {
	v.Source, v.Since, v.Facts, v.Leaving, v.Refused = e.source(), e.since, e.facts, !e.leaving.IsZero(), e.refused.text
	v.Job = e.job(&v.WorkerStatus)
	switch {
	case e.held.text != "":
		v.Reason = e.held.text
	case v.Job != nil && v.Job.Message != "":
		v.Reason = v.Job.Message
	case v.State == pools.Draining && v.Reason == "":
		v.Reason = "drained by an operator"
	}
}

// waits reports whether the entry waits for another one to give its id up.
func (e *entry) waits() bool { return e.failed.text == errTaken.Error() }

// job is what is still to be done for an entry, one of whose members is as st
// says.
func (e *entry) job(st *pools.WorkerStatus) *Job {
	switch {
	case e.move != nil:
		return &Job{JobSwitch, JobProcessing, e.move.step(st.InFlight), e.move.since}
	case !e.leaving.IsZero():
		return &Job{JobRemove, JobProcessing, "it is drained to be removed", e.leaving}
	case e.held.text != "":
		return &Job{JobSwitch, JobFailed, e.held.text, e.held.since}
	case e.waits():
		return &Job{JobAdd, JobPending, e.failed.text, e.failed.since}
	case e.failed.text != "":
		return &Job{JobAdd, JobFailed, e.failed.text, e.failed.since}
	case e.refused.text != "":
		return &Job{JobAdd, JobFailed, e.refused.text, e.refused.since}
	case st.State == pools.Starting:
		return &Job{JobAdd, JobProcessing, st.Reason, e.since}
	case st.State == pools.Dead && !e.met:
		return &Job{JobAdd, JobFailed, st.Reason, e.since}
	default:
		return nil
	}
}
