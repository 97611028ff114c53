// Package registry knows which workers there are to be, and has a [pools.Set]
// follow.
//
// Sources say it: the command line, a file, DNS, Kubernetes, the admin API. Each
// gives whole lists of [Spec], so that a change that was missed is made up for
// with the next one. A worker that a source names joins the set as starting; what
// its engine says of itself when it first serves, its [Facts], is laid over what
// the source said, and an engine that contradicts it does not join. A worker that
// no source names any more is drained and then removed.
//
// An operator may have a worker take the other role: [Registry.SwitchRole].
//
// The router's admin API and cmd/tandem call it. It calls no engine but for facts
// and to switch a role, and never chooses a worker for a request.
package registry
