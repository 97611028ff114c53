package main

import (
	"context"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/registry"
)

// runAgain is how soon what goes on behind the requests is begun again after a
// panic: a router that looked at its workers no more would keep what has died and
// miss what is well.
const runAgain = time.Second

// static is the source of the workers on the command line.
const static = "static"

// fleet is the workers of a router and all that keeps them up to date.
type fleet struct {
	set      *pools.Set
	registry *registry.Registry
	monitor  *health.Monitor // nil where nobody looks at the workers
	sources  []registry.Source
	chooser  *chooser
}

// newFleet makes the fleet with the workers of the command line; rt asks them for
// their health and their facts.
func newFleet(cfg *config, log zerolog.Logger, hooks pd.Hooks, rt http.RoundTripper) (_ *fleet, err error) {
	f := &fleet{}
	f.monitor = newMonitor(cfg, log, hooks, rt, func(ctx context.Context, w *pd.Worker) func() error {
		return f.registry.Meet(ctx, w)
	})
	if f.chooser, err = newChooser(cfg, hooks); err != nil {
		return nil, err
	}
	options := poolOptions(cfg, log, hooks, f.monitor)
	options.Policies = f.chooser.of
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.set, err = pools.New(nil, options); err != nil {
		return nil, err
	}
	f.registry, err = registry.New(f.set, registry.Options{
		Transport: rt, APIKey: cfg.workerKey, CloseOnly: cfg.closeOnly, Ranks: cfg.dpAware, StateFile: cfg.stateFile,
		Report: func(source string, w pd.WorkerID, err error) {
			log.Warn().Str("source", source).Str("worker", string(w)).Err(err).Msg("the fleet cannot be as it is to be")
		},
	})
	if err != nil {
		return nil, err
	}
	f.registry.Apply(static, specs(cfg.workers()))
	f.sources, err = cfg.found.sources(cfg, log, f.registry)
	return f, err
}

// specs are workers of the command line as a source describes them. Where none is
// named there, the port of a bootstrap server is decode's to know.
func specs(workers []*pd.Worker) []registry.Spec {
	var out []registry.Spec
	for _, w := range workers {
		spec := registry.Spec{
			ID: w.ID, URL: w.URL, Role: w.Role, DPSize: w.DPSize,
			Priority: registry.DefaultPriority, Cost: registry.DefaultCost,
		}
		switch {
		case w.BootstrapPort != 0:
			spec.Bootstrap = w.BootstrapHost + ":" + strconv.Itoa(w.BootstrapPort)
		case w.Role == pd.Prefill:
			spec.Bootstrap = "none"
		}
		out = append(out, spec)
	}
	return out
}

// run keeps the fleet up to date until the function that is returned is called,
// which waits for the end of it.
func (f *fleet) run(log zerolog.Logger, panicked func(value any, stack []byte)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	keep := func(run func(ctx context.Context)) { wg.Go(func() { keepOn(ctx, panicked, run) }) }
	keep(f.registry.Run)
	if f.monitor != nil {
		keep(func(ctx context.Context) { f.monitor.Run(ctx, f.set) })
	}
	for _, source := range f.sources {
		keep(func(ctx context.Context) {
			err := source.Run(ctx, func(specs []registry.Spec) { f.registry.Apply(source.Name(), specs) })
			if err != nil && ctx.Err() == nil {
				log.Error().Str("source", source.Name()).Err(err).Msg("a source of workers has ended, and is begun again")
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// close ends what the policies do. Nothing may be asked of the fleet any more.
func (f *fleet) close() {
	if f.set != nil {
		f.set.Close()
	}
	f.chooser.end()
}

// keepOn runs what is to go on until ctx ends, again whenever it ends before.
func keepOn(ctx context.Context, panicked func(value any, stack []byte), run func(ctx context.Context)) {
	pause := time.NewTicker(runAgain)
	defer pause.Stop()
	for ctx.Err() == nil {
		guard(panicked, func() { run(ctx) })
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

// guard runs f and tells panicked of a panic in it.
func guard(panicked func(value any, stack []byte), f func()) {
	defer func() {
		if value := recover(); value != nil {
			panicked(value, debug.Stack())
		}
	}()
	f()
}
