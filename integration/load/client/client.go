// Package client is the load on a router: closed-loop connections, a paced
// open loop, streams that are held open, and single exchanges that go wrong on
// purpose. The bench command runs each Job in a process of its own; the package
// checks every answer and knows nothing of the router it talks to.
package client

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Job is one slice of load.
type Job struct {
	Addr string // the router, "host:port"
	Body Body
	// Conns is how many connections work side by side.
	Conns int
	// Duration ends a closed or paced loop: no call starts after it.
	Duration time.Duration
	// Requests ends a loop after that many calls on each connection; 0 means
	// that Duration alone ends it.
	Requests int
	// Rate is calls per second over all connections, 0 for a closed loop.
	Rate int
	// Events is what each stream must deliver, [DONE] not counted; 0 expects a
	// JSON answer.
	Events int
	// Hold opens Conns streams, waits for the first event of each, and keeps
	// them until it is told to go on.
	Hold bool
	// Timeout bounds one call.
	Timeout time.Duration
}

// Result is what a Job saw. Counts are of calls that ended well.
type Result struct {
	Requests int
	Events   int
	Errors   int
	Samples  []string // the first few distinct errors
	Elapsed  time.Duration
	// Latencies has one entry per call of a paced job, from the moment the call
	// was due to be sent to the last byte of its answer.
	Latencies []time.Duration
}

const maxSamples = 5

type tally struct {
	mu sync.Mutex
	Result
}

func (t *tally) add(events int, latency time.Duration, paced bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.Errors++
		if len(t.Samples) < maxSamples {
			t.Samples = append(t.Samples, err.Error())
		}
		return
	}
	t.Requests++
	t.Events += events
	if paced {
		t.Latencies = append(t.Latencies, latency)
	}
}

// Run prepares the job's connections, calls ready (which blocks until the load
// may start, or for Hold until the streams may end), works, and returns. Each
// connection has made one call before ready, outside the counts.
func Run(ctx context.Context, job Job, ready func() error) (Result, error) {
	if job.Hold {
		return hold(ctx, job, ready)
	}
	conns := make([]*conn, job.Conns)
	t := &tally{}
	parallel(len(conns), len(conns), func(i int) {
		conns[i] = newConn(job)
		if job.Requests > 0 {
			return
		}
		if _, err := conns[i].do(ctx); err != nil {
			t.add(0, 0, false, fmt.Errorf("warm-up: %w", err))
		}
	})
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	if err := ready(); err != nil {
		return t.Result, err
	}
	start := time.Now()
	if job.Rate > 0 {
		paced(ctx, job, conns, t)
	} else {
		parallel(len(conns), len(conns), func(i int) { closedLoop(ctx, job, conns[i], start, t) })
	}
	t.Elapsed = time.Since(start)
	return t.Result, nil
}

func closedLoop(ctx context.Context, job Job, c *conn, start time.Time, t *tally) {
	for n := 0; ctx.Err() == nil; n++ {
		if job.Requests > 0 && n == job.Requests || job.Duration > 0 && time.Since(start) >= job.Duration {
			return
		}
		events, err := c.do(ctx)
		t.add(events, 0, false, err)
		if err != nil {
			// A router that refuses at once must not turn the loop into a storm.
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// paced sends one call per 1/Rate second on whichever connection is free. A
// call that finds none free waits, and the wait is part of its latency.
func paced(ctx context.Context, job Job, conns []*conn, t *tally) {
	due := make(chan time.Time, int(job.Duration.Seconds()*float64(job.Rate))+1)
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			for released := range due {
				events, err := c.do(ctx)
				t.add(events, time.Since(released), true, err)
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(job.Rate))
	defer tick.Stop()
	for end := time.Now().Add(job.Duration); time.Now().Before(end) && ctx.Err() == nil; {
		<-tick.C
		due <- time.Now()
	}
	close(due)
	wg.Wait()
}

// openers is how many streams a Hold job opens at a time.
const openers = 32

func hold(ctx context.Context, job Job, ready func() error) (Result, error) {
	t := &tally{}
	start := time.Now()
	conns := make([]*conn, job.Conns)
	parallel(len(conns), openers, func(i int) {
		conns[i] = newConn(job)
		err := conns[i].firstEvent(ctx)
		t.add(1, 0, false, err)
	})
	t.Elapsed = time.Since(start)
	err := ready()
	for _, c := range conns {
		c.close()
	}
	return t.Result, err
}

// parallel calls f(0) to f(n-1) on at most width goroutines and waits.
func parallel(n, width int, f func(int)) {
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range min(width, n) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	wg.Wait()
}
