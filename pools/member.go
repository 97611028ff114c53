package pools

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Member is one worker with what is known of it: its state and its leases.
type Member struct {
	Worker *pd.Worker

	set      *Set
	breaker  *breaker
	flags    atomic.Uint32
	inFlight atomic.Int64
	progress atomic.Int64 // unix nanoseconds of the last sign of life
	busy     atomic.Int64 // unix nanoseconds until which it is passed over
	suspect  atomic.Bool

	mu     sync.Mutex
	reason string // why it is dead or starting, for operators
	reach  Reach
}

// newMember is a member with nothing in flight. One that is watched over begins
// as starting, any other as ready.
func newMember(s *Set, w *pd.Worker) *Member {
	m := &Member{Worker: w, set: s, reach: ReachUnknown}
	if s.opt.Suspect != nil {
		m.flags.Store(flagStarting)
	}
	m.breaker = newBreaker(s.opt.Breakers, s.tripsWorker, func(to int32) {
		m.flag(flagBroken, to != closed)
		m.changed()
	})
	return m
}

// InFlight is the number of leases held now: samples planned on the worker and
// not yet ended there.
func (m *Member) InFlight() int64 { return m.inFlight.Load() }

// State is the member's state now.
func (m *Member) State() State {
	flags := m.flags.Load()
	switch {
	case flags == 0:
		return Ready
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

// LastProgress is when the worker last showed that it works, by a token or an
// answer; zero if never.
func (m *Member) LastProgress() time.Time {
	if ns := m.progress.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Up says that the worker serves. One that was out comes back with a closed
// breaker: what it did before it went says nothing any more.
func (m *Member) Up() {
	was := m.flags.And(^(flagStarting | flagDead))
	m.because("")
	if was&(flagStarting|flagDead) == 0 {
		return
	}
	m.breaker.reset()
	m.set.forgetPairs(m.Worker.ID)
	m.changed()
}

// Down says that the worker does not serve, and why; the text shows in the
// status and must not hold an address. A starting worker stays one.
func (m *Member) Down(reason string) {
	m.because(reason)
	if m.flags.Load()&flagStarting != 0 {
		return
	}
	if m.flags.Or(flagDead)&flagDead == 0 {
		m.changed()
	}
}

// Overdue says that a starting worker has taken too long: it is dead, though it
// may still come up.
func (m *Member) Overdue(reason string) {
	m.because(reason)
	m.flags.Or(flagDead)
	if m.flags.And(^flagStarting)&flagStarting != 0 {
		m.changed()
	}
}

// SetReach notes whether a prefill's bootstrap server could be reached.
func (m *Member) SetReach(r Reach) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reach = r
}

// Reach is what was noted last.
func (m *Member) Reach() Reach {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reach
}

// Blame counts a fault against the worker that no leg of a request has shown.
func (m *Member) Blame() {
	if c := m.breaker.allow(1); c != nil {
		c.end(errFault)
	}
}

// Suspected reports whether requests have had trouble with the worker since it
// was last asked.
func (m *Member) Suspected() bool { return m.suspect.Swap(false) }

// because notes the reason shown beside the state.
func (m *Member) because(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reason = reason
}

func (m *Member) why() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reason
}

// flag sets or clears a bit and reports whether that changed it.
func (m *Member) flag(bit uint32, on bool) bool {
	if on {
		return m.flags.Or(bit)&bit == 0
	}
	return m.flags.And(^bit)&bit != 0
}

func (m *Member) changed() {
	if m.set.opt.Changed != nil {
		m.set.opt.Changed(m.Worker, m.State(), m.why())
	}
}

// isBusy reports whether the worker has refused for want of room just now.
func (m *Member) isBusy(now time.Time) bool {
	if m.flags.Load()&flagBusy == 0 {
		return false
	}
	if now.UnixNano() < m.busy.Load() {
		return true
	}
	m.flags.And(^flagBusy)
	return false
}

// reserve counts n more leases, if the bound on them allows; 0 is none. A call
// for more than the bound passes when nothing else is in flight.
func (m *Member) reserve(n int) bool {
	limit := int64(m.set.opt.MaxInFlight)
	for {
		held := m.inFlight.Load()
		if limit > 0 && held+min(int64(n), limit) > limit {
			return false
		}
		if m.inFlight.CompareAndSwap(held, held+int64(n)) {
			return true
		}
	}
}

// full reports whether reserve would refuse n leases.
func (m *Member) full(n int) bool {
	limit := int64(m.set.opt.MaxInFlight)
	return limit > 0 && m.inFlight.Load()+min(int64(n), limit) > limit
}

// lease is one of the leases that were reserved under c.
func (m *Member) lease(c *claim) *pd.Lease {
	return pd.NewLease(m.Worker, func(o pd.Outcome) { m.ended(c, o) }, func() {
		m.progress.Store(time.Now().UnixNano())
		c.progress()
	})
}

// ended gives a lease back and draws the conclusions of how its leg ended.
func (m *Member) ended(c *claim, o pd.Outcome) {
	m.inFlight.Add(-1)
	switch o {
	case pd.Success:
		m.progress.Store(time.Now().UnixNano())
	case pd.Overloaded:
		m.busy.Store(time.Now().Add(busyFor).UnixNano())
		m.flags.Or(flagBusy)
	case pd.Unreachable:
		if m.set.opt.Suspect != nil { // somebody will see it come back
			m.Down("refuses connections")
			m.doubt()
		}
	}
	c.end(verdictOf(o))
	if m.Drained() {
		m.changed()
	}
}

// Drained reports whether the member is draining and has nothing left: it may be
// taken away.
func (m *Member) Drained() bool {
	return m.flags.Load()&flagDraining != 0 && m.inFlight.Load() == 0
}

// doubt has the worker looked at soon.
func (m *Member) doubt() {
	if m.set.opt.Suspect != nil && !m.suspect.Swap(true) {
		m.set.opt.Suspect()
	}
}
