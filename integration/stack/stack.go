// Package stack builds a whole router, as the command does, inside a test: the
// object graph from the listener to the transports. What a test wants otherwise
// it changes by the functions of [Options].
package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/single"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/pools/registry"
	"github.com/tandem-pd/tandem/router"
)

// connectTimeout is that of the calls to engines.
const connectTimeout = 2 * time.Second

// Options say what a router is built over. The zero value of every field but
// Workers works; the functions are given the defaults.
type Options struct {
	Workers  []*pd.Worker
	Regular  bool   // the workers are whole engines
	Policy   string // round_robin if empty: a test can tell whose turn it is
	MaxEvent int
	// Hooks hear of every request; Panic is needed where a test must not miss one.
	Hooks pd.Hooks

	Pools        func(*pools.Options)
	Health       func(*health.Options) // nil looks at no worker: all serve at all times
	Orchestrator func(*pd.Orchestrator)
	Router       func(*router.Config)
	Transport    func(*http.Transport) // that which keeps connections
}

// Stack is a router that runs.
type Stack struct {
	URL          string
	App          *router.App
	Set          *pools.Set
	Registry     *registry.Registry
	Rooms        *bootstrap.Rooms
	Dialect      *sglang.Dialect // of pairs
	Single       *single.Dialect // of whole engines
	Orchestrator *pd.Orchestrator

	transports []*http.Transport
	served     chan error
	stop       context.CancelFunc
	monitors   sync.WaitGroup
}

// Worker is a simulated engine as a worker.
func Worker(id pd.WorkerID, e *simengine.Engine) *pd.Worker {
	w := &pd.Worker{ID: id, Role: pd.Decode, URL: e.URL()}
	switch {
	case e.Role() == simengine.Regular:
		w.Role = pd.Regular
	case e.BootstrapPort() != 0:
		w.Role, w.BootstrapHost, w.BootstrapPort = pd.Prefill, e.Host(), e.BootstrapPort()
	}
	return w
}

// Start builds a router and has it listen on a free port of the loopback
// interface.
func Start(opt Options) (*Stack, error) {
	s := &Stack{served: make(chan error, 1)}
	keep, fresh := pd.NewTransport(connectTimeout, true), pd.NewTransport(connectTimeout, false)
	if opt.Transport != nil {
		opt.Transport(keep)
	}
	s.transports = []*http.Transport{keep, fresh}
	var monitor *health.Monitor
	if opt.Health != nil {
		h := health.Options{Transport: fresh, Meet: s.meet}
		opt.Health(&h)
		monitor = health.New(h)
	}
	if err := s.pools(opt, monitor, fresh); err != nil {
		return nil, err
	}
	s.wire(opt, keep, fresh)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.URL = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.background(opt.Hooks.Panic, func() { s.Registry.Run(ctx) })
	if monitor != nil {
		s.background(opt.Hooks.Panic, func() { monitor.Run(ctx, s.Set) })
	}
	go func() { s.served <- s.App.Serve(router.Watch(ln)) }() // Close waits for it
	return s, nil
}

// background runs what goes on behind the requests until the end.
func (s *Stack) background(panicked func(value any, stack []byte), run func()) {
	s.monitors.Go(func() {
		defer func() {
			if v := recover(); v != nil && panicked != nil {
				panicked(v, debug.Stack())
			}
		}()
		run()
	})
}

// meet has the registry meet those that it knows. All others, as those that the
// router has begun with, are what the test says.
func (s *Stack) meet(ctx context.Context, w *pd.Worker) func() error {
	for _, v := range s.Registry.Status().Workers {
		if v.ID == w.ID && v.Source != "" {
			return s.Registry.Meet(ctx, w)
		}
	}
	return func() error { return nil }
}

func (s *Stack) pools(opt Options, monitor *health.Monitor, fresh *http.Transport) (err error) {
	name := opt.Policy
	if name == "" {
		name = "round_robin"
	}
	o := pools.Options{Regular: opt.Regular, Bound: opt.Hooks.Bound}
	o.Policies = func(string) (p pools.Policies, err error) {
		if opt.Regular {
			p.Regular, err = policy.ByName(name)
			return p, err
		}
		if p.Prefill, err = policy.ByName(name); err != nil {
			return p, err
		}
		p.Decode, err = policy.ByName(name)
		return p, err
	}
	if monitor != nil {
		o.Suspect = monitor.Suspect
	}
	if opt.Pools != nil {
		opt.Pools(&o)
	}
	if s.Set, err = pools.New(opt.Workers, o); err != nil {
		return err
	}
	s.Registry, err = registry.New(s.Set, registry.Options{Transport: fresh})
	return err
}

// wire builds what lies between the listener and the engines.
func (s *Stack) wire(opt Options, keep, fresh *http.Transport) {
	done := opt.Hooks.Done
	opt.Hooks.Done = func(req *pd.Request, report pd.Report) {
		s.Set.Observe(req, report)
		if done != nil {
			done(req, report)
		}
	}
	group := func() legs.Group { return legs.Group{Panic: opt.Hooks.Panic} }
	s.Rooms = new(bootstrap.Rooms)
	s.Dialect = &sglang.Dialect{
		Rooms:    s.Rooms,
		Aborts:   &legs.Aborter{Transport: keep, Group: group()},
		MaxEvent: opt.MaxEvent,
		Group:    group(),
	}
	s.Single = &single.Dialect{Aborts: &legs.Aborter{Transport: keep, Group: group()}, Group: group()}
	s.Orchestrator = &pd.Orchestrator{
		Planner:  s.Set,
		Dialect:  s.dialect(opt),
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh},
		MaxEvent: opt.MaxEvent, MaxAnswer: opt.MaxEvent,
		Hooks:   opt.Hooks,
		Workers: s.Set.Workers,
		Others:  s.Set.Others,
	}
	if opt.Orchestrator != nil {
		opt.Orchestrator(s.Orchestrator)
	}
	cfg := router.Config{
		Server: s.Orchestrator, Workers: s.Set.Workers, WorkersOf: s.Set.WorkersOf, Regular: opt.Regular, Transport: keep, Settle: -1, Version: "test",
		Bound: opt.Hooks.Bound,
		Fleet: router.Fleet{Registry: s.Registry, Cut: s.Orchestrator.Cut},
	}
	if opt.Health != nil {
		cfg.Healthy = func(_ context.Context, w *pd.Worker) bool { return s.Set.Serves(w.ID) }
	}
	if opt.Router != nil {
		opt.Router(&cfg)
	}
	s.App = router.New(cfg)
}

func (s *Stack) dialect(opt Options) pd.Dialect {
	if opt.Regular {
		return s.Single
	}
	return s.Dialect
}

// Close ends the router at once and waits for everything that it has started.
func (s *Stack) Close() error {
	s.App.Shutdown(context.Background(), true)
	err := <-s.served
	s.stop()
	s.monitors.Wait()
	s.Set.Close()
	s.Dialect.Wait()
	s.Single.Wait()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	if err != nil {
		return fmt.Errorf("the router ended: %w", err)
	}
	return nil
}
