package pools

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-pd/tandem/pd"
)

// The errors of a change of the membership.
var (
	ErrExists  = errors.New("there is a worker with this id")
	ErrUnknown = errors.New("there is no worker with this id")
)

// Add makes w one of the set's. Where workers are watched over it begins as
// starting. The error is [ErrExists] when its id is taken.
func (s *Set) Add(w *pd.Worker) error {
	s.change.Lock()
	defer s.change.Unlock()
	members := s.current.Load().members
	if w.ID == "" {
		return errors.New("pools: a worker needs an id")
	}
	if index(members, w.ID) >= 0 {
		return fmt.Errorf("pools: worker %s: %w", w.ID, ErrExists)
	}
	if err := s.fits(w); err != nil {
		return err
	}
	return s.publish(append(slices.Clip(members), newMember(s, w)))
}

// Remove takes worker id out of the set. It is given nothing more; what it has
// goes on and ends as it would have. The error is [ErrUnknown] where there is
// none.
func (s *Set) Remove(id pd.WorkerID) error {
	s.change.Lock()
	defer s.change.Unlock()
	members := s.current.Load().members
	i := index(members, id)
	if i < 0 {
		return fmt.Errorf("pools: worker %s: %w", id, ErrUnknown)
	}
	gone := members[i]
	if err := s.publish(slices.Delete(slices.Clone(members), i, i+1)); err != nil {
		return err
	}
	s.pairs.forget(id)
	gone.flag(flagRemoved, true) // for those who still have the snapshot of before
	return nil
}

// Update replaces what is said of a worker, whose id, role and URL stay; what is
// known of it stays too: its state, breaker and leases. The error is [ErrUnknown]
// when there is none.
func (s *Set) Update(w *pd.Worker) error {
	s.change.Lock()
	defer s.change.Unlock()
	members := s.current.Load().members
	i := index(members, w.ID)
	if i < 0 {
		return fmt.Errorf("pools: worker %s: %w", w.ID, ErrUnknown)
	}
	if old := members[i].Worker; old.Role != w.Role || old.URL != w.URL {
		return fmt.Errorf("pools: worker %s: its role and URL cannot change: remove it and add another", w.ID)
	}
	members = slices.Clone(members)
	members[i] = &Member{w, members[i].vitals}
	return s.publish(members)
}

// Generation counts the changes of the membership.
func (s *Set) Generation() uint64 { return s.current.Load().generation }

// publish makes members the present snapshot and tells the policies. On an error,
// which is that of making policies, nothing has changed. The caller holds
// s.change, or nobody else has s.
func (s *Set) publish(members []*Member) error {
	now := s.current.Load()
	next := &snapshot{members: members, groups: make(map[string]*group)}
	var made []Policies
	models := modelsOf(members)
	for _, model := range models {
		policies, known := now.policies(model)
		if !known {
			var err error
			if policies, err = s.policies(model); err != nil {
				closeAll(made)
				return err
			}
			made = append(made, policies)
		}
		next.groups[model] = newGroup(model, policies, members)
	}
	next.serve(models, s.roles())
	for _, g := range next.groups {
		g.follow() // before they can be picked, and behind those who cannot be any more
	}
	if now != nil {
		next.generation = now.generation + 1
	}
	s.current.Store(next)
	closeAll(now.without(next))
	return nil
}

// policies makes those of a model.
func (s *Set) policies(model string) (Policies, error) {
	p, err := s.opt.Policies(model)
	if err != nil {
		return Policies{}, fmt.Errorf("pools: the policies of model %q: %w", model, err)
	}
	if s.opt.Regular && p.Regular == nil || !s.opt.Regular && (p.Prefill == nil || p.Decode == nil) {
		closeAll([]Policies{p})
		return Policies{}, errors.New("pools: each role needs a policy")
	}
	return p, nil
}

// policies are those that a model had; false if it was not there.
func (snap *snapshot) policies(model string) (Policies, bool) {
	if snap == nil || snap.groups[model] == nil {
		return Policies{}, false
	}
	return snap.groups[model].policies, true
}

// without lists the policies of the models that next does not have any more.
func (snap *snapshot) without(next *snapshot) (gone []Policies) {
	if snap == nil {
		return nil
	}
	for model, g := range snap.groups {
		if next.groups[model] == nil {
			gone = append(gone, g.policies)
		}
	}
	return gone
}

func closeAll(policies []Policies) {
	for _, p := range policies {
		if p.Close != nil {
			p.Close()
		}
	}
}

// Close ends what the policies do behind the requests. Nothing may be asked of
// the set any more.
func (s *Set) Close() {
	s.change.Lock()
	defer s.change.Unlock()
	for _, g := range s.current.Load().groups {
		closeAll([]Policies{g.policies})
	}
}

// fits refuses a worker of a role that the set has no use for.
func (s *Set) fits(w *pd.Worker) error {
	switch {
	case s.opt.Regular == (w.Role == pd.Regular):
		return nil
	case s.opt.Regular:
		return fmt.Errorf("this router serves whole engines, not pairs, and this is a %s worker", w.Role)
	default:
		return fmt.Errorf("this router serves prefill/decode pairs, and this is a %s worker", w.Role)
	}
}

func index(members []*Member, id pd.WorkerID) int {
	return slices.IndexFunc(members, func(m *Member) bool { return m.Worker.ID == id })
}
