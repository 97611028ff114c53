package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/tandem-pd/tandem/integration/load/client"
	"github.com/tandem-pd/tandem/integration/load/engine"
)

// runEngine is the engine process. It ends with its input, so that it cannot
// outlive the bench.
func runEngine(ctx context.Context, args []string, in io.Reader) error {
	var cfg engine.Config
	fs := flag.NewFlagSet("engine", flag.ContinueOnError)
	fs.StringVar(&cfg.Prefill, "prefill", "", "address of the prefill worker")
	fs.StringVar(&cfg.Decode, "decode", "", "address of the decode worker")
	fs.StringVar(&cfg.Control, "control", "", "address of the control port")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return engine.Run(ctx, cfg)
}

// order is what a client process is told to do: one of the two.
type order struct {
	Load  *client.Job
	Fault *client.FaultJob
}

// outcome is what it reports.
type outcome struct {
	Load  client.Result
	Fault client.FaultResult
}

// runClient is the client process: an order in, "ready" out, a line in, the
// outcome out.
func runClient(ctx context.Context, in io.Reader, out io.Writer) error {
	br := bufio.NewReader(in)
	line, err := br.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("client: order: %w", err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("client: order: %w", err)
	}
	ready := func() error {
		if _, err := fmt.Fprintln(out, "ready"); err != nil {
			return err
		}
		_, err := br.ReadString('\n')
		return err
	}
	var got outcome
	switch {
	case o.Load != nil:
		got.Load, err = client.Run(ctx, *o.Load, ready)
	case o.Fault != nil:
		if err := ready(); err != nil {
			return err
		}
		got.Fault, err = client.RunFaults(ctx, *o.Fault)
	default:
		err = errors.New("client: empty order")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(got)
}

// callClient runs one client process. atReady runs while the client waits with
// its connections up; the clock of the load starts when it returns.
func callClient(ctx context.Context, errOut io.Writer, o order, atReady func() error) (outcome, error) {
	var got outcome
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	cmd := exec.CommandContext(ctx, self, "client")
	cmd.Stderr = errOut
	in, err := cmd.StdinPipe()
	if err != nil {
		return got, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return got, err
	}
	if err := cmd.Start(); err != nil {
		return got, err
	}
	err = converse(in, out, o, atReady, &got)
	in.Close() // a client that still waits for a line ends
	return got, errors.Join(err, cmd.Wait())
}

func converse(in io.Writer, out io.Reader, o order, atReady func() error, got *outcome) error {
	if err := json.NewEncoder(in).Encode(o); err != nil {
		return fmt.Errorf("order to client: %w", err)
	}
	br := bufio.NewReader(out)
	if line, err := br.ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("client is not ready: %q: %w", line, err)
	}
	if err := atReady(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(in); err != nil {
		return fmt.Errorf("start of client: %w", err)
	}
	if err := json.NewDecoder(br).Decode(got); err != nil {
		return fmt.Errorf("outcome of client: %w", err)
	}
	return nil
}
