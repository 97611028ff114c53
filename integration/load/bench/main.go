// Command bench measures what a router costs: it runs Tandem, nginx and, when
// they are installed, other routers beside each other between the fast engines
// of package engine and the clients of package client, each in a process of its
// own, and prints one table per kind of load. It is started by hand or by the
// Makefile, ends by itself, and ends only what it started. Linux only.
//
// It calls itself with the words engine and client as first argument for the
// processes that are not routers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	var err error
	switch {
	case len(args) > 0 && args[0] == "engine":
		err = runEngine(ctx, args[1:], in)
	case len(args) > 0 && args[0] == "client":
		err = runClient(ctx, in, out)
	default:
		err = runBench(ctx, args, out, errOut)
	}
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(errOut, "bench:", err)
		return 1
	}
	return 0
}

func runBench(ctx context.Context, args []string, out, errOut io.Writer) error {
	cfg, err := parseFlags(args, errOut)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.limit)
	defer cancel()
	r, err := newRig(ctx, cfg, errOut)
	if err != nil {
		return err
	}
	defer r.close()
	rep := newReport(cfg)
	err = errors.Join(measure(ctx, r, rep), rep.save(cfg.out))
	rep.print(out)
	return err
}

// measure runs every chosen part. What was measured before an error stays in
// the report.
func measure(ctx context.Context, r *rig, rep *report) error {
	for _, part := range []func(context.Context, *rig, *report) error{measureLoad, measureMemory, measureFaults} {
		if err := part(ctx, r, rep); err != nil {
			return err
		}
	}
	return nil
}
