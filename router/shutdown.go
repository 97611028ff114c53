package router

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// The phases of an App.
const (
	running  int32 = iota
	settling       // not ready any more, still accepting
	draining       // not accepting, waiting for what is under way
	cutting        // nothing may begin any more
)

// Times of the shutdown's last part.
const (
	cutTime   = time.Second           // for the last event of a stream
	sweepTime = 50 * time.Millisecond // between two looks for silent connections
	closeTime = 5 * time.Millisecond  // between two looks for the last connection
)

// Report is what a shutdown has cut.
type Report struct {
	Requests    int // requests under way that were ended, streams with an error event
	Connections int // connections that had to be closed over what was on them
	Elapsed     time.Duration
}

// stopper is the state of a shutdown.
type stopper struct {
	begin  sync.Once
	rush   sync.Once
	rushed chan struct{} // closed by the second call
	done   chan struct{} // closed when report is set
	report Report
}

func newStopper() stopper {
	return stopper{rushed: make(chan struct{}), done: make(chan struct{})}
}

// Shutdown ends the App: readiness goes away and new requests are still taken
// for the settling time, which now skips; then the listener closes and what is
// under way may finish within the grace time; then every open stream gets an
// error event, every waiting request a 503, and their connections are closed.
// The end of ctx cuts the waits short, and so does a second call, which waits
// for the first and returns its report.
func (a *App) Shutdown(ctx context.Context, now bool) (report Report) {
	first := false
	a.stop.begin.Do(func() { first = true })
	if !first {
		a.stop.rush.Do(func() { close(a.stop.rushed) })
		<-a.stop.done
		return a.stop.report
	}
	start := time.Now()
	defer func() {
		report.Elapsed = time.Since(start)
		a.stop.report = report
		close(a.stop.done)
	}()
	a.phase.Store(settling)
	if !now {
		a.wait(ctx, nil, a.cfg.Settle)
	}
	a.phase.Store(draining)
	defer a.drains.end()

	drained := make(chan struct{})
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() {
		defer close(drained)
		defer a.recovered("")
		if a.fiber.ShutdownWithContext(stop) == nil {
			a.closed(stop)
		}
	}()
	if !a.wait(ctx, drained, a.cfg.Grace) {
		report.Requests = a.cut()
		if !closedWithin(drained, cutTime) {
			report.Connections = a.drop()
			closedWithin(drained, cutTime)
		}
	}
	cancel()
	<-drained
	return report
}

// wait waits for d, and reports whether done came first. Meanwhile connections
// that have not sent a byte are closed; the server would wait for them.
func (a *App) wait(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	sweep := time.NewTicker(sweepTime)
	defer sweep.Stop()
	for {
		if a.phase.Load() == draining {
			a.closeFresh()
		}
		select {
		case <-done:
			return true
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		case <-a.stop.rushed:
			return false
		case <-sweep.C:
		}
	}
}

// closed waits until the last connection is closed, which is a little after
// the server is done with it.
func (a *App) closed(ctx context.Context) {
	look := time.NewTicker(closeTime)
	defer look.Stop()
	for a.connections() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// connections is the number of open connections.
func (a *App) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns)
}

func closedWithin(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func (a *App) closeFresh() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		c.closeFresh()
	}
}

// cut ends every request under way and returns how many there were. One whose
// body is still coming in begins no more.
func (a *App) cut() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase.Store(cutting)
	for v := range a.visits {
		ended := errShutdown()
		ended.Stage, ended.Kind = pd.StageClient, pd.Cancelled // nobody's failure
		v.severed.Store(true)
		v.conn.stall(cutTime)
		v.cancel(ended)
	}
	return len(a.visits)
}

// drop closes every connection and returns how many there were.
func (a *App) drop() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		c.drop()
	}
	return len(a.conns)
}
