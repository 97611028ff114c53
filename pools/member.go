package pools

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
)

// Member is one worker with what is counted of it.
type Member struct {
	Worker *pd.Worker

	inFlight atomic.Int64
	release  func() // gives one lease back; made once, not for each lease
}

// newMember is a member with nothing in flight.
func newMember(w *pd.Worker) *Member {
	m := &Member{Worker: w}
	m.release = func() { m.inFlight.Add(-1) }
	return m
}

// InFlight is the number of leases held now: samples planned on the worker and
// not yet ended there.
func (m *Member) InFlight() int64 { return m.inFlight.Load() }

// lease takes one claim on the worker.
func (m *Member) lease() *pd.Lease {
	m.inFlight.Add(1)
	return pd.NewLease(m.Worker, m.release)
}
