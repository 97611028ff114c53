package health

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// engine is the members that one engine is: itself, or each of its data-parallel
// ranks. It is asked once for all of them.
type engine []*pools.Member

// enginesOf groups members that are to be looked at, in their order.
func enginesOf(members []*pools.Member) []engine {
	var engines []engine
	of := make(map[string]int) // by URL, of those that have ranks
	for _, m := range members {
		switch i, known := of[m.Worker.URL]; {
		case m.Worker.Unchecked:
		case m.Worker.Rank == nil:
			engines = append(engines, engine{m})
		case known:
			engines[i] = append(engines[i], m)
		default:
			of[m.Worker.URL] = len(engines)
			engines = append(engines, engine{m})
		}
	}
	return engines
}

// worker is the one that the engine is asked as.
func (e engine) worker() *pd.Worker { return e[0].Worker }

// is reports whether both are the same members, known since the same moment.
func (e engine) is(other engine) bool { return slices.EqualFunc(e, other, (*pools.Member).Is) }

func (e engine) up() {
	for _, m := range e {
		m.Up()
	}
}

func (e engine) down(reason string) {
	for _, m := range e {
		m.Down(reason)
	}
}

func (e engine) overdue(reason string) {
	for _, m := range e {
		m.Overdue(reason)
	}
}

// suspected reports whether requests have had trouble with any member since that
// was last asked.
func (e engine) suspected() (any bool) {
	for _, m := range e {
		any = m.Suspected() || any // each forgets it
	}
	return any
}

// dead reports whether a member has been found dead by others.
func (e engine) dead() bool {
	return slices.ContainsFunc(e, func(m *pools.Member) bool { return m.State() == pools.Dead })
}

// worksSince reports whether any member has shown a sign of life behind t.
func (e engine) worksSince(t time.Time) bool {
	return slices.ContainsFunc(e, func(m *pools.Member) bool { return m.LastProgress().After(t) })
}

func (e engine) setReach(reach pools.Reach) {
	for _, m := range e {
		m.SetReach(reach)
	}
}

func (e engine) blame() {
	for _, m := range e {
		m.Blame()
	}
}
