package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/integration/load/client"
)

const (
	// freeLimit is how long a leg may take to be freed; a real one would
	// generate tokens for nobody meanwhile.
	freeLimit = 2 * time.Second
	// giveUp is how many misses in a row say that a router does not free at all.
	giveUp = 5
	// faultsLimit bounds all runs of one fault on one router.
	faultsLimit = 3 * time.Minute
)

// faultRow is one router under one kind of fault.
type faultRow struct {
	Router string
	Fault  client.Fault
	Result client.FaultResult
}

// measureFaults runs each kind of fault on a fresh process per router.
func measureFaults(ctx context.Context, r *rig, rep *report) error {
	if !r.cfg.runs(partFaults) {
		return nil
	}
	faults := []client.Fault{
		client.PrefillFails, client.DecodeFails,
		client.ClientLeaves, client.StreamBefore, client.StreamMiddle,
	}
	for _, f := range faults {
		for _, rt := range r.cfg.routers {
			err := r.onFresh(ctx, rt, func(ctx context.Context, t *running) error { return r.fault(ctx, t, f, rep) })
			if err != nil {
				return fmt.Errorf("%s on %s: %w", f, rt.name, err)
			}
		}
	}
	return nil
}

func (r *rig) fault(ctx context.Context, t *running, f client.Fault, rep *report) error {
	if err := r.control.SetMode(ctx, f.Mode()); err != nil {
		return err
	}
	job := client.FaultJob{
		Addr: t.addr, Control: r.control.Addr, Fault: f,
		Runs: r.cfg.faultRuns, Limit: freeLimit, GiveUp: giveUp, Total: faultsLimit,
	}
	got, err := callClient(ctx, r.errOut, order{Fault: &job}, func() error { return nil })
	if err != nil {
		return err
	}
	rep.Faults = append(rep.Faults, faultRow{t.name, f, got.Fault})
	r.progress("%s %s: %d runs freed, %d misses", f, t.name, len(got.Fault.Freed), got.Fault.Misses)
	return nil
}
