package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// entry is one worker, by its URL.
type entry struct {
	id     pd.WorkerID
	url    string
	claims []claim // the first counts; none once it is to go
	// change is what operators have changed of what the source says.
	change Change
	// deleted says that an operator has removed what a source still names.
	deleted bool
	known

	members []*pd.Worker // those in the set, one for each rank; none while it is not there
	move    *move        // its role is being switched
}

// known is what is known of an entry from when it comes until it has gone.
type known struct {
	since    time.Time
	facts    Facts
	met      bool   // its engine has been asked since it is in the set, and may join
	refused  reason // why the engine does not join, though it is well
	failed   reason // why it could not be made a member when that was last tried
	drained  bool   // an operator has it take no work
	switched time.Time

	leaving time.Time // since when it is drained to go, zero while it is to stay

	held reason // why a switch of its role has left it out
	lost bool   // it takes part again, as what it is, once it has said what that is
}

// claim is what one source says of a worker.
type claim struct {
	source string
	spec   Spec
}

// reason is why something is not as it is to be, and since when; the zero value is
// none.
type reason struct {
	text  string
	since time.Time
}

// is notes a reason, the empty text that there is none.
func (r *reason) is(text string) {
	switch text {
	case r.text:
	case "":
		*r = reason{}
	default:
		*r = reason{text, time.Now()}
	}
}

// isError notes an error, which may be nil.
func (r *reason) isError(err error) {
	if err == nil {
		r.is("")
	} else {
		r.is(err.Error())
	}
}

// stays reports whether the worker is to take part.
func (e *entry) stays() bool { return len(e.claims) > 0 && !e.deleted }

// spec is what counts: what the first source says, and what operators have changed
// of it.
func (e *entry) spec() Spec { return e.change.over(e.claims[0].spec) }

// source is who named it first of those that name it.
func (e *entry) source() string {
	if len(e.claims) == 0 {
		return ""
	}
	return e.claims[0].source
}

// claimOf is the index of a source's claim, -1 if it has none.
func (e *entry) claimOf(source string) int {
	return slices.IndexFunc(e.claims, func(c claim) bool { return c.source == source })
}

// become notes the role of a worker that has been switched.
func (e *entry) become(role pd.Role) {
	e.change.role = nil
	if role != e.claims[0].spec.Role {
		e.change.role = &role
	}
}

// out reports whether the entry's members are to take no work.
func (e *entry) out(spec *Spec) bool {
	return e.drained || e.held.text != "" && (!e.lost || spec.Unchecked)
}

// equal reports whether both say the same.
func (s Spec) equal(other Spec) bool {
	labels := maps.Equal(s.Labels, other.Labels)
	return labels && s.ID == other.ID && s.URL == other.URL && s.Role == other.Role && s.Bootstrap == other.Bootstrap &&
		s.DPSize == other.DPSize && s.Model == other.Model && s.APIKey == other.APIKey &&
		s.Priority == other.Priority && s.Cost == other.Cost && s.Unchecked == other.Unchecked
}
