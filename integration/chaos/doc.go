// Package chaos runs a router over simulated engines that break all the time,
// under clients that do everything clients do, and checks from the engines' side
// that nothing is ever left over, mixed up or answered wrongly.
//
// A run is decided by its seed: which engine breaks how, when and for how long,
// and what every client asks for. What meets what is up to the machine, so two
// runs of one seed are alike and not the same.
//
// Each invariant has a checker of its own, that is fed with what happened and
// knows nothing of how: clients tell when a request began and how it ended,
// engines show every leg as it comes and when it is freed, the director says
// when an engine was broken. An engine's leg is joined with its request by the
// X-Request-Id that the router passes on; which pairs a request was planned on
// is what the router's Planned hook says.
//
// Tests call [Run]. The package has no part in the product.
package chaos
