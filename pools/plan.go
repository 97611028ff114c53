package pools

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// trialEvery is how often a call is sent on although every breaker of a role is
// open: without that, nobody would find out soon that the workers are well again.
const trialEvery = time.Second

// Plan implements [pd.Planner]. Both members come from one snapshot and one
// model's pools, and nothing is taken unless both were found.
func (s *Set) Plan(_ context.Context, req *pd.Request, samples int, avoid []pd.WorkerID) ([]*pd.Plan, error) {
	g, err := s.current.Load().group(req)
	if err != nil {
		return nil, err
	}
	c := choice{set: s, group: g, samples: samples, avoid: avoid, now: time.Now()}
	if req != nil {
		c.work = req.Size() / int64(samples)
	}
	p := c.pick(req)
	if p == nil && c.narrowed {
		c.any = true
		p = c.pick(req)
	}
	if p == nil && c.mayForce() {
		c.force = true
		p = c.pick(req)
		c.force = false
	}
	if p == nil {
		return nil, c.none()
	}
	if s.opt.Regular {
		follow(g.policies.Regular, req, p.decode.Member)
		return p.single(samples), nil
	}
	follow(g.policies.Prefill, req, p.prefill.Member)
	follow(g.policies.Decode, req, p.decode.Member)
	return p.plans(samples), nil
}

// follow tells a policy that keeps something of what it was that was chosen.
func follow(p Policy, req *pd.Request, m *Member) {
	if f, ok := p.(Follower); ok {
		f.Chosen(req, m)
	}
}

// pick finds who is to do the work, whom everybody lets pass, and takes them.
func (c *choice) pick(req *pd.Request) *picked {
	if c.set.opt.Regular {
		return c.pickOne(req)
	}
	return c.pickPair(req)
}

// pickOne finds a whole engine.
func (c *choice) pickOne(req *pd.Request) *picked {
	p := &picked{}
	for members := c.candidates(c.group.pools[pd.Regular]); len(members) > 0; {
		m := c.group.policies.Regular.Pick(req, members)
		if m == nil {
			c.unwanted = true
			return nil
		}
		if p.decode.take(m, c) {
			return p
		}
		members = without(members, m)
	}
	return nil
}

// pickPair finds a pair. No prefill is taken before there is a decode that could
// be.
func (c *choice) pickPair(req *pd.Request) *picked {
	decodes := c.candidates(c.group.pools[pd.Decode])
	if len(decodes) == 0 {
		return nil
	}
	p := &picked{}
	for prefills := c.candidates(c.group.pools[pd.Prefill]); len(prefills) > 0; {
		prefill := c.group.policies.Prefill.Pick(req, prefills)
		if prefill == nil {
			c.unwanted = true
			return nil
		}
		if p.prefill.take(prefill, c) {
			found, hopeless := c.partner(req, p, decodes)
			if found {
				return p
			}
			p.prefill.untake(c)
			if hopeless {
				return nil
			}
		}
		prefills = without(prefills, prefill)
	}
	return nil
}

// partner finds a decode for the prefill that p has, and takes it. It is hopeless
// for every other prefill too where the policy wants none of all decodes.
func (c *choice) partner(req *pd.Request, p *picked, decodes []*Member) (found, hopeless bool) {
	all := len(decodes)
	for decodes = c.friends(p.prefill.Member, decodes); len(decodes) > 0; {
		decode := c.group.policies.Decode.Pick(req, decodes)
		if decode == nil {
			c.unwanted = true
			return false, len(decodes) == all
		}
		if p.decode.take(decode, c) {
			if p.join(c) {
				return true, false
			}
			p.decode.untake(c)
		}
		decodes = without(decodes, decode)
	}
	return false, false
}

// picked is a pair with all that was taken for one call. A whole engine stands in
// the place of decode, without a prefill.
type picked struct {
	prefill, decode hold
	both            claim // on the breaker of the pair, if it has one
	known           bool  // it has
	failed          sync.Once
}

// join passes the breaker of the pair, if it has one.
func (p *picked) join(c *choice) bool {
	b := c.set.pairs.find(p.prefill.Worker.ID, p.decode.Worker.ID)
	p.known = b != nil
	if p.known && !b.pass(&p.both, c.now, c.force) {
		return false
	}
	p.both.left.Store(int32(c.samples))
	return true
}

// plans makes the plan of each sample. They share what hears of their ends.
func (p *picked) plans(samples int) []*pd.Plan {
	prefillEnded, prefillProgressed, prefillSettled := p.prefill.ended, p.prefill.progressed, p.prefill.settle
	decodeEnded, decodeProgressed, decodeSettled := p.decode.ended, p.decode.progressed, p.decode.settle
	ended := p.ended
	plans := make([]*pd.Plan, samples)
	for i := range plans {
		plans[i] = pd.NewPlan(
			pd.NewLease(p.prefill.Worker, prefillEnded, prefillProgressed).OrDispute(prefillSettled),
			pd.NewLease(p.decode.Worker, decodeEnded, decodeProgressed).OrDispute(decodeSettled),
			ended)
	}
	return plans
}

// single makes the plan of each sample on a whole engine.
func (p *picked) single(samples int) []*pd.Plan {
	ended, progressed, settled := p.decode.ended, p.decode.progressed, p.decode.settle
	plans := make([]*pd.Plan, samples)
	for i := range plans {
		plans[i] = pd.NewPlan(nil, pd.NewLease(p.decode.Worker, ended, progressed).OrDispute(settled), nil)
	}
	return plans
}

// ended hears how both legs of a sample ended.
func (p *picked) ended(prefill, decode pd.Outcome) {
	verdict := errNeutral
	switch {
	case prefill == pd.PairFault || decode == pd.PairFault:
		verdict = errFault
		p.prefill.doubt() // decode may be the one that is right about it
	case prefill == pd.Success && decode == pd.Success:
		verdict = nil
	}
	if verdict == errFault && !p.known {
		p.failed.Do(func() { p.prefill.set.pairs.fault(p.prefill.Worker.ID, p.decode.Worker.ID) })
	}
	p.both.end(verdict)
}
