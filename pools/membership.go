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
	s.publish(append(slices.Clip(members), newMember(s, w)))
	return nil
}

// Remove takes worker id out of the set. It is given nothing more; what it has
// goes on and ends as it would have. The error is [ErrUnknown].
func (s *Set) Remove(id pd.WorkerID) error {
	s.change.Lock()
	defer s.change.Unlock()
	members := s.current.Load().members
	i := index(members, id)
	if i < 0 {
		return fmt.Errorf("pools: worker %s: %w", id, ErrUnknown)
	}
	gone := members[i]
	s.publish(slices.Delete(slices.Clone(members), i, i+1))
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
	s.publish(members)
	return nil
}

// Generation counts the changes of the membership.
func (s *Set) Generation() uint64 { return s.current.Load().generation }

// publish makes members the present snapshot and tells the policies. The caller
// holds s.change, or nobody else has s.
func (s *Set) publish(members []*Member) {
	next := &snapshot{members: members}
	if now := s.current.Load(); now != nil {
		next.generation = now.generation + 1
	}
	for _, m := range members {
		if m.Worker.Role == pd.Prefill {
			next.prefill = append(next.prefill, m)
		} else {
			next.decode = append(next.decode, m)
		}
	}
	// Before they can be picked, and behind those who cannot be any more.
	if f, ok := s.opt.Prefill.(Follower); ok {
		f.Follow(next.prefill)
	}
	if f, ok := s.opt.Decode.(Follower); ok {
		f.Follow(next.decode)
	}
	s.current.Store(next)
}

func index(members []*Member, id pd.WorkerID) int {
	return slices.IndexFunc(members, func(m *Member) bool { return m.Worker.ID == id })
}
