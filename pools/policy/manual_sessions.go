package policy

import "time"

// forgetAtOnce bounds the keys that one request forgets. A request adds one at
// most, so they go faster than they come.
const forgetAtOnce = 32

// now is the present instant.
func (p *Manual) now() time.Duration { return time.Since(p.epoch) }

// knows reports whether the key is remembered.
func (p *Manual) knows(key sessionKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.known[key]
	return s != nil && !p.idle(s, p.now())
}

func (p *Manual) idle(s *session, now time.Duration) bool { return now-s.at >= p.opt.MaxIdle }

// session is what is known of a key, now in use. It reports whether another key
// had to go for it.
func (p *Manual) session(key sessionKey, now time.Duration) (s *session, dropped bool) {
	for range forgetAtOnce {
		oldest := p.used.next
		if oldest == &p.used || !p.idle(oldest, now) {
			break
		}
		p.forget(oldest)
	}
	s = p.known[key]
	if s != nil && p.idle(s, now) {
		p.forget(s)
		s = nil
	}
	if s == nil {
		if len(p.known) >= p.opt.MaxKeys {
			p.forget(p.used.next)
			dropped = true
		}
		s = &session{key: key}
		if p.shared != nil {
			s.synced = &synced{}
		}
		p.known[key] = s
	} else {
		s.unlink()
	}
	s.at = now
	s.prev, s.next = p.used.prev, &p.used
	s.prev.next, s.next.prev = s, s
	return s, dropped
}

func (p *Manual) forget(s *session) {
	s.sentTo(nil)
	s.unlink()
	delete(p.known, s.key)
}

func (s *session) unlink() { s.prev.next, s.next.prev = s.next, s.prev }

// sentTo notes where a session was sent last.
func (s *session) sentTo(h *host) {
	if s.last == h {
		return
	}
	if s.last != nil {
		s.last.keys--
	}
	if h != nil {
		h.keys++
	}
	s.last = h
}
