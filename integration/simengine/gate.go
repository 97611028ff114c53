package simengine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// gate holds an engine up while it is shut, as SIGSTOP does a process. The
// kernel goes on: connections are taken and bytes are kept until it opens.
type gate struct {
	began time.Time
	mu    sync.Mutex
	stop  atomic.Pointer[stop] // nil while open
	lost  atomic.Int64         // nanoseconds of the stops that are over
}

type stop struct {
	began time.Time
	over  chan struct{}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop.Load() == nil {
		g.stop.Store(&stop{time.Now(), make(chan struct{})})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.stop.Load(); s != nil {
		g.lost.Add(int64(time.Since(s.began)))
		g.stop.Store(nil)
		close(s.over)
	}
}

func (g *gate) closed() bool { return g.stop.Load() != nil }

// pass waits until the gate is open; false if ctx ended first.
func (g *gate) pass(ctx context.Context) bool {
	for s := g.stop.Load(); s != nil; s = g.stop.Load() {
		select {
		case <-s.over:
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// ran is for how long the engine has run, without its stops. What it computes
// goes by this clock; its time limits go by the wall's, which no stop halts.
func (g *gate) ran() time.Duration {
	return time.Since(g.began) - time.Duration(g.lost.Load())
}
