package simengine

import (
	"context"
	"time"
)

// disconnectGrace is what DisconnectAfter2s waits; scaled.
const disconnectGrace = 2 * time.Second

// watch frees the items when the client leaves, by the rules of the release.
// The result ends it.
func (c *call) watch() (stop func()) {
	gone := make(chan struct{})
	unhook := context.AfterFunc(c.r.Context(), func() {
		defer close(gone)
		if c.l.ctx.Err() == nil {
			c.l.guard(c.clientGone)
		}
	})
	return func() {
		close(c.over)
		if !unhook() {
			<-gone
		}
	}
}

func (c *call) clientGone() {
	if !c.l.pass() {
		return
	}
	c.rec.update(func(r *Record) { r.ClosedByClient = time.Now() })
	items := c.req.items
	if !c.req.stream {
		c.pollWaiting(items)
		return
	}
	switch c.l.cfg.Disconnect {
	case DisconnectNever:
		for _, it := range items {
			c.l.live.remove(it)
		}
		return
	case DisconnectAfter2s:
		if !c.wait(c.l.cfg.scaled(disconnectGrace)) {
			return
		}
	}
	for _, it := range items {
		it.abort()
	}
}

// pollWaiting frees the items of a plain call at the engine's next look at its
// client, which it takes only while nothing is generated.
func (c *call) pollWaiting(items []*item) {
	period := c.l.cfg.scaled(c.l.cfg.Timers.StateWait)
	for {
		since := time.Since(c.began)
		if !c.wait(period - since%period) {
			return
		}
		for _, it := range items {
			if s := state(it.state.Load()); s != stateRunning && s != stateNone {
				it.abort()
			}
		}
	}
}

// wait sleeps for d, and while the engine is paused; false if the call or the
// life ended first.
func (c *call) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return c.l.pass()
	case <-c.over:
	case <-c.l.ctx.Done():
	}
	return false
}
