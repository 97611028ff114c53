package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// demoEngines is how many engines of each role a demo has.
const demoEngines = 2

// newDemo is the command that runs a whole cluster in one process.
func newDemo(stdout, stderr io.Writer) *cobra.Command {
	var bad mistakes
	port := 30000
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a router over simulated engines, to try it out",
		Long: "Run two simulated prefill and two simulated decode engines and a router over them,\n" +
			"in one process, over real HTTP on the loopback interface.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bad.err(); err != nil {
				return usageError{err}
			}
			return demo(cmd.Context(), port, stdout, stderr)
		},
	}
	v := numberValue(&port, 0, 65535)
	v.name, v.bad = "port", &bad
	cmd.Flags().Var(v, "port", "port of the router; 0 takes a free one")
	return cmd
}

// demo runs until a signal or the end of ctx. The port is taken first: engines
// are not started for nothing.
func demo(ctx context.Context, port int, stdout, stderr io.Writer) error {
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is in use: choose another with --port", port)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on port %d: %w", port, err)
	}
	defer ln.Close()
	cfg := defaultConfig()
	cfg.logLevel = "warn"
	cfg.settle = 0 // nobody balances load over a demo
	log, closeLog, err := newLog(cfg, stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	engines, err := startEngines(cfg, stderr)
	defer func() {
		for _, e := range engines {
			_ = e.Close()
		}
	}()
	if err != nil {
		return err
	}
	s, err := build(cfg, log, (&lineWriter{w: stdout}).done)
	if err != nil {
		return err
	}
	printDemo(stdout, cfg, ln.Addr().String())
	return s.run(ctx, log, ln)
}

// startEngines starts the engines and enters them in cfg. Also with an error it
// returns those that run.
func startEngines(cfg *config, stderr io.Writer) (engines []*simengine.Engine, err error) {
	prefill, decode := prefillValue(&cfg.prefill), decodeValue(&cfg.decode)
	for _, role := range []simengine.Role{simengine.Prefill, simengine.Decode} {
		for i := range demoEngines {
			e, err := simengine.Start(simengine.Config{
				Role:  role,
				ID:    fmt.Sprintf("%s-%d", role, i),
				Model: "tiny",
				Speed: simengine.Speed{
					PrefillDelay: 40 * time.Millisecond, TransferDelay: 5 * time.Millisecond,
					TokenInterval: 20 * time.Millisecond,
				},
				HealthDelay: -1, // the first request is not to wait for it
				RoleSwitch:  true,
				Log:         stderr,
			})
			if err != nil {
				return engines, err
			}
			engines = append(engines, e)
			if role == simengine.Prefill {
				err = prefill.parse(e.URL() + " " + strconv.Itoa(e.BootstrapPort()))
			} else {
				err = decode.parse(e.URL())
			}
			if err != nil {
				return engines, err
			}
		}
	}
	return engines, nil
}

// printDemo shows the topology and three commands to paste.
func printDemo(w io.Writer, cfg *config, addr string) {
	fmt.Fprintf(w, "A simulated prefill/decode cluster:\n\n  router     http://%s\n", addr)
	for _, p := range cfg.prefill {
		fmt.Fprintf(w, "  %s  %s  bootstrap %s:%d\n", p.ID, p.URL, p.BootstrapHost, p.BootstrapPort)
	}
	for _, d := range cfg.decode {
		fmt.Fprintf(w, "  %s   %s\n", d.ID, d.URL)
	}
	fmt.Fprintf(w, `
A chat:
  curl -s http://%[1]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":16}'

A stream:
  curl -sN http://%[1]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Hello"}],"max_tokens":32}'

The prompt's logprobs, which prefill computes and decode's answer lacks:
  curl -s http://%[1]s/generate -H 'Content-Type: application/json' \
    -d '{"text":"Hello","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":4}}'

Each request that is sent to a pair is a line below: the pair, its room, both legs (times since the request came),
time to first token, prompt+completion tokens. Stop with Ctrl-C; a second one cuts what is still streaming.

`, addr)
}
