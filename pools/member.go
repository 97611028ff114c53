package pools

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// Member is one worker with what is known of it: its state and its leases. It does
// not change; an update of its worker makes another member, which shares what is
// known.
type Member struct {
	Worker *pd.Worker
	*vitals
}

// vitals are what is known of a worker for as long as it is one of the set's.
type vitals struct {
	set      *Set
	breaker  *breaker
	ups      atomic.Uint64
	flags    atomic.Uint32
	inFlight atomic.Int64
	work     atomic.Int64
	progress atomic.Int64 // instant of the last sign of life
	busy     atomic.Int64 // instant until which it is passed over
	suspect  atomic.Bool
	reason   atomic.Pointer[string] // why it is dead or starting, for operators
	reach    atomic.Pointer[Reach]
	served   served
	// lastError is how the last leg that failed did, for operators.
	lastError atomic.Pointer[LastError]

	mu   sync.Mutex // held while a change is told
	told told
}

// watched reports whether somebody looks at the member's health.
func (m *Member) watched() bool { return m.set.watched() && !m.Worker.Unchecked }

// newMember is a member with nothing in flight. One that is watched over begins
// as starting, any other as ready.
func newMember(s *Set, w *pd.Worker) *Member {
	m := &Member{w, &vitals{set: s, told: told{state: Ready}}}
	if m.watched() {
		m.flags.Store(flagStarting)
		m.told.state = Starting
	}
	m.breaker = newBreaker(s.opt.Breakers, s.opt.Breakers.trips, func(to breakerState) {
		m.flag(flagBroken, to != closed)
	})
	return m
}

// InFlight is the number of leases held now: samples planned on the worker and
// not yet ended there.
func (m *Member) InFlight() int64 { return m.inFlight.Load() }

// Work is the bytes of the bodies of what is in flight on the worker: a measure of
// the prompts that wait there, which a number of requests is not.
func (m *Member) Work() int64 { return m.work.Load() }

// Ups counts how often the worker has come up, from starting or from being dead:
// one that has done so again has nothing in its cache.
func (m *Member) Ups() uint64 { return m.ups.Load() }

// Is reports whether both are the same worker, known since the same moment:
// updates make other members of it.
func (m *Member) Is(other *Member) bool { return m.vitals == other.vitals }

// LastProgress is when the worker last showed that it works, by a token or an
// answer; zero if never.
func (m *Member) LastProgress() time.Time {
	if at := m.progress.Load(); at != 0 {
		return m.set.epoch.Add(time.Duration(at))
	}
	return time.Time{}
}

// SetReach notes whether a prefill's bootstrap server could be reached.
func (m *Member) SetReach(r Reach) { m.reach.Store(&r) }

// Reach is what was noted last.
func (m *Member) Reach() Reach {
	if r := m.reach.Load(); r != nil {
		return *r
	}
	return ReachUnknown
}

// Blame counts a fault against the worker that no leg of a request has shown.
func (m *Member) Blame() { m.breaker.fault() }

// Suspected reports whether requests have had trouble with the worker since it
// was last asked.
func (m *Member) Suspected() bool { return m.suspect.Swap(false) }

// doubt has the worker looked at soon.
func (m *Member) doubt() {
	if m.watched() && !m.suspect.Swap(true) {
		m.set.opt.Suspect()
	}
}

// isBusy reports whether the worker has refused for want of room just now.
func (m *Member) isBusy(now time.Time) bool {
	until := m.busy.Load()
	return until != 0 && m.set.instant(now) < until
}

// calm reports at a glance that the member is ready. False says nothing.
func (m *Member) calm() bool { return m.flags.Load() == 0 && m.busy.Load() == 0 }

// fits reports whether n more leases fit beside those that are held. A call for
// more than the bound fits when nothing else is in flight.
func (m *Member) fits(n int, held int64) bool {
	limit := int64(m.set.opt.MaxInFlight)
	return limit == 0 || held+min(int64(n), limit) <= limit
}

// reserve counts n more leases, if they fit.
func (m *Member) reserve(n int) bool {
	for {
		held := m.inFlight.Load()
		if !m.fits(n, held) {
			return false
		}
		if m.inFlight.CompareAndSwap(held, held+int64(n)) {
			return true
		}
	}
}

// giveBack gives n leases back.
func (m *Member) giveBack(n int) {
	if m.inFlight.Add(-int64(n)) == 0 && m.flags.Load()&flagDraining != 0 {
		m.announce()
	}
}

// hold is what a call has taken of a member: places for its samples, and the
// passage through the breaker.
type hold struct {
	*Member
	claim claim
	work  int64 // of each sample
}

// take takes places for c's samples on m. False when another call was faster,
// or m has just gone out.
func (h *hold) take(m *Member, c *choice) bool {
	if !m.reserve(c.samples) {
		c.full = m
		return false
	}
	// The state is read after the places are counted: a member that was drained
	// and has nothing in flight is given nothing more.
	if !m.Serves() || !m.breaker.pass(&h.claim, c.now, c.force) {
		m.giveBack(c.samples)
		return false
	}
	h.Member, h.work = m, c.work
	m.work.Add(c.work * int64(c.samples))
	h.claim.left.Store(int32(c.samples))
	return true
}

// untake undoes take.
func (h *hold) untake(c *choice) {
	h.claim.undo()
	h.Member.work.Add(-h.work * int64(c.samples))
	h.giveBack(c.samples)
}

// progressed hears of every good event of a leg.
func (h *hold) progressed() {
	h.progress.Store(h.set.instant(time.Now()))
	h.claim.progress()
}

// ended gives a lease back and draws the conclusions of how its leg ended.
func (h *hold) ended(o pd.Outcome) {
	h.Member.work.Add(-h.work)
	h.giveBack(1)
	switch o {
	case pd.Disputed:
		return // settle will hear of it
	case pd.Success:
		h.progress.Store(h.set.instant(time.Now()))
	case pd.Overloaded:
		h.busy.Store(h.set.instant(time.Now().Add(busyFor)))
	case pd.Unreachable:
		if h.watched() {
			h.refusesConnections()
		}
	}
	h.settle(o)
}

// settle hears what a leg's end says of the worker.
func (h *hold) settle(o pd.Outcome) { h.claim.end(verdictOf(o)) }
