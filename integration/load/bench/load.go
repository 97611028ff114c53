package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/integration/load/client"
	"github.com/tandem-pd/tandem/integration/load/engine"
	"github.com/tandem-pd/tandem/integration/load/proc"
)

// scenario is one kind of load that all routers take turns at.
type scenario struct {
	name string
	mode engine.Mode
	job  client.Job // without Addr and Duration
}

const callTimeout = 30 * time.Second

func scenarios() []scenario {
	stream := func(gap time.Duration) engine.Mode {
		return engine.Mode{Prefill: engine.AnswerStream, Decode: engine.AnswerStream, Events: 64, EventBytes: 200, Gap: gap}
	}
	post := client.Body{Path: "/generate", Bytes: 1 << 10}
	chat := client.Body{Path: "/v1/chat/completions", Bytes: 1 << 10, Stream: true}
	return []scenario{
		{"post-1k", engine.Mode{}, client.Job{Body: post, Conns: 64}},
		{"post-1m", engine.Mode{}, client.Job{Body: client.Body{Path: "/generate", Bytes: 1 << 20}, Conns: 8}},
		{"sse-flat", stream(0), client.Job{Body: chat, Conns: 64, Events: 64}},
		{"sse-paced", stream(5 * time.Millisecond), client.Job{Body: chat, Conns: 64, Events: 64}},
		{"latency", engine.Mode{}, client.Job{Body: post, Conns: 16, Rate: 100}},
	}
}

// slice is one router's turn in one round.
type slice struct {
	Round  int
	CPU    time.Duration // of the router and its children
	Result client.Result
	Legs   engine.Counts // read by the workers, warm-up included
}

// units is what the router's CPU is divided by: events of a stream, else calls.
func (s slice) units() int {
	if s.Result.Events > 0 {
		return s.Result.Events
	}
	return s.Result.Requests
}

// direct names the turns in which the client calls the decode worker itself.
const direct = "direct"

// measureLoad runs the load scenarios, all routers up side by side.
func measureLoad(ctx context.Context, r *rig, rep *report) error {
	var chosen []scenario
	for _, s := range scenarios() {
		if r.cfg.runs(s.name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	var targets []*running
	for _, rt := range r.cfg.routers {
		up, err := r.start(ctx, rt)
		if err != nil {
			return err
		}
		defer up.stop()
		targets = append(targets, up)
	}
	for _, s := range chosen {
		if err := r.control.SetMode(ctx, s.mode); err != nil {
			return err
		}
		turns := targets
		if s.job.Rate > 0 {
			turns = append(turns[:len(turns):len(turns)], &running{router: router{name: direct}, addr: r.decode})
		}
		if err := r.rounds(ctx, s, turns, rep); err != nil {
			return err
		}
	}
	return nil
}

// rounds gives each target one slice per round. The order rotates, so that no
// router always follows the same neighbour.
func (r *rig) rounds(ctx context.Context, s scenario, targets []*running, rep *report) error {
	for round := range r.cfg.rounds {
		for i := range targets {
			t := targets[(round+i)%len(targets)]
			got, err := r.slice(ctx, s, t)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", s.name, t.name, err)
			}
			got.Round = round
			rep.addSlice(s, t.name, got)
			r.progress("%s round %d/%d %s: %d calls, %d errors", s.name, round+1, r.cfg.rounds, t.name, got.Result.Requests, got.Result.Errors)
		}
	}
	return nil
}

func (r *rig) slice(ctx context.Context, s scenario, t *running) (slice, error) {
	job := s.job
	job.Addr, job.Duration, job.Timeout = t.addr, r.cfg.slice, callTimeout
	ctx, cancel := context.WithTimeout(ctx, r.cfg.slice+2*callTimeout)
	defer cancel()
	legs, err := r.control.Counts(ctx)
	if err != nil {
		return slice{}, err
	}
	var before proc.CPU
	got, err := callClient(ctx, r.errOut, order{Load: &job}, func() error {
		before, err = t.cpu()
		return err
	})
	if err != nil {
		return slice{}, err
	}
	after, err := t.cpu()
	if err != nil {
		return slice{}, err
	}
	now, err := r.control.Counts(ctx)
	if err != nil {
		return slice{}, err
	}
	legs = engine.Counts{Prefill: now.Prefill - legs.Prefill, Decode: now.Decode - legs.Decode}
	out := slice{CPU: after.Since(before), Result: got.Load, Legs: legs}
	if n := int64(got.Load.Requests); t.name != direct && (legs.Prefill < n || legs.Decode < n) {
		return slice{}, fmt.Errorf("%d calls answered, but only %d prefill and %d decode legs", n, legs.Prefill, legs.Decode)
	}
	return out, nil
}

// cpu is nothing for the direct target, which is no process of its own.
func (u *running) cpu() (proc.CPU, error) {
	if u.Child == nil {
		return nil, nil
	}
	return proc.ReadCPU(u.Pid())
}
