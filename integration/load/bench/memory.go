package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/integration/load/client"
	"github.com/tandem-pd/tandem/integration/load/engine"
	"github.com/tandem-pd/tandem/integration/load/proc"
)

const largeTimeout = 120 * time.Second

// largeRow is one router under large bodies.
type largeRow struct {
	Router  string
	Part    string
	Payload int64 // bytes of all bodies
	Before  proc.Memory
	After   proc.Memory
	CPU     time.Duration
	Result  client.Result
}

// stalledRow is one router that holds silent streams.
type stalledRow struct {
	Router  string
	Before  proc.Memory
	Holding proc.Memory
	IdleCPU time.Duration // used in -settle while every stream is silent
	Result  client.Result
}

// measureMemory runs each part on a fresh process per router: what an earlier
// load left in a heap would be counted as the next one's.
func measureMemory(ctx context.Context, r *rig, rep *report) error {
	for _, part := range []struct {
		name string
		do   func(context.Context, *running) error
	}{
		{partLarge, func(ctx context.Context, t *running) error { return r.large(ctx, t, partLarge, rep) }},
		{partLargeChunked, func(ctx context.Context, t *running) error { return r.large(ctx, t, partLargeChunked, rep) }},
		{partStalled, func(ctx context.Context, t *running) error { return r.stalled(ctx, t, rep) }},
	} {
		if !r.cfg.runs(part.name) {
			continue
		}
		for _, rt := range r.cfg.routers {
			if err := r.onFresh(ctx, rt, part.do); err != nil {
				return fmt.Errorf("%s on %s: %w", part.name, rt.name, err)
			}
		}
	}
	return nil
}

// onFresh starts rt, makes it serve a few calls so that what it allocates once
// is allocated, and runs do.
func (r *rig) onFresh(ctx context.Context, rt router, do func(context.Context, *running) error) error {
	t, err := r.start(ctx, rt)
	if err != nil {
		return err
	}
	defer t.stop()
	if err := r.control.SetMode(ctx, engine.Mode{}); err != nil {
		return err
	}
	warm := client.Job{
		Addr: t.addr, Conns: 16, Requests: 20, Timeout: callTimeout,
		Body: client.Body{Path: "/generate", Bytes: 1 << 10},
	}
	if _, err := callClient(ctx, r.errOut, order{Load: &warm}, func() error { return nil }); err != nil {
		return err
	}
	return do(ctx, t)
}

func (r *rig) large(ctx context.Context, t *running, part string, rep *report) error {
	time.Sleep(r.cfg.settle)
	size := r.cfg.largeMB << 20
	job := client.Job{
		Addr: t.addr, Conns: r.cfg.largeConns, Requests: 1, Timeout: largeTimeout,
		Body: client.Body{Path: "/generate", Bytes: size, Chunked: part == partLargeChunked},
	}
	row := largeRow{Router: t.name, Part: part, Payload: int64(size) * int64(r.cfg.largeConns)}
	var cpu proc.CPU
	got, err := callClient(ctx, r.errOut, order{Load: &job}, func() (err error) {
		// Where the peak cannot be set back it is still right: the process is fresh.
		_ = proc.ResetPeak(t.Pid())
		if row.Before, err = proc.ReadMemory(t.Pid()); err != nil {
			return err
		}
		cpu, err = t.cpu()
		return err
	})
	if err != nil {
		return err
	}
	if row.After, err = proc.ReadMemory(t.Pid()); err != nil {
		return err
	}
	end, err := t.cpu()
	if err != nil {
		return err
	}
	row.CPU, row.Result = end.Since(cpu), got.Load
	rep.Large = append(rep.Large, row)
	r.progress("%s %s: %d calls, %d errors, peak %d MB", part, t.name, got.Load.Requests, got.Load.Errors, row.After.Peak>>20)
	return nil
}

func (r *rig) stalled(ctx context.Context, t *running, rep *report) error {
	mode := engine.Mode{Prefill: engine.AnswerStream, Decode: engine.Stall, EventBytes: 200}
	if err := r.control.SetMode(ctx, mode); err != nil {
		return err
	}
	time.Sleep(r.cfg.settle)
	row := stalledRow{Router: t.name}
	var err error
	if row.Before, err = proc.ReadMemory(t.Pid()); err != nil {
		return err
	}
	job := client.Job{
		Addr: t.addr, Conns: r.cfg.streams, Hold: true, Events: 1, Timeout: callTimeout,
		Body: client.Body{Path: "/v1/chat/completions", Bytes: 1 << 10, Stream: true},
	}
	got, err := callClient(ctx, r.errOut, order{Load: &job}, func() error { return r.readHolding(t, &row) })
	if err != nil {
		return err
	}
	row.Result = got.Load
	rep.Stalled = append(rep.Stalled, row)
	r.progress("%s %s: %d streams, %d errors, %d MB", partStalled, t.name, got.Load.Requests, got.Load.Errors, row.Holding.RSS>>20)
	return nil
}

// readHolding reads CPU and memory while every stream is open and silent.
func (r *rig) readHolding(t *running, row *stalledRow) error {
	time.Sleep(r.cfg.settle)
	start, err := t.cpu()
	if err != nil {
		return err
	}
	time.Sleep(r.cfg.settle)
	end, err := t.cpu()
	if err != nil {
		return err
	}
	row.IdleCPU = end.Since(start)
	row.Holding, err = proc.ReadMemory(t.Pid())
	return err
}
