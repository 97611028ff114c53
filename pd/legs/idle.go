package legs

import (
	"io"
	"math"
	"sync/atomic"
	"time"
)

// Idle is the deadline of each read of an answer. It keeps time only while the
// worker is being waited for: a client that reads slowly holds up nobody but
// itself. A nil one has no deadline.
type Idle struct {
	limit  time.Duration
	over   func(limit time.Duration)
	timer  *time.Timer
	opened time.Time    // what since counts from: a clock that is set must cut no stream
	since  atomic.Int64 // nanoseconds from there to when a read began, 0 while none waits
	ended  atomic.Bool
}

// WatchIdle starts a deadline. over is called once a read has waited for limit; it
// is to end that read. Stop must be called.
func WatchIdle(limit time.Duration, over func(limit time.Duration)) *Idle {
	i := &Idle{limit: limit, over: over, opened: time.Now()}
	i.timer = time.AfterFunc(math.MaxInt64, i.check) // not before timer is set
	i.timer.Reset(limit)
	return i
}

func (i *Idle) check() {
	if i.ended.Load() {
		return
	}
	silent := time.Duration(0)
	if since := i.since.Load(); since != 0 {
		silent = time.Since(i.opened) - time.Duration(since)
	}
	if silent >= i.limit {
		i.over(i.limit)
		return
	}
	i.timer.Reset(i.limit - silent)
}

// Read reads src once.
func (i *Idle) Read(src io.Reader, p []byte) (int, error) {
	if i == nil {
		return src.Read(p)
	}
	i.since.Store(max(1, int64(time.Since(i.opened))))
	n, err := src.Read(p)
	i.since.Store(0)
	return n, err
}

// Stop ends the deadline. Calls after the first do nothing.
func (i *Idle) Stop() {
	if i != nil {
		i.ended.Store(true)
		i.timer.Stop()
	}
}
