// Package health asks the workers of a router whether they serve, and tells
// their members of a [pools.Set].
//
// A worker joins with its first good probe, however long it takes to start; where
// it is to be met first, whoever meets it must agree. From then on it goes out when
// some probes in a row have failed, or at once when it refuses connections, and
// comes back by itself. An engine that is busy answers probes late or never, so
// what its requests show counts for more: tokens excuse its silence, though no
// answer that says no, and silence alone never takes out the last worker of a role.
//
// With a prefill worker its bootstrap server is asked. Decode workers must reach
// that server and the router need not, so what is learned is shown and, unless
// asked for, keeps nobody out.
//
// A [Monitor] is one loop, run by [Monitor.Run], that owns everything it knows;
// only probes have goroutines, a bounded number, for which Run waits. The package
// never sees a request, sends nothing but GETs of health, and adds or removes no
// member.
package health
