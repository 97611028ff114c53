package pools

// MaxPairs is the bound on the pairs that are remembered.
const MaxPairs = maxPairs

// Verdicts is what m's breaker has counted in its present phase: the calls that
// did well, those that did not, and the trials that are under way.
func Verdicts(m *Member) (well, faults, trials int) {
	c := m.breaker.now.Load().cb.Counts()
	return int(c.TotalSuccesses), int(c.TotalFailures),
		int(c.Requests - c.TotalExclusions - c.TotalSuccesses - c.TotalFailures)
}
