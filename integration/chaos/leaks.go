package chaos

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pools"
)

// How much more a process may hold after a run than before it.
const (
	moreGoroutines = 10
	moreFiles      = 10
	moreHeap       = 16 << 20 // bytes
)

// counters are what is counted of requests under way.
type counters struct {
	pools  pools.Status
	rooms  int
	engine map[string]simengine.Loads
}

// negative is what has been given back more often than taken, empty if nothing.
func (c *counters) negative() string {
	var bad []string
	for _, w := range c.pools.Workers {
		if w.InFlight < 0 {
			bad = append(bad, fmt.Sprintf("%s has %d leases", w.ID, w.InFlight))
		}
	}
	return strings.Join(bad, ", ")
}

// left is what is not zero when nothing is under way, empty if all is.
func (c *counters) left() string {
	var bad []string
	for _, w := range c.pools.Workers {
		if w.InFlight != 0 {
			bad = append(bad, fmt.Sprintf("%s has %d leases", w.ID, w.InFlight))
		}
	}
	if c.rooms != 0 {
		bad = append(bad, fmt.Sprintf("%d rooms are live", c.rooms))
	}
	for id, l := range c.engine {
		if l.Running+l.Waiting+l.Inflight+l.UsedTokens != 0 {
			bad = append(bad, fmt.Sprintf("engine %s is at work: %+v", id, l))
		}
	}
	return strings.Join(bad, ", ")
}

// leaked is what a process holds more of than it may, empty if nothing.
func leaked(before, after Resources) string {
	var bad []string
	if after.Goroutines > before.Goroutines+moreGoroutines {
		bad = append(bad, fmt.Sprintf("goroutines: %d, were %d", after.Goroutines, before.Goroutines))
	}
	if after.Files > before.Files+moreFiles {
		bad = append(bad, fmt.Sprintf("open files: %d, were %d", after.Files, before.Files))
	}
	if after.Heap > before.Heap+moreHeap {
		bad = append(bad, fmt.Sprintf("bytes of heap: %d, were %d", after.Heap, before.Heap))
	}
	return strings.Join(bad, ", ")
}

// measure is what the process holds now.
func measure() (Resources, error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return Resources{}, err
	}
	runtime.GC()
	runtime.GC() // pools are emptied by the second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Resources{Goroutines: goroutines(), Files: len(files), Heap: m.HeapAlloc}, nil
}

// least is the smaller of each.
func (r Resources) least(o Resources) Resources {
	return Resources{Goroutines: min(r.Goroutines, o.Goroutines), Files: min(r.Files, o.Files), Heap: min(r.Heap, o.Heap)}
}

// goroutines counts all but those that fasthttp keeps for the next connection:
// they hold nothing, and end when they have had nothing to do for 10 to 20 s.
func goroutines() int {
	records := make([]runtime.StackRecord, 1024)
	n, whole := runtime.GoroutineProfile(records)
	for !whole {
		records = make([]runtime.StackRecord, 2*n)
		n, whole = runtime.GoroutineProfile(records)
	}
	count := 0
	for i := range records[:n] {
		if !idleWorker(records[i].Stack()) {
			count++
		}
	}
	return count
}

// idleWorker reports whether the stack is that of a worker of fasthttp that
// serves no connection.
func idleWorker(stack []uintptr) bool {
	worker := false
	for frames := runtime.CallersFrames(stack); ; {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "fasthttp.(*Server).serveConn") {
			return false
		}
		worker = worker || strings.HasSuffix(f.Function, "fasthttp.(*workerPool).workerFunc")
		if !more {
			return worker
		}
	}
}
