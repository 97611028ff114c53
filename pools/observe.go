package pools

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// served counts what a worker's engine told.
type served struct {
	requests, prompt, cached atomic.Int64
}

// Observe takes in what became of a request, for the status and for policies that
// learn: see [pd.Hooks]. What a leg's end means for its worker the leases have told
// before.
func (s *Set) Observe(req *pd.Request, report pd.Report) {
	snap := s.current.Load()
	for i := range report.Legs {
		leg := &report.Legs[i]
		m := snap.find(leg.Worker)
		if m == nil {
			continue
		}
		if leg.Err != nil && tells(leg.Outcome) {
			m.lastError.Store(&LastError{At: time.Now(), Code: codeOf(leg)})
		}
		computes := leg.Role == pd.Prefill || leg.Role == pd.Regular
		if computes && leg.Attempt == report.Attempts && leg.Sample == 0 && report.PromptTokens > 0 {
			m.served.requests.Add(1)
			m.served.prompt.Add(int64(report.PromptTokens))
			m.served.cached.Add(int64(report.CachedTokens))
			snap.learned(req, m, report.PromptTokens, report.CachedTokens)
		}
	}
}

// learned tells the policy that has chosen m for req.
func (snap *snapshot) learned(req *pd.Request, m *Member, prompt, cached int) {
	g, err := snap.serving(req)
	if err != nil {
		return // the model has gone meanwhile
	}
	if l, ok := g.policies.of(m.Worker.Role).(Learner); ok {
		l.Learned(req, m.Worker.ID, prompt, cached)
	}
}

// tells reports whether an outcome says something of the worker.
func tells(o pd.Outcome) bool {
	switch o {
	case pd.Fault, pd.Disputed, pd.Unreachable, pd.PairFault, pd.Overloaded:
		return true
	default:
		return false
	}
}

// codeOf names a leg's failure without an engine's words, which may be the
// client's.
func codeOf(leg *pd.LegReport) string {
	if leg.Err.Code != "" {
		return leg.Err.Code
	}
	return fmt.Sprintf("status_%d", leg.Err.Status)
}
