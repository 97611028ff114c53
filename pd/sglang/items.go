package sglang

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
)

// items are those of a request, one or a batch, that have shown an event. One
// goroutine notes them; any may ask. A nil one notes nothing.
type items struct {
	req   *pd.Request
	seen  map[int]struct{} // of a batch, until all have been seen
	count atomic.Int64     // of those seen
}

// all reports whether every item has shown an event.
func (s *items) all() bool { return s.count.Load() >= int64(s.req.Items) }

// note reads which item an event is of.
func (s *items) note(data []byte) {
	switch {
	case s == nil || s.all():
		return
	case s.req.Items == 1:
		s.count.Store(1)
		return
	}
	i := EventIndex(s.req.Endpoint, data)
	if i < 0 {
		return
	}
	if s.seen == nil {
		s.seen = make(map[int]struct{}, s.req.Items)
	}
	s.seen[i] = struct{}{}
	s.count.Store(int64(len(s.seen)))
	if s.all() {
		s.seen = nil
	}
}

// large notes an event that is too large to be read: so much of a single item's
// shows as much as a whole one.
func (s *items) large() {
	if s != nil && s.req.Items == 1 {
		s.count.Store(1)
	}
}
