package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/integration/load/engine"
)

// Fault names a way for an exchange to go wrong.
type Fault string

// The faults. In each, every leg that did not cause it stays silent.
const (
	PrefillFails Fault = "prefill-fails"  // prefill refuses, decode is freed
	DecodeFails  Fault = "decode-fails"   // decode refuses, prefill is freed
	ClientLeaves Fault = "client-leaves"  // before any answer; both legs are freed
	StreamIsLeft Fault = "stream-is-left" // after decode's first event; both legs are freed
)

const (
	legsPerRun = 2
	// settle lets a router finish what it does on dispatch before the client
	// leaves, so that the time measured is that of the leaving alone.
	settle = 2 * time.Millisecond
)

// Mode is how the engine behaves to provoke f.
func (f Fault) Mode() engine.Mode {
	m := engine.Mode{Record: true, Prefill: engine.Hold, Decode: engine.Hold, EventBytes: 200}
	switch f {
	case PrefillFails:
		m.Prefill = engine.Refuse
	case DecodeFails:
		m.Decode = engine.Refuse
	case StreamIsLeft:
		m.Prefill, m.Decode = engine.OpenStream, engine.Stall
	}
	return m
}

// FaultJob asks for Runs exchanges, one after the other, that suffer Fault.
type FaultJob struct {
	Addr    string // the router
	Control string // the engine's control address
	Fault   Fault
	Runs    int
	// Limit is how long a leg may take to be freed before the run counts as a
	// miss; after GiveUp misses in a row the job ends.
	Limit  time.Duration
	GiveUp int
}

// FaultResult holds, for each run in which all that had to be freed was, the
// time from the fault to the engine learning it: by /abort_request or by the
// socket closing (Freed), and by the socket closing alone (Closed).
type FaultResult struct {
	Freed, Closed []time.Duration
	Misses        int
	Samples       []string // the first few reasons of misses
}

// RunFaults runs the job. The engine must already be in the fault's Mode.
func RunFaults(ctx context.Context, job FaultJob) (FaultResult, error) {
	var res FaultResult
	control := &engine.Control{Addr: job.Control}
	inARow := 0
	for range job.Runs {
		freed, closed, err := runFault(ctx, job, control)
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
		if err != nil {
			res.Misses++
			inARow++
			if len(res.Samples) < maxSamples {
				res.Samples = append(res.Samples, err.Error())
			}
			// Ends what the last run left open, for the next to start clean.
			if err := control.SetMode(ctx, job.Fault.Mode()); err != nil {
				return res, err
			}
			if inARow == job.GiveUp {
				return res, nil
			}
			continue
		}
		inARow = 0
		res.Freed = append(res.Freed, freed)
		if closed > 0 {
			res.Closed = append(res.Closed, closed)
		}
	}
	return res, nil
}

func runFault(ctx context.Context, job FaultJob, control *engine.Control) (freed, closed time.Duration, err error) {
	if err := control.NewRun(ctx); err != nil {
		return 0, 0, err
	}
	body := Body{Path: "/generate", Bytes: 1 << 10, Stream: job.Fault == StreamIsLeft}
	c := newConn(Job{Addr: job.Addr, Body: body, Timeout: job.Limit})
	defer c.close()
	var left time.Time
	switch job.Fault {
	case ClientLeaves, StreamIsLeft:
		left, err = openAndLeave(ctx, job, control, c)
	default:
		// An error is the refusal, or a router that never answers: the legs tell.
		if _, failed := c.do(ctx); failed == nil {
			err = errors.New("the router answered 200 to a failed exchange")
		}
	}
	if err != nil {
		return 0, 0, err
	}
	legs, err := control.Wait(ctx, legsPerRun, engine.Ended, job.Limit)
	if err != nil {
		return 0, 0, err
	}
	return freeTimes(legs, left)
}

// openAndLeave waits until both legs are up (and a stream has shown its first
// event), then closes the client's side.
func openAndLeave(ctx context.Context, job FaultJob, control *engine.Control, c *conn) (time.Time, error) {
	if job.Fault == StreamIsLeft {
		if err := c.firstEvent(ctx); err != nil {
			return time.Time{}, err
		}
	} else if err := c.dispatch(ctx); err != nil {
		return time.Time{}, err
	}
	legs, err := control.Wait(ctx, legsPerRun, engine.Opened, job.Limit)
	if err != nil {
		return time.Time{}, err
	}
	if len(legs) < legsPerRun {
		return time.Time{}, fmt.Errorf("%d legs of %d came", len(legs), legsPerRun)
	}
	time.Sleep(settle)
	left := time.Now()
	c.close()
	return left, nil
}

// freeTimes is the time from the fault to the last leg's end. The fault is a
// leg's refusal, or the client's leaving.
func freeTimes(legs []engine.Leg, left time.Time) (freed, closed time.Duration, err error) {
	if len(legs) != legsPerRun {
		return 0, 0, fmt.Errorf("%d legs came, not %d", len(legs), legsPerRun)
	}
	from := left.UnixNano()
	for _, l := range legs {
		if l.Refused != 0 {
			from = l.Refused
		}
	}
	var lastFreed, lastClosed int64
	allClosed := true
	for _, l := range legs {
		if l.Refused != 0 {
			continue
		}
		if l.Freed() == 0 {
			return 0, 0, fmt.Errorf("%s was not freed", l.Role)
		}
		lastFreed = max(lastFreed, l.Freed())
		lastClosed = max(lastClosed, l.Closed)
		allClosed = allClosed && l.Closed != 0
	}
	if !allClosed {
		return time.Duration(lastFreed - from), 0, nil
	}
	return time.Duration(lastFreed - from), time.Duration(lastClosed - from), nil
}
