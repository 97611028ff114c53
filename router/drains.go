package router

import (
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// drains are the workers whose time to drain is limited.
type drains struct {
	mu     sync.Mutex
	timers map[pd.WorkerID]*time.Timer
	ended  bool
}

// set has f called in limit unless it is set anew before; 0 never calls it.
func (d *drains) set(id pd.WorkerID, limit time.Duration, f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.timers[id]; t != nil {
		t.Stop()
		delete(d.timers, id)
	}
	if limit == 0 || d.ended {
		return
	}
	if d.timers == nil {
		d.timers = make(map[pd.WorkerID]*time.Timer)
	}
	d.timers[id] = time.AfterFunc(limit, f)
}

// end stops them all, and what is still to be set.
func (d *drains) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for _, t := range d.timers {
		t.Stop()
	}
}
