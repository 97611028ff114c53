package pools

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pd"
)

// mayForce reports whether a call that found no pair may try open breakers: all
// of a role, or of the pairs that are left, are open and nothing else is in its
// way, and it is a second since that was last done.
func (c *choice) mayForce(snap *snapshot) bool {
	refused := c.set.pairs.some()
	for _, members := range [][]*Member{snap.prefill, snap.decode} {
		switch {
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

// none is the error of a call that no pair was found for. It names the role that
// is lacking and what keeps its workers.
func (c *choice) none(snap *snapshot) *pd.Error {
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		members := snap.of(role)
		switch {
		case slices.ContainsFunc(members, c.usable):
		case slices.ContainsFunc(members, (*Member).well):
			return c.atCapacity(role)
		default:
			return noWorker("no_"+role.String()+"_available", "no "+role.String()+" worker is available"+count(members))
		}
	}
	if c.full != nil { // though it may have room by now
		return c.atCapacity(c.full.Worker.Role)
	}
	return noWorker("no_pair_available", "no two of the workers that are left can be used together")
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
