package simengine

import (
	"sync"
	"sync/atomic"
)

// scheduler decides what may enter the engine: nothing while generation is
// paused or the role changes. What comes then is held.
type scheduler struct {
	mu      sync.Mutex
	role    Role // that is served now
	serving int  // items let in

	pause  gate        // shut by /pause_generation
	swap   gate        // shut while the role changes
	broken atomic.Bool // a role switch failed: only a restart helps
}

// role is what the engine serves now.
func (l *life) role() Role {
	l.roles.mu.Lock()
	defer l.roles.mu.Unlock()
	return l.roles.role
}

// admit lets an item in, in the role it is served in; false if it ended while
// it was held. The caller calls leave.
func (s *scheduler) admit(it *item) bool {
	for {
		s.mu.Lock()
		if !s.pause.closed() && !s.swap.closed() {
			s.serving++
			it.role = s.role
			s.mu.Unlock()
			return true
		}
		s.mu.Unlock()
		it.enter(stateHeld)
		if !s.pause.pass(it.ctx) || !s.swap.pass(it.ctx) {
			return false
		}
	}
}

func (s *scheduler) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving--
}

func (s *scheduler) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serving > 0
}
