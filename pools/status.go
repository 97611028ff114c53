package pools

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Status is what operators see of the pools.
type Status struct {
	Workers []WorkerStatus `json:"workers"`
	// Avoided lists the pairs whose workers do well with others only.
	Avoided []PairStatus `json:"avoided_pairs,omitempty"`
}

// WorkerStatus is one worker's state. In JSON it shows no address.
type WorkerStatus struct {
	Worker   *pd.Worker  `json:"-"`
	ID       pd.WorkerID `json:"id"`
	Role     string      `json:"role"` // "prefill", "decode" or "regular"
	State    State       `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	InFlight int64       `json:"in_flight"`
	Breaker  string      `json:"breaker"` // "closed", "open" or "half_open"
	// Bootstrap is what is known of a prefill's bootstrap server.
	Bootstrap Reach `json:"bootstrap,omitempty"`
	// Drained says that the worker takes no work and has none: it may be deleted.
	Drained bool `json:"drained,omitempty"`
	// LastError is how the last leg that failed did; nil if none has.
	LastError *LastError `json:"last_error,omitempty"`
	// Served counts what the worker's engine told of its prompts; nil before it has.
	Served *Served `json:"served,omitempty"`
}

// LastError is how a leg on a worker failed.
type LastError struct {
	At   time.Time `json:"at"`
	Code string    `json:"code"` // of the error, or the engine's status
}

// Served counts the requests whose answers told of their tokens: those of the
// prompts, and how many of these the engine had in its cache.
type Served struct {
	Requests     int64 `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
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
	for role := pd.Prefill; role <= pd.Regular; role++ {
		for _, m := range snap.members {
			if m.Worker.Role == role {
				st.Workers = append(st.Workers, m.status())
			}
		}
	}
	for i := range st.Workers {
		if w := &st.Workers[i]; w.Reason == "" {
			w.Reason = cmp.Or(snap.alone(w.Worker.Model, s.roles()), w.trouble())
		}
	}
	return st
}

// trouble says what an operator should know of a worker that is alive, empty for
// nothing.
func (w *WorkerStatus) trouble() string {
	switch {
	case w.State == Broken:
		return "its breaker is not closed: what it was sent failed"
	case w.Bootstrap == ReachDown && (w.State == Ready || w.State == Busy):
		return "its bootstrap server cannot be reached from here"
	default:
		return ""
	}
}

// alone says why a worker of model that is ready is given nothing, empty if it is
// given work.
func (snap *snapshot) alone(model string, roles []pd.Role) string {
	g := snap.groups[model]
	if g == nil || model == "" {
		return ""
	}
	role, ok := g.lacks(roles)
	if ok {
		return ""
	}
	return fmt.Sprintf("there is no %s worker for its model %q", role, model)
}

func (m *Member) status() WorkerStatus {
	st := WorkerStatus{
		Worker: m.Worker, ID: m.Worker.ID, Role: m.Worker.Role.String(), State: m.State(), Reason: m.why(),
		InFlight: m.InFlight(), Breaker: m.breaker.state().String(), Drained: m.Drained(),
		LastError: m.lastError.Load(),
	}
	if n := m.served.requests.Load(); n > 0 {
		st.Served = &Served{n, m.served.prompt.Load(), m.served.cached.Load()}
	}
	if m.Worker.Role == pd.Prefill {
		st.Bootstrap = m.Reach()
	}
	return st
}
