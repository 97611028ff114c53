package pools

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// trialEvery is how often a request is sent on although every breaker of a role
// is open: without that, nobody would find out that the workers are well again.
const trialEvery = time.Second

// Plan implements [pd.Planner]. Both members come from one snapshot, and nothing
// is taken unless both were found.
func (s *Set) Plan(_ context.Context, req *pd.Request, samples int, avoid []pd.WorkerID) ([]*pd.Plan, error) {
	snap := s.current.Load()
	c := newChoice(s, samples, avoid)
	picked := c.pick(req, snap)
	if picked == nil && c.mayForce(snap) {
		c.force = true
		picked = c.pick(req, snap)
	}
	if picked == nil {
		return nil, c.none(snap)
	}
	plans := make([]*pd.Plan, samples)
	for i := range plans {
		plans[i] = picked.plan()
	}
	return plans, nil
}

// choice is the search for one pair.
type choice struct {
	set     *Set
	samples int
	avoid   []pd.WorkerID
	now     time.Time
	force   bool // breakers are passed over
}

func newChoice(s *Set, samples int, avoid []pd.WorkerID) *choice {
	return &choice{set: s, samples: samples, avoid: avoid, now: time.Now()}
}

// picked is a pair with all that was taken for it.
type picked struct {
	prefill, decode           *Member
	ofPrefill, ofDecode, both *claim // both is nil for a pair that has never failed
}

// pick finds a pair that everybody lets pass, and takes it.
func (c *choice) pick(req *pd.Request, snap *snapshot) *picked {
	prefills := c.candidates(snap.prefill)
	for len(prefills) > 0 {
		prefill := c.set.opt.Prefill.Pick(req, prefills)
		if prefill == nil {
			return nil
		}
		if claim := c.take(prefill); claim != nil {
			if p := c.partner(req, snap, prefill, claim); p != nil {
				return p
			}
			c.untake(prefill, claim)
		}
		prefills = without(prefills, prefill)
	}
	return nil
}

// partner finds a decode for a prefill that was taken.
func (c *choice) partner(req *pd.Request, snap *snapshot, prefill *Member, taken *claim) *picked {
	decodes := c.friends(prefill, c.candidates(snap.decode))
	for len(decodes) > 0 {
		decode := c.set.opt.Decode.Pick(req, decodes)
		if decode == nil {
			return nil
		}
		if claim := c.take(decode); claim != nil {
			if both, ok := c.together(prefill, decode); ok {
				return &picked{prefill, decode, taken, claim, both}
			}
			c.untake(decode, claim)
		}
		decodes = without(decodes, decode)
	}
	return nil
}

// candidates are the members that may be used: others than those to be avoided
// if there are any, and among those others than the busy ones. It allocates only
// when some member may not be used.
func (c *choice) candidates(members []*Member) []*Member {
	usable := keep(members, c.usable)
	if len(c.avoid) > 0 {
		usable = prefer(usable, func(m *Member) bool { return !slices.Contains(c.avoid, m.Worker.ID) })
	}
	return prefer(usable, func(m *Member) bool { return !m.isBusy(c.now) })
}

// usable reports whether a member could be taken.
func (c *choice) usable(m *Member) bool {
	if c.set.opt.MaxInFlight > 0 && m.full(c.samples) {
		return false
	}
	flags := m.flags.Load()
	if flags == 0 {
		return true
	}
	return flags&flagsOut == 0 && (flags&flagBroken == 0 || c.force || m.breaker.mayAllow(c.now))
}

// friends are the decodes that the prefill does not fail with.
func (c *choice) friends(prefill *Member, decodes []*Member) []*Member {
	if c.force || !c.set.pairs.some.Load() {
		return decodes
	}
	return keep(decodes, func(decode *Member) bool {
		b := c.set.pairs.find(prefill, decode)
		return b == nil || b.mayAllow(c.now)
	})
}

