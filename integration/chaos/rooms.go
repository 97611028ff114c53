package chaos

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// generationSize is how many rooms are remembered at least, and half of how many
// at most: older ones are forgotten, or a long run would need ever more memory.
const generationSize = 1 << 17

// roomChecker checks that every bootstrap room is used by one attempt: at most
// one prefill leg and one decode leg, of one request and with the same body; and
// that a rid that is no client's own never comes back with another room.
type roomChecker struct {
	report func(Violation)
	seed   maphash.Seed

	mu    sync.Mutex
	rooms generations[simengine.Room, *roomUse]
	rids  generations[string, simengine.Room]
}

// roomUse is who has used a room.
type roomUse struct {
	request         string
	rid             string
	body            uint64 // its hash
	prefill, decode string // engines, empty while there was none
}

func newRoomChecker(report func(Violation)) *roomChecker {
	return &roomChecker{report: report, seed: maphash.MakeSeed()}
}

// saw notes a leg that has arrived.
func (c *roomChecker) saw(engine string, role simengine.Role, r simengine.Record) {
	if !r.Freed.IsZero() {
		return // seen when it came
	}
	id, body := r.Header.Get(requestIDHeader), maphash.Bytes(c.seed, r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, room := range r.Rooms {
		rid := r.Rids[i]
		if before, ok := c.rids.get(rid); ok && before != room && !strings.HasPrefix(rid, ownRid) {
			c.report(Violation{Invariant: invariantRids, Request: id, Engine: engine, Detail: fmt.Sprintf(
				"rid %s came with room %s and now comes with room %s", rid, before, room)})
		}
		c.rids.put(rid, room)
		use, ok := c.rooms.get(room)
		if !ok {
			use = &roomUse{request: id, rid: rid, body: body}
			c.rooms.put(room, use)
		}
		if wrong := use.wrong(id, rid, body); wrong != "" {
			c.report(Violation{Invariant: invariantRooms, Request: id, Engine: engine, Detail: fmt.Sprintf(
				"room %s of request %s comes again with %s: %s", room, use.request, wrong, describe(r))})
		}
		mine := &use.prefill
		if role == simengine.Decode {
			mine = &use.decode
		}
		if *mine != "" {
			c.report(Violation{Invariant: invariantRooms, Request: id, Engine: engine, Detail: fmt.Sprintf(
				"room %s has had its %s leg, on %s for request %s: %s", room, role, *mine, use.request, describe(r))})
		}
		*mine = engine
	}
}

// wrong is what differs from the first leg in the room, empty if nothing does.
func (u *roomUse) wrong(id, rid string, body uint64) string {
	switch {
	case u.request != id:
		return "another request"
	case u.rid != rid:
		return "another rid, " + rid
	case u.body != body:
		return "another body"
	}
	return ""
}

// generations is a map that forgets what is old.
type generations[K comparable, V any] struct{ young, old map[K]V }

func (g *generations[K, V]) get(k K) (V, bool) {
	if v, ok := g.young[k]; ok {
		return v, true
	}
	v, ok := g.old[k]
	return v, ok
}

func (g *generations[K, V]) put(k K, v V) {
	if g.young == nil || len(g.young) >= generationSize {
		g.old, g.young = g.young, make(map[K]V)
	}
	g.young[k] = v
}

// forget lets go of everything.
func (c *roomChecker) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rooms, c.rids = generations[simengine.Room, *roomUse]{}, generations[string, simengine.Room]{}
}
