package pools

import "time"

// State is what can be done with a worker now.
type State string

// The states of a worker. Where several hold, the first of this list is shown.
const (
	Draining State = "draining" // takes no new work; what it has goes on
	Starting State = "starting" // has not served yet
	Dead     State = "dead"     // does not answer, or says that it is not healthy
	Broken   State = "broken"   // alive, but what it is sent fails: its breaker is not closed
	Busy     State = "busy"     // alive, but has just refused for want of room
	Ready    State = "ready"
)

// Bits of a member's flags; none of them set is Ready.
const (
	flagDraining uint32 = 1 << iota
	flagStarting
	flagDead
	flagBroken
	flagBusy // until busyUntil, and perhaps a little longer
)

// flagsOut are those that keep a member from being chosen.
const flagsOut = flagDraining | flagStarting | flagDead

// busyFor is how long a worker that refused for want of room is passed over
// while others can be had.
const busyFor = time.Second

// Reach is what is known of a prefill's bootstrap server from here.
type Reach string

// What a bootstrap server's probe has shown. A router may not reach one that
// decode workers do reach.
const (
	ReachUnknown Reach = "unknown" // never asked, or its port is not known
	ReachUp      Reach = "up"
	ReachDown    Reach = "down"
)
