package pd

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A Dialect runs the legs of one sample the way one kind of engine wants it.
type Dialect interface {
	Name() string
	// Samples checks the body for what the engines must not get and returns
	// over how many exchanges the request fans out: its n, or 1 where the
	// engine handles n itself. Errors are Invalid.
	Samples(req *Request) (int, error)
	// Exchange runs the legs of one sample and returns at the commit. It ends
	// the plan on every path, also after it returned an error. Errors are
	// *Error. It returns an error as soon as the failure is known, and closes
	// the legs behind it.
	Exchange(ctx context.Context, up *Upstream, req *Request, plan *Plan) (*Response, error)
}

// ridSettle is how long a resend that keeps the client's own rid waits for the
// engines to forget the first one.
const ridSettle = 2 * time.Second

// maxItems bounds the samples of all prompts of a request, and with them its
// rooms, rids and aborts. It is far above any batch that an engine takes.
const maxItems = 1 << 16

// Orchestrator serves requests. Planner, Dialect and Upstream must be set; the
// zero value of the other fields is their default.
type Orchestrator struct {
	Planner  Planner
	Dialect  Dialect
	Upstream Upstream

	Retry      Retry
	MaxSamples int // bound on n, 128 when 0
	// MaxAnswer bounds an answer that must be held whole to merge n samples, in
	// bytes; 64 MiB when 0.
	MaxAnswer int
	// MaxEvent bounds one event of a stream that is merged with others, in
	// bytes; 64 MiB when 0.
	MaxEvent int
	Hooks    Hooks
	// Workers lists every worker, for an abort that names no live request. Nil
	// knows of none.
	Workers func() []*Worker
	// Others reports whether a worker of role, none of avoid, takes req now: one
	// that is busy or not there is not asked twice. Nil takes it that there is one.
	Others func(req *Request, role Role, avoid []WorkerID) bool

	live liveSet
}

