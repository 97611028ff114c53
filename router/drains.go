package router

import (
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// drains are the workers whose time to drain is limited. A worker's state and
// its limit change together, under one lock, and what ends a drain runs under it
// too: a worker that has been resumed is never cut for a drain it was in.
type drains struct {
	mu     sync.Mutex
	timers map[pd.WorkerID]*time.Timer // of workers there are, or were in the last drainTimeoutMax
	ended  bool
}

// change drains or resumes worker id, and has cut called in limit unless the
// worker is changed again before; 0 never calls it. The error is that of change:
// nothing is kept then.
func (d *drains) change(id pd.WorkerID, change func(pd.WorkerID) error, limit time.Duration, cut func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := change(id); err != nil {
		return err
	}
	if t := d.timers[id]; t != nil {
		t.Stop()
		delete(d.timers, id)
	}
	if limit == 0 || d.ended {
		return nil
	}
	if d.timers == nil {
		d.timers = make(map[pd.WorkerID]*time.Timer)
	}
	var timer *time.Timer
	timer = time.AfterFunc(limit, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timers[id] == timer { // else it came too late to be stopped
			delete(d.timers, id)
			cut()
		}
	})
	d.timers[id] = timer
	return nil
}

// alone runs f while no worker is drained, resumed or changed by others.
func (d *drains) alone(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

// end stops them all, and what is still to be set. A cut that runs has ended
// when it returns.
func (d *drains) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	for _, t := range d.timers {
		t.Stop()
	}
	clear(d.timers)
}
