package pools

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pd"
)

// roles are those of which a plan takes one worker each.
func (s *Set) roles() []pd.Role {
	if s.opt.Regular {
		return []pd.Role{pd.Regular}
	}
	return []pd.Role{pd.Prefill, pd.Decode}
}

// mayForce reports whether a call that found nobody may try open breakers: all
// of a role, or of the pairs that are left, are open and nothing else is in its
// way, and it is a second since that was last done.
func (c *choice) mayForce() bool {
	refused := c.set.pairs.some()
	for _, role := range c.set.roles() {
		switch members := c.group.pools[role]; {
		case slices.ContainsFunc(members, c.usable):
		case slices.ContainsFunc(members, (*Member).well) || !slices.ContainsFunc(members, c.forcible):
			return false // full, or not there
		default:
			refused = true
		}
	}
	now, last := c.set.instant(c.now), c.set.forced.Load()
	return refused && now-last >= int64(trialEvery) && c.set.forced.CompareAndSwap(last, now)
}

// well reports whether the member serves and its breaker is closed.
func (m *Member) well() bool { return m.flags.Load()&(flagsOut|flagBroken) == 0 }

// none is the error of a call that nobody was found for. It names the role that
// is lacking and what keeps its workers.
func (c *choice) none() *pd.Error {
	for _, role := range c.set.roles() {
		switch members := c.group.pools[role]; {
		case slices.ContainsFunc(members, c.usable):
		case slices.ContainsFunc(members, (*Member).well):
			return c.atCapacity(role)
		default:
			return noWorker("no_"+role.String()+"_available", "no "+role.String()+" worker is available"+c.group.named()+count(members))
		}
	}
	if c.full != nil { // though it may have room by now
		return c.atCapacity(c.full.Worker.Role)
	}
	if c.unwanted {
		return noWorker("no_worker_chosen", "none of the workers that can be used will do for this request; if it names one, that one cannot be used")
	}
	if c.set.opt.Regular {
		return noWorker("no_worker_available", "none of the workers that are left can be used for this request")
	}
	return noWorker("no_pair_available", "no two of the workers that are left can be used together")
}

// named is for which model a worker is lacking.
func (g *group) named() string {
	if g.model == "" {
		return ""
	}
	return fmt.Sprintf(" for model %q", g.model)
}

func (c *choice) atCapacity(role pd.Role) *pd.Error {
	c.set.opt.Bound("worker_inflight")
	return &pd.Error{
		Stage: pd.StagePlan, Kind: pd.Overload, Status: http.StatusTooManyRequests, RetryAfter: "1",
		Code:    role.String() + "_at_capacity",
		Message: "every " + role.String() + " worker that can be used has as many requests as it may have",
	}
}

func noWorker(code, message string) *pd.Error {
	return &pd.Error{
		Stage: pd.StagePlan, Kind: pd.NoWorker, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: code, Message: message,
	}
}

// count says how many members are in which state.
func count(members []*Member) string {
	number := make(map[State]int)
	for _, m := range members {
		number[m.State()]++
	}
	var parts []string
	for _, state := range states {
		if n := number[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if parts == nil {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