// Serve runs req and returns at the commit, when bytes may go to the client.
// Cancelling ctx means that the client has left: it ends every leg at once, at
// any time until the response's Body has ended. Errors are *Error.
func (o *Orchestrator) Serve(ctx context.Context, req *Request) (*Response, error) {
	if req.Start.IsZero() {
		req.Start = time.Now()
	}
	name := req.Rid
	if name == "" {
		name = NewRid()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	req.trace = newTrace(req.Start, &o.Hooks)
	req.live = o.live.add(name, req.Rids, cancel) // which cancels ctx when the request ends
	var (
		resp     *Response
		err      error
		returned bool
	)
	defer func() {
		switch { // a planner, a dialect or a hook may panic: the caller recovers it
		case returned:
		case resp != nil:
			_ = resp.Body.Close()
		default:
			o.end(req, AsError(errors.New("panic while serving the request")))
		}
	}()
	resp, err = o.attempts(ctx, req)
	if err != nil {
		returned = true
		e := AsError(err)
		o.end(req, e)
		return nil, e
	}
	req.trace.commit()
	resp.Body = &endBody{ReadCloser: resp.Body, end: func(err error) {
		if err == nil {
			o.end(req, nil)
			return
		}
		o.end(req, AsError(err))
	}}
	if o.Hooks.Committed != nil {
		o.Hooks.Committed(req)
	}
	returned = true
	return resp, nil
}

func (o *Orchestrator) end(req *Request, err *Error) {
	o.live.leave(req.live)
	if o.Hooks.Done != nil {
		o.Hooks.Done(req, req.trace.finish(req.Attempt, err))
	}
}

// attempts plans and runs until one attempt commits or the last has failed.
func (o *Orchestrator) attempts(ctx context.Context, req *Request) (resp *Response, err error) {
	samples, err := o.samples(req)
	if err != nil {
		return nil, err
	}
	d := new(dispute)
	defer func() { d.settle(resp != nil) }()
	kept := o.Upstream
	kept.Deadlines = kept.Deadlines.WithDefaults()
	up := &kept
	o.Retry.Budget.request()
	state := attempts{limit: o.Retry.withDefaults().MaxAttempts, began: time.Now()}
	var (
		avoid []WorkerID
		told  *Error // what the client hears if there is no other attempt
	)
	for {
		if gone := cancelCause(ctx); gone != nil {
			return nil, gone
		}
		plans, err := o.Planner.Plan(ctx, req, samples, avoid)
		if err == nil && len(plans) == 0 {
			err = errors.New("the planner returned no plan")
		}
		if err != nil && told != nil {
			return nil, told // which says more than that nobody is left
		}
		if err != nil {
			return nil, err
		}
		for _, p := range plans {
			p.underDispute(d)
		}
		req.Attempt++
		state.made++
		resp, err := o.attempt(ctx, up, req, plans)
		if err == nil {
			return resp, nil
		}
		failed := AsError(err)
		d.failed(failed)
		if told == nil || failed.Code != CodeDuplicateRid {
			told = failed // an engine that still has the attempt before says nothing of the request
		}
		req.live.failed() // from here on an abort cancels ctx
		req.trace.again()
		if gone := cancelCause(ctx); gone != nil {
			return nil, gone
		}
		state.aborted = req.Aborted()
		tried := failed.avoid(avoid)
		state.others = o.others(req, failed, tried)
		next := retry(failed, state)
		if !o.goOn(ctx, req, failed, next, state) {
			return nil, told
		}
		if failed.Kind == Stale {
			fresh := kept // a copy: the failed attempt's legs may still read theirs
			fresh.fresh = true
			up = &fresh
		}
		avoid = tried // a worker that has closed a connection may be ending
		state.spend(next, failed)
	}
}

// goOn waits for what next says, within the budget, or until ctx ends; false when
// there is to be no other attempt.
func (o *Orchestrator) goOn(ctx context.Context, req *Request, failed *Error, next verdict, state attempts) bool {
	policy, wait := o.Retry.withDefaults(), time.Duration(0)
	if next == again {
		wait = policy.backoff(state.made)
	}
	late := time.Since(state.began)+wait >= o.Upstream.Deadlines.WithDefaults().Request
	if next == giveUp || late {
		return false
	}
	if next == again && !policy.Budget.take() {
		req.Bound("retry_budget")
		return false
	}
	if o.Hooks.Retry != nil {
		o.Hooks.Retry(req, req.Attempt, failed, wait)
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if req.Rid != "" || req.Rids != nil {
		req.live.settled(ctx, ridSettle)
	}
	return true
}

// others reports whether a worker is left that can stand in for the failed one:
// of its role, and none that is to be avoided.
func (o *Orchestrator) others(req *Request, failed *Error, avoid []WorkerID) bool {
	role := Prefill
	switch failed.Stage {
	case StageDecode:
		role = Decode
	case StageRegular:
		role = Regular
	}
	return o.Others == nil || o.Others(req, role, avoid)
}

// Cut ends every request that worker id is at work on, streams with an error
// event, and returns how many there were: for a worker that has to go before its
// work is done. Nobody is blamed.
func (o *Orchestrator) Cut(id WorkerID) int {
	return o.live.cut(id, &Error{
		Stage: StagePlan, Worker: id, Kind: Unavailable, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "worker_removed", Message: "worker " + string(id) + " was taken out of service",
	})
}

// samples is the number of exchanges, within the bounds.
func (o *Orchestrator) samples(req *Request) (int, error) {
	limit := o.MaxSamples
	if limit == 0 {
		limit = 128
	}
	n, err := o.Dialect.Samples(req)
	if err == nil && n > limit {
		err = invalid("n", "n must be at most %d", limit)
	}
	if err == nil && n*req.Items > maxItems {
		err = invalid("", "a batch must ask for at most %d samples in all", maxItems)
	}
	return n, err
}

func (o *Orchestrator) attempt(ctx context.Context, up *Upstream, req *Request, plans []*Plan) (*Response, error) {
	returned := false
	defer func() {
		if !returned { // a hook or the dialect panics
			for _, plan := range plans {
				plan.End(Unused, Unused)
			}
		}
	}()
	if o.Hooks.Planned != nil {
		o.Hooks.Planned(req, req.Attempt, plans[0])
	}
	run := func(ctx context.Context, req *Request, plan *Plan) (*Response, error) {
		return o.Dialect.Exchange(ctx, up, req, plan)
	}
	var resp *Response
	var err error
	if len(plans) == 1 {
		resp, err = run(ctx, req, plans[0])
	} else {
		resp, err = o.fanOut(ctx, req, plans, run)
	}
	returned = true
	return resp, err
}
