package main

import (
	"context"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/single"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/router"
)

// maxAborts bounds the aborts to engines that are under way at once.
const maxAborts = 1024

// service is a router with all that belongs to it.
type service struct {
	app        *router.App
	dialect    dialect
	transports []*http.Transport
	fleet      *fleet
	stop       func() // ends what keeps the fleet up to date
}

// build makes the object graph. This is the only place that knows all of it.
func build(cfg *config, log zerolog.Logger, done func(*pd.Request, pd.Report)) (*service, error) {
	kept, unkept := cfg.transport(true), cfg.transport(false)
	trail := router.NewTrail()
	keep, fresh := trail.Transport(kept), trail.Transport(unkept)
	hooks := newHooks(log)
	fleet, err := newFleet(cfg, log, hooks, fresh)
	if err != nil {
		return nil, err
	}
	set := fleet.set
	hooks.Done = func(req *pd.Request, report pd.Report) {
		set.Observe(req, report)
		logDone(log, req, report)
		if done != nil {
			done(req, report)
		}
	}
	dialect := newDialect(cfg, hooks, keep)
	orchestrator := &pd.Orchestrator{
		Planner: set,
		Dialect: dialect,
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh, Deadlines: pd.Deadlines{
			Request: cfg.request, FirstEvent: cfg.firstEvent, Idle: cfg.streamIdle,
		}},
		Retry:      cfg.failure.retry,
		MaxSamples: cfg.maxSamples,
		MaxAnswer:  cfg.maxEvent,
		MaxEvent:   cfg.maxEvent,
		Hooks:      hooks,
		Workers:    set.Workers,
		Others:     set.Others,
	}
	app := router.New(router.Config{
		Server:           orchestrator,
		Workers:          set.Workers,
		WorkersOf:        set.WorkersOf,
		Regular:          cfg.regular,
		Transport:        keep,
		Trail:            trail,
		Healthy:          func(_ context.Context, w *pd.Worker) bool { return set.Serves(w.ID) },
		Fleet:            router.Fleet{Registry: fleet.registry, Cut: orchestrator.Cut},
		Log:              log,
		APIKey:           cfg.apiKey,
		Origins:          cfg.origins,
		RequestIDHeaders: cfg.requestIDHeaders,
		MaxPayload:       cfg.maxPayload,
		MaxBodyMemory:    cfg.maxBodyMemory,
		WriteStall:       cfg.writeStall,
		Settle:           orNone(cfg.settle),
		Grace:            orNone(cfg.grace),
		MaxConcurrent:    cfg.failure.concurrent,
		QueueSize:        cfg.failure.queue,
		QueueTimeout:     cfg.failure.queueTimeout,
		RatePerSecond:    cfg.failure.rate,
		Version:          version(),
		Bound:            hooks.Bound,
	})
	return &service{
		app: app, dialect: dialect, transports: []*http.Transport{kept, unkept},
		fleet: fleet, stop: fleet.run(log, hooks.Panic),
	}, nil
}

// dialect is a dialect with goroutines of its own.
type dialect interface {
	pd.Dialect
	Wait()
}

// newDialect is that of pairs, or that of whole engines.
func newDialect(cfg *config, hooks pd.Hooks, rt http.RoundTripper) dialect {
	group := func() legs.Group { return legs.Group{Panic: hooks.Panic} }
	aborts := &legs.Aborter{Transport: rt, Max: maxAborts, Bound: hooks.Bound, Group: group()}
	if cfg.regular {
		return &single.Dialect{Aborts: aborts, Group: group()}
	}
	return &sglang.Dialect{
		Rooms:      new(bootstrap.Rooms),
		Aborts:     aborts,
		MaxEvent:   cfg.maxEvent,
		ExternalDP: cfg.externalDP,
		Group:      group(),
	}
}

