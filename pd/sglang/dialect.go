package sglang

import (
	"context"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sse"
)

// Dialect runs exchanges on SGLang pairs. Rooms and Aborts must be set; it is
// used by pointer and serves any number of requests at once.
type Dialect struct {
	Rooms  *bootstrap.Rooms
	Aborts *legs.Aborter
	// MaxEvent bounds one event that must be held whole, and an answer that is
	// spliced, in bytes; 64 MiB when 0.
	MaxEvent int
	// ExternalDP names a data-parallel rank for each leg, at random, where a
	// worker has several, and refuses a plain /generate answer from another.
	ExternalDP bool
	// Group runs the legs' goroutines.
	Group legs.Group
}

// Name is the dialect's name.
func (d *Dialect) Name() string { return "sglang" }

// Wait returns when every goroutine of the dialect has ended, which they do
// soon after their requests have.
func (d *Dialect) Wait() {
	d.Group.Wait()
	d.Aborts.Group.Wait()
}

func (d *Dialect) maxEvent() int {
	if d.MaxEvent == 0 {
		return sse.DefaultMax
	}
	return d.MaxEvent
}

// Samples refuses what kills or corrupts the engines, and fans out by n, which
// they cannot do in a pair: both legs would hang.
func (d *Dialect) Samples(req *pd.Request) (int, error) {
	if _, err := wants(req); err != nil {
		return 0, err
	}
	for _, role := range [...]pd.Role{pd.Prefill, pd.Decode} {
		if _, err := req.RankWish(role); err != nil {
			return 0, err
		}
	}
	return req.N, check(req)
}

// Exchange sends the body to both workers and returns when decode's answer may
// go to the client.
func (d *Dialect) Exchange(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan) (*pd.Response, error) {
	want, err := wants(req)
	if err != nil {
		plan.End(pd.Unused, pd.Unused)
		return nil, err
	}
	x := d.prepare(ctx, up, req, plan, want)
	x.pair.Watch(ctx)
	x.arm()
	d.Group.Go(x.runPrefill, x.prefillPanicked)
	d.Group.Go(x.runDecode, x.decodePanicked)
	if err := x.pair.Wait(); err != nil {
		return nil, err
	}
	return x.answer, nil
}

// prepare takes the rooms and makes both legs.
func (d *Dialect) prepare(ctx context.Context, up *pd.Upstream, req *pd.Request, plan *pd.Plan, want splices) *exchange {
	ranks := d.ranks(req, plan)
	rooms := d.Rooms.Take(req.Items, plan.Prefill.Worker.DPSize, ranks.prefill)
	rids := exchangeRids(req)
	x := &exchange{
		d: d, up: up, req: req, want: want, rank: ranks.answer,
		pair: legs.NewPair(plan, d.Aborts), items: items{req: req},
	}
	numbers := make([]uint64, len(rooms))
	for i, r := range rooms {
		numbers[i] = uint64(r)
	}
	m := members(req, plan.Prefill.Worker, numbers, rids)
	edit := req.Edit.Clone()
	edit.Cut("bootstrap_pair_key") // the one bootstrap field that is not written
	ranks.cut(edit)
	header := ranks.header(req.Header)
	leg := func(lease *pd.Lease) *legs.Leg {
		w := lease.Worker
		call := &pd.Call{
			Worker: w, Method: req.Method, Path: req.Endpoint.Path(), Header: header,
			Body: edit.Payload(append(m[:len(m):len(m)], ranks.members(w.Role)...)...),
		}
		return legs.NewLeg(ctx, req, lease, call, numbers, rids, x.pair.Ended(w.Role))
	}
	x.pair.Prefill = leg(plan.Prefill)
	x.pair.Decode = leg(plan.Decode)
	x.pair.HandedOver = x.handedOver
	x.pair.OnEnd = func() {
		x.disarm()
		d.Rooms.Release(rooms)
	}
	return x
}
