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
	PrefillFails Fault = "prefill-fails" // prefill refuses, decode is freed
	DecodeFails  Fault = "decode-fails"  // decode refuses, prefill is freed
	// The client leaves a plain call, or a stream before its first event: both
	// legs are freed.
	ClientLeaves Fault = "client-leaves"
	StreamBefore Fault = "client-leaves-stream"
	// The client leaves in the middle of a stream: prefill has answered, decode
	// is freed.
	StreamMiddle Fault = "client-leaves-mid-stream"
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
	case StreamMiddle:
		m.Prefill, m.Decode = engine.AnswerStream, engine.Stall
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
	// Total bounds the job: no run starts after it.
	Total time.Duration
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
	end := time.Now().Add(job.Total)
	for range job.Runs {
		if time.Now().After(end) {
			return res, nil
		}
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
	body := Body{Path: "/generate", Bytes: 1 << 10, Stream: job.Fault == StreamBefore || job.Fault == StreamMiddle}
	// The client outwaits the legs: its own leaving must not free them.
	c := newConn(Job{Addr: job.Addr, Body: body, Timeout: 2 * job.Limit})
	defer c.close()
	if job.Fault == StreamMiddle {
		err = c.firstEvent(ctx)
	} else {
		err = c.dispatch(ctx)
	}
	if err != nil {
		return 0, 0, err
	}
	var left time.Time
	if job.Fault != PrefillFails && job.Fault != DecodeFails {
		if _, err := control.Wait(ctx, legsPerRun, engine.Opened, job.Limit); err != nil {
			return 0, 0, err
		}
		time.Sleep(settle)
		left = time.Now()
		c.close()
	}
	legs, err := control.Wait(ctx, legsPerRun, engine.Ended, job.Limit)
	if err != nil {
		return 0, 0, err
	}
	freed, closed, err = freeTimes(legs, left)
	if err == nil && left.IsZero() {
		if _, refused := c.receive(); refused == nil {
			err = errors.New("the router answered 200 to a failed exchange")
		}
	}
	return freed, closed, err
}

// freeTimes is the time from the fault to the last leg's end: until it was
// freed, and until its socket closed (0 if one stayed open). The fault is the
// client's leaving, or, where left is zero, a leg's refusal.
func freeTimes(legs []engine.Leg, left time.Time) (freed, closed time.Duration, err error) {
	if len(legs) != legsPerRun {
		return 0, 0, fmt.Errorf("%d legs came, not %d", len(legs), legsPerRun)
	}
	var from, lastFreed, lastClosed int64
	open := false
	for _, l := range legs {
		switch {
		case l.Answered != 0:
			from = l.Answered
		case l.Freed() == 0:
			return 0, 0, fmt.Errorf("%s was not freed", l.Role)
		default:
			lastFreed, lastClosed = max(lastFreed, l.Freed()), max(lastClosed, l.Closed)
			open = open || l.Closed == 0
		}
	}
	if !left.IsZero() {
		from = left.UnixNano()
	}
	if open {
		return time.Duration(lastFreed - from), 0, nil
	}
	return time.Duration(lastFreed - from), time.Duration(lastClosed - from), nil
}
