// Package pools owns the workers of a router and chooses among them.
//
// A [Member] is a worker and what is counted of it; it lives as long as the
// worker is known. A [Set] holds an immutable snapshot of its members, so that
// a request reads one consistent list while a later one may see another. Plan
// reads the snapshot, lets a [Policy] pick one prefill and one decode member
// from it, and takes the leases of both: all or none, counted before anything
// is sent.
//
// The orchestrator calls Plan once for each attempt, the router reads Status.
// The package does no I/O, never blocks, and knows nothing of bodies.
package pools
