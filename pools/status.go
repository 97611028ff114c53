package pools

import "github.com/tandem-pd/tandem/pd"

// Status is what operators see of the pools.
type Status struct {
	Workers []WorkerStatus `json:"workers"`
}

// WorkerStatus is one worker's state. It shows no address.
type WorkerStatus struct {
	ID       pd.WorkerID `json:"id"`
	Role     string      `json:"role"` // "prefill" or "decode"
	InFlight int64       `json:"in_flight"`
}

// Status lists the workers, prefill first, each role in the order in which its
// workers were given.
func (s *Set) Status() Status {
	snap := s.current.Load()
	st := Status{Workers: make([]WorkerStatus, 0, len(snap.workers))}
	for _, pool := range [][]*Member{snap.prefill, snap.decode} {
		for _, m := range pool {
			st.Workers = append(st.Workers, WorkerStatus{
				ID: m.Worker.ID, Role: m.Worker.Role.String(), InFlight: m.InFlight(),
			})
		}
	}
	return st
}
