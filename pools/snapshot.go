package pools

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-pd/tandem/pd"
)

// Policies choose in the pools of one model.
type Policies struct {
	// Prefill and Decode are those of pairs, Regular that of whole engines: what
	// the set is for is needed.
	Prefill, Decode, Regular Policy
	// Close ends what they do behind the requests, once the model has gone; nil for
	// nothing. Requests that began before may still ask them.
	Close func()
}

// Share has all models choose by the same policies for pairs, which must then
// keep nothing of their pool.
func Share(prefill, decode Policy) func(model string) (Policies, error) {
	return func(string) (Policies, error) { return Policies{Prefill: prefill, Decode: decode}, nil }
}

// of is the policy of a role.
func (p *Policies) of(role pd.Role) Policy {
	return [...]Policy{p.Prefill, p.Decode, p.Regular}[role]
}

// snapshot is the membership at one instant. It never changes.
type snapshot struct {
	generation uint64    // how many there were before it
	members    []*Member // in the order in which they were given
	// groups are by model; the one group of a set where no model is known has the
	// empty name.
	groups map[string]*group
	// served are the groups that have a worker of each role, by the model's name; all
	// groups where none has.
	served []*group

	indexed sync.Once
	byID    map[pd.WorkerID]*Member
}

// group is the pools of one model, by role. A worker whose model is not known is
// in the pools of all.
type group struct {
	model    string
	policies Policies
	pools    [3][]*Member
	ranks    [3]bool // which of the pools have data-parallel ranks in them
}

// find is the member with the given id, nil if there is none.
func (snap *snapshot) find(id pd.WorkerID) *Member {
	snap.indexed.Do(func() { // most snapshots of a fleet that is being built are never asked
		snap.byID = make(map[pd.WorkerID]*Member, len(snap.members))
		for _, m := range snap.members {
			snap.byID[m.Worker.ID] = m
		}
	})
	return snap.byID[id]
}

// group is the group that serves req, less the members that have not the ranks that
// it wants.
func (snap *snapshot) group(req *pd.Request) (*group, error) {
	g, err := snap.serving(req)
	if err != nil {
		return nil, err
	}
	return g.wanted(req)
}

// serving is the group that serves req: that of its model, which may end at a colon,
// since what follows names an adapter. Where one model is served, that is it for
// every other name, and for none.
func (snap *snapshot) serving(req *pd.Request) (*group, error) {
	name := ""
	if req != nil {
		name = req.Model
	}
	if g := snap.groups[name]; g != nil {
		return g, nil
	}
	base, _, _ := strings.Cut(name, ":")
	if g := snap.groups[base]; g != nil {
		return g, nil
	}
	if len(snap.served) == 1 {
		return snap.served[0], nil
	}
	e := &pd.Error{
		Stage: pd.StagePlan, Kind: pd.Invalid, Status: http.StatusNotFound, Param: "model",
		Code: "model_not_found", Message: fmt.Sprintf("the model %.100q does not exist", name),
	}
	if name == "" {
		e.Status, e.Code = http.StatusBadRequest, "model_required"
		e.Message = "several models are served: the body must name one in its model field"
	}
	return nil, e
}

// modelsOf lists the models of members, sorted; one without a name where none has
// one.
func modelsOf(members []*Member) []string {
	var models []string
	for _, m := range members {
		if m.Worker.Model != "" {
			models = append(models, m.Worker.Model)
		}
	}
	slices.Sort(models)
	if models = slices.Compact(models); models == nil {
		return []string{""}
	}
	return models
}

// newGroup fills the pools of one model.
func newGroup(model string, policies Policies, members []*Member) *group {
	g := &group{model: model, policies: policies}
	for _, m := range members {
		if w := m.Worker; w.Model == model || w.Model == "" {
			g.pools[w.Role] = append(g.pools[w.Role], m)
			g.ranks[w.Role] = g.ranks[w.Role] || m.isRank()
		}
	}
	return g
}

// lacks is the role that the group has no worker for, if ok is false.
func (g *group) lacks(roles []pd.Role) (role pd.Role, ok bool) {
	for _, role := range roles {
		if len(g.pools[role]) == 0 {
			return role, false
		}
	}
	return 0, true
}

// serve notes which groups are served. A worker of a model that has not all roles
// yet, or has a wrong one, so changes nothing for the others.
func (snap *snapshot) serve(models []string, roles []pd.Role) {
	for _, model := range models {
		if _, ok := snap.groups[model].lacks(roles); ok {
			snap.served = append(snap.served, snap.groups[model])
		}
	}
	if snap.served != nil {
		return
	}
	for _, model := range models {
		snap.served = append(snap.served, snap.groups[model])
	}
}

// follow tells the policies who there is.
func (g *group) follow() {
	for role, pool := range g.pools {
		if f, ok := g.policies.of(pd.Role(role)).(Follower); ok {
			f.Follow(pool)
		}
	}
}
