package pools

import "github.com/tandem-pd/tandem/pd"

// Status is what operators see of the pools.
type Status struct {
	Workers []WorkerStatus `json:"workers"`
	// Avoided lists the pairs whose workers do well with others only.
	Avoided []PairStatus `json:"avoided_pairs,omitempty"`
}

// WorkerStatus is one worker's state. It shows no address.
type WorkerStatus struct {
	ID       pd.WorkerID `json:"id"`
	Role     string      `json:"role"` // "prefill" or "decode"
	State    State       `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	InFlight int64       `json:"in_flight"`
	Breaker  string      `json:"breaker"` // "closed", "open" or "half_open"
	// Bootstrap is what is known of a prefill's bootstrap server.
	Bootstrap Reach `json:"bootstrap,omitempty"`
	// Drained says that the worker takes no work and has none: it may be deleted.
	Drained bool `json:"drained,omitempty"`
}

// PairStatus is a pair that is avoided.
type PairStatus struct {
	Prefill pd.WorkerID `json:"prefill"`
	Decode  pd.WorkerID `json:"decode"`
}

// Status lists the workers, prefill first, each role in the order in which its
// workers were given.
func (s *Set) Status() Status {
	snap := s.current.Load()
	st := Status{Workers: make([]WorkerStatus, 0, len(snap.members)), Avoided: s.pairs.bad()}
	for _, pool := range [][]*Member{snap.prefill, snap.decode} {
		for _, m := range pool {
			st.Workers = append(st.Workers, m.status())
		}
	}
	return st
}

func (m *Member) status() WorkerStatus {
	st := WorkerStatus{
		ID: m.Worker.ID, Role: m.Worker.Role.String(), State: m.State(), Reason: m.why(),
		InFlight: m.InFlight(), Breaker: m.breaker.state().String(), Drained: m.Drained(),
	}
	if m.Worker.Role == pd.Prefill {
		st.Bootstrap = m.Reach()
	}
	return st
}