// newMonitor looks at the workers' health, and has meet ask those that join; nil
// when nobody is to.
func newMonitor(cfg *config, log zerolog.Logger, hooks pd.Hooks, rt http.RoundTripper, meet func(context.Context, *pd.Worker) func() error) *health.Monitor {
	h := cfg.failure.health
	if h.off {
		return nil
	}
	return health.New(health.Options{
		Transport: rt, Path: h.path, Interval: h.interval, Timeout: h.timeout, StartupTimeout: h.startup,
		Failures: h.failures, Successes: h.successes, RequireBootstrap: h.requireBootstrap, Meet: meet,
		Probed: func(w *pd.Worker, took time.Duration, err error) {
			log.Debug().Str("worker", string(w.ID)).Dur("took", took).Err(err).Msg("probed")
		},
		Kept: func(w *pd.Worker, why string) {
			log.Warn().Str("worker", string(w.ID)).Str("why", why).Msg("kept as the last of its role though it does not answer")
		},
		Unreached: func(w *pd.Worker, err error) {
			if err == nil {
				log.Info().Str("worker", string(w.ID)).Msg("the bootstrap server can be reached again")
				return
			}
			log.Warn().Str("worker", string(w.ID)).Str("bootstrap_host", w.BootstrapHost).Int("bootstrap_port", w.BootstrapPort).
				Err(err).Msg("the bootstrap server cannot be reached from here; decode workers may reach it all the same")
		},
		Bound: hooks.Bound,
		Panic: hooks.Panic,
	})
}

// poolOptions are the pools' settings.
func poolOptions(cfg *config, log zerolog.Logger, hooks pd.Hooks, monitor *health.Monitor) pools.Options {
	opt := pools.Options{
		Regular: cfg.regular, Breakers: cfg.failure.breakers, MaxInFlight: cfg.failure.inFlight, Bound: hooks.Bound,
		Changed: func(w *pd.Worker, to pools.State, why string) {
			e := log.Info()
			if to == pools.Dead || to == pools.Broken {
				e = log.Warn()
			}
			e.Str("worker", string(w.ID)).Str("state", string(to)).Str("why", why).Msg("worker state")
		},
	}
	if monitor != nil {
		opt.Suspect = monitor.Suspect
	}
	return opt
}

// close waits for what outlives the requests of an ended router: legs that are
// being closed, and aborts.
func (s *service) close() {
	s.stop()
	s.dialect.Wait()
	s.fleet.close()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
}

// orNone is d as the router takes it: zero would be its default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// newHooks logs what an operator must know: failures of workers, bounds that
// were hit, panics.
func newHooks(log zerolog.Logger) pd.Hooks {
	sampled := log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second})
	return pd.Hooks{
		Leg: func(req *pd.Request, leg pd.LegReport) {
			if leg.Outcome == pd.Fault || leg.Outcome == pd.Unreachable || leg.Outcome == pd.PairFault {
				log.Warn().Str("id", req.ID).Str("worker", string(leg.Worker)).Stringer("outcome", leg.Outcome).
					Int("status", leg.Status).AnErr("error", asError(leg.Err)).Msg("leg failed")
			}
		},
		Retry: func(req *pd.Request, attempt int, err *pd.Error, wait time.Duration) {
			log.Debug().Str("id", req.ID).Int("attempt", attempt).Dur("wait", wait).Err(err).Msg("tried again")
		},
		Bound: func(name string) { sampled.Warn().Str("bound", name).Msg("a bound was hit") },
		Panic: func(value any, stack []byte) {
			e := log.Error().Bytes("stack", stack)
			if err, ok := value.(interface {
				error
				RuntimeError()
			}); ok { // any other value may hold a piece of a body
				e = e.Err(err)
			}
			e.Msg("panic")
		},
	}
}

// logDone says which workers a request was sent to and what came of it.
func logDone(log zerolog.Logger, req *pd.Request, report pd.Report) {
	e := log.Debug()
	if !e.Enabled() {
		return
	}
	for _, leg := range report.Legs {
		if leg.Attempt == report.Attempts && leg.Sample == 0 {
			e = e.Str(leg.Role.String(), string(leg.Worker))
		}
	}
	e.Str("id", req.ID).Int("attempts", report.Attempts).Dur("ttft", report.TTFT).Dur("total", report.Total).
		Int("prompt_tokens", report.PromptTokens).Int("cached_tokens", report.CachedTokens).
		Int("completion_tokens", report.CompletionTokens).AnErr("error", asError(report.Err)).Msg("request done")
}

// asError keeps a nil *pd.Error a nil error.
func asError(err *pd.Error) error {
	if err == nil {
		return nil
	}
	return err
}
