package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// config is what the command line says.
type config struct {
	rounds     int
	slice      time.Duration
	out        string
	peers      string
	routers    []router
	parts      []string
	streams    int
	largeMB    int
	largeConns int
	faultRuns  int
	settle     time.Duration
	limit      time.Duration
}

// parts of a run beside the load scenarios.
const (
	partLarge        = "large"
	partLargeChunked = "large-chunked"
	partStalled      = "stalled"
	partFaults       = "faults"
)

func partNames() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return append(names, partLarge, partLargeChunked, partStalled, partFaults)
}

func parseFlags(args []string, errOut io.Writer) (config, error) {
	var cfg config
	var names, parts string
	var extra []router
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(errOut)
	fs.IntVar(&cfg.rounds, "rounds", 9, "rounds of each load scenario; the order of the routers rotates from one to the next")
	fs.DurationVar(&cfg.slice, "slice", 2*time.Second, "length of one router's turn in a round")
	fs.StringVar(&cfg.out, "out", "", "file to write the report to as JSON, beside the table on standard output")
	fs.StringVar(&cfg.peers, "peers", "", "directory with the virtual environments sgl and smg of the peers; adds those that are there")
	fs.StringVar(&names, "routers", "", "comma-separated routers to run; default tandem, nginx and the peers found")
	fs.StringVar(&parts, "run", strings.Join(partNames(), ","), "comma-separated parts to run")
	fs.IntVar(&cfg.streams, "streams", 5000, "streams held open in the part stalled")
	fs.IntVar(&cfg.largeMB, "large-mb", 64, "megabytes of one body in the parts large and large-chunked")
	fs.IntVar(&cfg.largeConns, "large-clients", 16, "clients that each send one body in the parts large and large-chunked")
	fs.IntVar(&cfg.faultRuns, "fault-runs", 500, "exchanges per kind of fault in the part faults")
	fs.DurationVar(&cfg.settle, "settle", 2*time.Second, "how long a router's memory may settle before it is read")
	fs.DurationVar(&cfg.limit, "limit", time.Hour, "time after which the whole run is ended")
	fs.Func("router", `one more router: "name ready-path command args…" with {port} {admin} {prefill} {decode} {dir} filled in`, func(s string) error {
		r, err := parseRouter(s)
		extra = append(extra, r)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	cfg.parts = strings.Split(parts, ",")
	var err error
	cfg.routers, err = chooseRouters(append(builtIn(cfg.peers), extra...), names)
	return cfg, errors.Join(err, cfg.validate(fs.Args()))
}

func (c *config) validate(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", rest[0]))
	}
	for _, p := range c.parts {
		if !slices.Contains(partNames(), p) {
			errs = append(errs, fmt.Errorf("-run: unknown part %q, there are %s", p, strings.Join(partNames(), ", ")))
		}
	}
	for _, n := range []struct {
		flag     string
		got, max int
	}{
		{"rounds", c.rounds, 100},
		{"streams", c.streams, 20_000},
		{"large-mb", c.largeMB, 512},
		{"large-clients", c.largeConns, 64},
		{"fault-runs", c.faultRuns, 100_000},
	} {
		if n.got < 1 || n.got > n.max {
			errs = append(errs, fmt.Errorf("-%s: %d is not in 1-%d", n.flag, n.got, n.max))
		}
	}
	for _, d := range []struct {
		flag string
		got  time.Duration
	}{{"slice", c.slice}, {"settle", c.settle}} {
		if d.got < 100*time.Millisecond || d.got > time.Minute {
			errs = append(errs, fmt.Errorf("-%s: %s is not in 100ms-1m", d.flag, d.got))
		}
	}
	return errors.Join(errs...)
}

func (c *config) runs(part string) bool { return slices.Contains(c.parts, part) }
