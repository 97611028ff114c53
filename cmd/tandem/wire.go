package main

import (
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/router"
)

// maxAborts bounds the aborts to engines that are under way at once.
const maxAborts = 1024

// service is a router with all that belongs to it.
type service struct {
	app        *router.App
	dialect    *sglang.Dialect
	transports []*http.Transport
}

// build makes the object graph. This is the only place that knows all of it.
func build(cfg *config, log zerolog.Logger, done func(*pd.Request, pd.Report)) (*service, error) {
	prefill, err := policy.ByName(cfg.prefillPolicy)
	if err != nil {
		return nil, err
	}
	decode, err := policy.ByName(cfg.decodePolicy)
	if err != nil {
		return nil, err
	}
	set, err := pools.New(cfg.workers(), pools.Options{Prefill: prefill, Decode: decode})
	if err != nil {
		return nil, err
	}
	keep, fresh := pd.NewTransport(cfg.connect, true), pd.NewTransport(cfg.connect, false)
	hooks := newHooks(log, done)
	group := func() legs.Group { return legs.Group{Panic: hooks.Panic} }
	dialect := &sglang.Dialect{
		Rooms:      new(bootstrap.Rooms),
		Aborts:     &legs.Aborter{Transport: keep, Max: maxAborts, Bound: hooks.Bound, Group: group()},
		MaxEvent:   cfg.maxEvent,
		ExternalDP: cfg.externalDP,
		Group:      group(),
	}
	orchestrator := &pd.Orchestrator{
		Planner: set,
		Dialect: dialect,
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh, Deadlines: pd.Deadlines{
			Request: cfg.request, FirstEvent: cfg.firstEvent, Idle: cfg.streamIdle,
		}},
		MaxSamples: cfg.maxSamples,
		MaxAnswer:  cfg.maxEvent,
		MaxEvent:   cfg.maxEvent,
		Hooks:      hooks,
		Workers:    set.Workers,
	}
	app := router.New(router.Config{
		Server:           orchestrator,
		Workers:          set.Workers,
		Transport:        keep,
		Log:              log,
		RequestIDHeaders: cfg.requestIDHeaders,
		MaxPayload:       cfg.maxPayload,
		MaxBodyMemory:    cfg.maxBodyMemory,
		WriteStall:       cfg.writeStall,
		Settle:           orNone(cfg.settle),
		Grace:            orNone(cfg.grace),
		Version:          version(),
		Bound:            hooks.Bound,
	})
	return &service{app: app, dialect: dialect, transports: []*http.Transport{keep, fresh}}, nil
}

// close waits for what outlives the requests of an ended router: legs that are
// being closed, and aborts.
func (s *service) close() {
	s.dialect.Wait()
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
// were hit, panics. done, which may be nil, hears of every request's end.
func newHooks(log zerolog.Logger, done func(*pd.Request, pd.Report)) pd.Hooks {
	sampled := log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Second})
	return pd.Hooks{
		Leg: func(req *pd.Request, leg pd.LegReport) {
			if leg.Outcome == pd.Fault || leg.Outcome == pd.PairFault {
				log.Warn().Str("id", req.ID).Str("worker", string(leg.Worker)).Stringer("outcome", leg.Outcome).
					Int("status", leg.Status).AnErr("error", asError(leg.Err)).Msg("leg failed")
			}
		},
		Retry: func(req *pd.Request, attempt int, err *pd.Error) {
			log.Debug().Str("id", req.ID).Int("attempt", attempt).Err(err).Msg("tried again")
		},
		Done:  done,
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

// asError keeps a nil *pd.Error a nil error.
func asError(err *pd.Error) error {
	if err == nil {
		return nil
	}
	return err
}
