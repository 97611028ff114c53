package simengine

import (
	"fmt"
	"sync"
	"time"
)

// Bounds of what a prefill keeps about rooms that nobody has posted to it.
const (
	maxEarlyRooms   = 1 << 16
	maxAbortedRooms = 4096
	maxBrokenPairs  = 1024
)

// roomTable pairs the requests of a prefill with decode's metadata, by nothing
// but the room, in whatever order the two come.
type roomTable struct {
	shared  bool // Config.CrossTalk
	mu      sync.Mutex
	live    map[Room]*prefillRoom
	early   map[Room][]metadata // metadata that came first: one for a room, but for CrossTalk
	gone    map[Room]bool       // rooms whose decode left before their request came
	goneLog []Room              // the keys of gone, oldest first
	pairs   map[string]bool     // decode sessions that a transfer failed to
}

// prefillRoom is one live request's view of its room.
type prefillRoom struct {
	rank    int
	users   int // requests in the room: one, but for CrossTalk
	meta    chan metadata
	aborted chan struct{} // closed on decode's abort
}

// metadata is decode's announcement of a room.
type metadata struct {
	rank int
	from *rankLink
}

// maxSharedRoom is how many requests a room can hold with CrossTalk.
const maxSharedRoom = 16

func newRoomTable(shared bool) *roomTable {
	return &roomTable{
		shared: shared,
		live:   map[Room]*prefillRoom{}, early: map[Room][]metadata{},
		gone: map[Room]bool{}, pairs: map[string]bool{},
	}
}

// open registers a live room. A room that is live already is the end of the
// engine.
func (t *roomTable) open(room Room, rank int) (*prefillRoom, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := t.size()
	if r := t.live[room]; r != nil {
		if r.users == size {
			return nil, errRoomReused(room)
		}
		r.users++
		return r, nil
	}
	r := &prefillRoom{rank: rank, users: 1, meta: make(chan metadata, size), aborted: make(chan struct{})}
	t.live[room] = r
	if early := t.early[room]; len(early) > 0 && early[0].rank == rank {
		delete(t.early, room)
		for _, meta := range early {
			r.meta <- meta
		}
	} else if t.gone[room] {
		close(r.aborted)
	}
	return r, nil
}

// size is how many requests a room can hold.
func (t *roomTable) size() int {
	if t.shared {
		return maxSharedRoom
	}
	return 1
}

func errRoomReused(room Room) error {
	return fmt.Errorf("KeyError: room %s is live already", room)
}

func (t *roomTable) close(room Room) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.live[room]
	if r.users--; r.users > 0 {
		return
	}
	delete(t.live, room)
	for len(r.meta) > 0 { // nobody took it: it waits for the next request
		if meta := <-r.meta; !isClosed(meta.from.gone) {
			t.early[room] = append(t.early[room], meta)
		}
	}
}

// take takes in one step what one decode says, and answers its aborts.
func (t *roomTable) take(from *rankLink, batch []message) error {
	err := t.apply(from, batch)
	for _, m := range batch {
		if m.Kind == kindAbort {
			from.send(message{Kind: kindDrained, Room: m.Room})
		}
	}
	return err
}

func (t *roomTable) apply(from *rankLink, batch []message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range batch {
		switch m.Kind {
		case kindHello:
			from.session = m.Session
		case kindMetadata:
			if err := t.announceLocked(m.Room, metadata{m.Rank, from}); err != nil {
				return err
			}
		case kindAbort:
			t.abortLocked(m.Room)
		}
	}
	return nil
}

// left reports whether decode has left the live room.
func (t *roomTable) left(r *prefillRoom) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return isClosed(r.aborted)
}

// announceLocked takes decode's metadata. A second one for a room is the end of
// the engine; one of another rank waits for ever.
func (t *roomTable) announceLocked(room Room, meta metadata) error {
	delete(t.gone, room)
	if len(t.early[room]) == t.size() {
		return errRoomReused(room)
	}
	if r := t.live[room]; r != nil && r.rank == meta.rank {
		select {
		case r.meta <- meta:
			return nil
		default:
			return errRoomReused(room)
		}
	}
	if len(t.early) >= maxEarlyRooms {
		return fmt.Errorf("more than %d rooms announced and never posted", maxEarlyRooms)
	}
	t.early[room] = append(t.early[room], meta)
	return nil
}

// abortLocked takes decode's word that it left a room.
func (t *roomTable) abortLocked(room Room) {
	delete(t.early, room)
	if r := t.live[room]; r != nil {
		select {
		case <-r.aborted:
		default:
			close(r.aborted)
		}
		return
	}
	if t.gone[room] {
		return
	}
	if len(t.goneLog) >= maxAbortedRooms {
		delete(t.gone, t.goneLog[0])
		t.goneLog = t.goneLog[1:]
	}
	t.gone[room] = true
	t.goneLog = append(t.goneLog, room)
}

// forget drops what a lost decode announced.
func (t *roomTable) forget(from *rankLink) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for room, early := range t.early {
		if early[0].from == from {
			delete(t.early, room)
		}
	}
}

func (t *roomTable) breakPair(session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.pairs) < maxBrokenPairs {
		t.pairs[session] = true
	}
}

func (t *roomTable) broken(session string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pairs[session]
}

// dpRegister is the bootstrap server's table of the ranks that rooms are on.
type dpRegister struct {
	mu    sync.Mutex
	life  time.Duration
	ranks map[Room]registeredRank
}

type registeredRank struct {
	rank  int
	until time.Time
}

// maxRegisteredRooms bounds the table; the engine's own has no bound but time.
const maxRegisteredRooms = 1 << 16

func newDPRegister(life time.Duration) *dpRegister {
	return &dpRegister{life: life, ranks: map[Room]registeredRank{}}
}

func (d *dpRegister) register(room Room, rank int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if len(d.ranks) >= maxRegisteredRooms {
		for room, r := range d.ranks {
			if now.After(r.until) {
				delete(d.ranks, room)
			}
		}
	}
	if len(d.ranks) < maxRegisteredRooms {
		d.ranks[room] = registeredRank{rank, now.Add(d.life)}
	}
}

func (d *dpRegister) find(room Room) (int, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.ranks[room]
	return r.rank, ok && time.Now().Before(r.until)
}
