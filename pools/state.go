package pools

import "time"

// State is what can be done with a worker now.
type State string

// The states of a worker. Where several hold, the first of this list is shown.
const (
	Draining State = "draining" // takes no new work; what it has goes on
	Starting State = "starting" // has not served yet
	Dead     State = "dead"     // does not answer, or says that it is not healthy
	Broken   State = "broken"   // alive, but what it is sent fails: its breaker is not closed
	Busy     State = "busy"     // alive, but has just refused for want of room
	Ready    State = "ready"
	Removed  State = "removed" // not the set's any more; told once, and shown nowhere
)

// states are all of them, in order.
var states = [...]State{Draining, Starting, Dead, Broken, Busy, Ready}

// Bits of a member's flags.
const (
	flagDraining uint32 = 1 << iota
	flagStarting
	flagDead
	flagBroken
	flagRemoved
)

// flagsOut are those that keep a member from being chosen.
const flagsOut = flagDraining | flagStarting | flagDead | flagRemoved

// busyFor is how long a worker that refused for want of room is passed over
// while others can be had.
const busyFor = time.Second

// Reach is what is known of a prefill's bootstrap server from here.
type Reach string

// What a bootstrap server's probe has shown. A router may not reach one that
// decode workers do reach.
const (
	ReachUnknown Reach = "unknown" // never asked, or its port is not known
	ReachUp      Reach = "up"
	ReachDown    Reach = "down"
)

// State is the member's state now.
func (m *Member) State() State {
	switch flags := m.flags.Load(); {
	case flags&flagRemoved != 0:
		return Removed
	case flags&flagDraining != 0:
		return Draining
	case flags&flagStarting != 0:
		return Starting
	case flags&flagDead != 0:
		return Dead
	case flags&flagBroken != 0:
		return Broken
	case m.isBusy(time.Now()):
		return Busy
	default:
		return Ready
	}
}

// Serves reports whether the member is alive and takes part: its breaker is not
// asked, since only requests can close that.
func (m *Member) Serves() bool { return m.flags.Load()&flagsOut == 0 }

// Drained reports whether the member is draining and has nothing left: it may be
// taken away.
func (m *Member) Drained() bool {
	return m.flags.Load()&flagDraining != 0 && m.inFlight.Load() == 0
}

// Up says that the worker serves. One that was out comes back with a closed
// breaker and room: what it did before it went says nothing any more.
func (m *Member) Up() {
	m.reason.Store(nil)
	if m.flags.Load()&(flagStarting|flagDead) == 0 {
		return
	}
	m.ups.Add(1) // before it can be chosen
	m.breaker.reset(nil)
	m.set.pairs.forget(m.Worker.ID)
	m.busy.Store(0)
	m.flags.And(^(flagStarting | flagDead))
	m.announce()
}

// Down says that the worker does not serve, and why; the text shows in the
// status and must not hold an address. A starting worker stays one.
func (m *Member) Down(reason string) {
	m.reason.Store(&reason)
	m.flag(flagDead, true)
}

// Overdue says that a starting worker has taken too long, and why: it is dead,
// though it may still come up.
func (m *Member) Overdue(reason string) {
	for {
		flags := m.flags.Load()
		if flags&flagStarting == 0 {
			return
		}
		m.reason.Store(&reason)
		if m.flags.CompareAndSwap(flags, flags&^flagStarting|flagDead) {
			m.announce()
			return
		}
	}
}

// flag sets or clears one bit.
func (m *Member) flag(bit uint32, on bool) {
	if on {
		m.flags.Or(bit)
	} else {
		m.flags.And(^bit)
	}
	m.announce()
}

// told is what was last said of a member.
type told struct {
	state   State
	drained bool
}

// announce tells of the member's state where it is not what was told last. The
// lock keeps the order. That a member is busy is not told: it is over in a second.
func (m *Member) announce() {
	if m.set.opt.Changed == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := told{m.State(), m.Drained()}
	if now.state == Busy {
		now.state = Ready
	}
	if now == m.told {
		return
	}
	m.told = now
	why := m.why()
	if now.drained {
		why = "nothing is in flight any more"
	}
	m.set.opt.Changed(m.Worker, now.state, why)
}

// why is the reason shown beside the state.
func (m *Member) why() string {
	if reason := m.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}
