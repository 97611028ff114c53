// Package pools owns the workers of a router and chooses among them.
//
// A [Member] is a worker and what is known of it: its state, its leases, its
// circuit breaker. A [Set] holds an immutable snapshot of its members, so that a
// request reads one consistent list while a later one may see another. There is a
// pool for each model and role, with a [Policy] of its own. Plan reads the
// snapshot, finds the pools of the request's model, lets the policies pick one
// prefill and one decode member of those that can be used, or in a set of whole
// engines one of these, passes their breakers and that of the pair, and takes the
// leases: all or none, counted before anything is sent.
//
// The end of each leg tells its worker's breaker, the end of a plan that of the
// pair. Workers come and go by [Set.Add] and [Set.Remove]; pools/registry decides
// which there are to be. Whether a worker is alive is said from outside, by [Member.Up] and
// [Member.Down]; pools/health does that.
//
// The orchestrator calls Plan once for each attempt, the registry reads Status.
// The package does no I/O, never blocks, and knows nothing of bodies.
package pools
