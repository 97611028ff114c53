// Package bootstrap owns what a prefill and a decode worker need to find each
// other: the room that names one transfer, and the address of the prefill
// worker's bootstrap server.
//
// Both legs of an exchange carry the same room. A room names exactly one
// transfer while it is live: two transfers in one room crash an engine, so
// [Rooms] gives out no room twice until it is released, and the room of a
// failed attempt is never used for the next one.
//
// The dialect takes and releases rooms, the configuration resolves addresses
// and health checks probe them. The package sends nothing to a worker's own
// API and knows nothing of requests or plans.
package bootstrap