// take reserves a place on a member and passes its breaker; nil when another
// request was faster.
func (c *choice) take(m *Member) *claim {
	if !m.reserve(c.samples) {
		return nil
	}
	if c.force && m.breaker.state.Load() != closed {
		return m.breaker.force(c.samples)
	}
	claim := m.breaker.allow(c.samples)
	if claim == nil {
		m.inFlight.Add(-int64(c.samples))
	}
	return claim
}

func (c *choice) untake(m *Member, claim *claim) {
	claim.settle(errNeutral)
	m.inFlight.Add(-int64(c.samples))
}

// together passes the breaker of the pair, if it has one that is not closed.
func (c *choice) together(prefill, decode *Member) (both *claim, ok bool) {
	b := c.set.pairs.find(prefill, decode)
	switch {
	case b == nil || b.state.Load() == closed:
		return nil, true
	case c.force:
		return b.force(c.samples), true
	default:
		both = b.allow(c.samples)
		return both, both != nil
	}
}

// plan makes one sample's plan.
func (p *picked) plan() *pd.Plan {
	return pd.NewPlan(p.prefill.lease(p.ofPrefill), p.decode.lease(p.ofDecode), func(first, second pd.Outcome) {
		switch {
		case p.both != nil && (first == pd.PairFault || second == pd.PairFault):
			p.both.end(errFault)
		case p.both != nil && first == pd.Success && second == pd.Success:
			p.both.end(nil)
		case p.both != nil:
			p.both.end(errNeutral)
		default:
			p.prefill.set.pairs.ended(p.prefill, p.decode, first, second)
		}
		if first == pd.PairFault || second == pd.PairFault {
			p.prefill.doubt() // decode may be the one that is right about it
		}
	})
}

// mayForce reports whether it is time for a request in spite of all breakers:
// both roles have a member that is alive, and a second has passed since the last.
func (c *choice) mayForce(snap *snapshot) bool {
	force := choice{set: c.set, samples: c.samples, now: c.now, force: true}
	if !slices.ContainsFunc(snap.prefill, force.usable) || !slices.ContainsFunc(snap.decode, force.usable) {
		return false
	}
	last := c.set.trial.Load()
	return c.now.UnixNano()-last >= int64(trialEvery) && c.set.trial.CompareAndSwap(last, c.now.UnixNano())
}

// none is the error of a request that no pair was found for. It names the role
// that is lacking and what keeps its workers.
func (c *choice) none(snap *snapshot) *pd.Error {
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		members := snap.of(role)
		well := keep(members, func(m *Member) bool { return m.flags.Load()&(flagsOut|flagBroken) == 0 })
		switch {
		case len(well) == 0:
			return noWorker("no_"+role.String()+"_available", "no "+role.String()+" worker is available"+count(members))
		case !slices.ContainsFunc(well, c.usable): // they are full
			c.set.opt.Bound("worker_inflight")
			return &pd.Error{
				Stage: pd.StagePlan, Kind: pd.Overload, Status: http.StatusTooManyRequests, RetryAfter: "1",
				Code:    role.String() + "_at_capacity",
				Message: "every " + role.String() + " worker has as many requests as it may have",
			}
		}
	}
	return noWorker("no_pair_available", "every pair of workers that is left has failed lately")
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
	for _, state := range []State{Draining, Starting, Dead, Broken, Busy, Ready} {
		if n := number[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if parts == nil {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// keep is members that ok holds for: members itself, if it holds for all.
func keep(members []*Member, ok func(*Member) bool) []*Member {
	for i, m := range members {
		if ok(m) {
			continue
		}
		left := append(make([]*Member, 0, len(members)-1), members[:i]...)
		for _, m := range members[i+1:] {
			if ok(m) {
				left = append(left, m)
			}
		}
		return left
	}
	return members
}

// prefer is the members that ok holds for, or all if it holds for none.
func prefer(members []*Member, ok func(*Member) bool) []*Member {
	if left := keep(members, ok); len(left) > 0 {
		return left
	}
	return members
}

// without is members less one.
func without(members []*Member, out *Member) []*Member {
	return keep(members, func(m *Member) bool { return m != out })
}
