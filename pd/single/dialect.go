package single

import (
	"context"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// Dialect runs exchanges on whole engines. Aborts must be set; it is used by
// pointer and serves any number of requests at once.
type Dialect struct {
	Aborts *legs.Aborter
	// Group runs the closing of answers that were not read to their end.
	Group legs.Group
}

// Name is the dialect's name.
func (d *Dialect) Name() string { return "single" }

// Wait returns when every goroutine of the dialect has ended, which they do
// soon after their requests have.
func (d *Dialect) Wait() {
	d.Group.Wait()
	d.Aborts.Group.Wait()
}

// Samples is 1: a whole engine handles n itself, and judges the body.
func (d *Dialect) Samples(*pd.Request) (int, error) { return 1, nil }

// Exchange sends the body to the plan's one worker, which is in the place of
// decode, and returns when its answer may go to the client.
func (d *Dialect) Exchange(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	x := d.prepare(ctx, up, req, plan)
	returned := false
	defer func() {
		if !returned { // a hook panics, and the caller recovers it
			x.leg.End(pd.Unused, nil)
		}
	}()
	answer, err := x.run()
	returned = true
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// prepare makes the leg, and has it end with ctx or when its time is over.
func (d *Dialect) prepare(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) *exchange {
	x := &exchange{d: d, up: up, req: req}
	w := plan.Decode.Worker
	call := &pd.Call{Worker: w, Method: req.Method, Path: req.Path(), Header: req.Header, Body: req.Payload()}
	if w.Rank != nil && req.Endpoint != pd.Other { // of other APIs it is not known where they name a rank
		call.Body, call.Header = sglang.ForRank(req, *w.Rank)
	}
	x.leg = legs.NewLeg(ctx, req, plan.Decode, call, nil, sglang.GivenRids(req), func(o pd.Outcome) {
		x.stop()
		x.limit.Stop()
		plan.End(pd.Unused, o)
	})
	limit := up.Deadlines.Request
	x.limit = time.AfterFunc(limit, func() { x.expire(true, limit) })
	x.stop = legs.OnCancel(ctx, func(why *pd.Error) { x.drop(why, pd.Left) })
	return x
}
