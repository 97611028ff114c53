package pools

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
)

// Policy picks one of members, all of one role and none of them to be avoided,
// for a request. It does no I/O, does not block, does not keep members, and is
// called from many goroutines at once. Nil means that none will do.
type Policy interface {
	Pick(req *pd.Request, members []*Member) *Member
}

// Options configure a Set.
type Options struct {
	Prefill, Decode Policy // both are needed
}

// Set is the planner over two pools of workers.
type Set struct {
	opt     Options
	current atomic.Pointer[snapshot]
}

// snapshot is the membership at one instant. It never changes.
type snapshot struct {
	workers         []*pd.Worker
	prefill, decode []*Member
}

// New is a set of workers, whose ids must differ. A role without workers is no
// error: requests get one until there are some.
func New(workers []*pd.Worker, opt Options) (*Set, error) {
	if opt.Prefill == nil || opt.Decode == nil {
		return nil, errors.New("pools: both roles need a policy")
	}
	snap := &snapshot{workers: slices.Clone(workers)}
	seen := make(map[pd.WorkerID]bool, len(workers))
	for _, w := range workers {
		if w.ID == "" || seen[w.ID] {
			return nil, fmt.Errorf("pools: worker id %q is empty or used twice", w.ID)
		}
		seen[w.ID] = true
		if w.Role == pd.Prefill {
			snap.prefill = append(snap.prefill, newMember(w))
		} else {
			snap.decode = append(snap.decode, newMember(w))
		}
	}
	s := &Set{opt: opt}
	s.current.Store(snap)
	return s, nil
}

// Plan implements [pd.Planner]. Both members come from one snapshot, and
// nothing is taken unless both were found.
func (s *Set) Plan(_ context.Context, req *pd.Request, samples int, avoid []pd.WorkerID) ([]*pd.Plan, error) {
	snap := s.current.Load()
	prefill := s.opt.Prefill.Pick(req, without(snap.prefill, avoid))
	if prefill == nil {
		return nil, noWorker(pd.Prefill)
	}
	decode := s.opt.Decode.Pick(req, without(snap.decode, avoid))
	if decode == nil {
		return nil, noWorker(pd.Decode)
	}
	plans := make([]*pd.Plan, samples)
	for i := range plans {
		plans[i] = pd.NewPlan(prefill.lease(), decode.lease(), nil)
	}
	return plans, nil
}

// Workers lists every worker, in the order in which they were given.
func (s *Set) Workers() []*pd.Worker { return slices.Clone(s.current.Load().workers) }

// without is members less those to avoid, or all of them if none is left.
func without(members []*Member, avoid []pd.WorkerID) []*Member {
	if len(avoid) == 0 {
		return members
	}
	left := make([]*Member, 0, len(members))
	for _, m := range members {
		if !slices.Contains(avoid, m.Worker.ID) {
			left = append(left, m)
		}
	}
	if len(left) == 0 {
		return members
	}
	return left
}

func noWorker(role pd.Role) *pd.Error {
	return &pd.Error{
		Stage: pd.StagePlan, Kind: pd.NoWorker, Status: http.StatusServiceUnavailable,
		Code:       "no_" + role.String() + "_available",
		Message:    "no " + role.String() + " worker is available",
		RetryAfter: "1",
	}
}
