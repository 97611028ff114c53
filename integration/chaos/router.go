package chaos

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/router"
)

// tandem is a running router.
type tandem struct {
	url   string
	set   *pools.Set
	rooms *bootstrap.Rooms
	close func() error
}

// startRouter starts the router of a run.
func startRouter(workers []*pd.Worker, hooks pd.Hooks) (*tandem, error) {
	prefill, err := policy.ByName("power_of_two")
	if err != nil {
		return nil, err
	}
	decode, err := policy.ByName("power_of_two")
	if err != nil {
		return nil, err
	}
	set, err := pools.New(workers, pools.Options{Prefill: prefill, Decode: decode})
	if err != nil {
		return nil, err
	}
	keep, fresh := pd.NewTransport(time.Second, true), pd.NewTransport(time.Second, false)
	rooms := new(bootstrap.Rooms)
	dialect := &sglang.Dialect{
		Rooms: rooms, Aborts: &legs.Aborter{Transport: keep, Group: legs.Group{Panic: hooks.Panic}}, Group: legs.Group{Panic: hooks.Panic},
	}
	orchestrator := &pd.Orchestrator{
		Planner: set, Dialect: dialect, Hooks: hooks, Workers: set.Workers, Others: set.Others, Retry: pd.Retry{MaxAttempts: maxAttempts},
		Upstream: pd.Upstream{Transport: keep, Fresh: fresh, Deadlines: deadlines},
	}
	app := router.New(router.Config{Server: orchestrator, Workers: set.Workers, Transport: keep, Settle: -1, Version: "chaos"})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var served sync.WaitGroup
	var serveErr error
	served.Go(func() { serveErr = app.Serve(router.Watch(ln)) })
	return &tandem{url: "http://" + ln.Addr().String(), set: set, rooms: rooms, close: func() error {
		app.Shutdown(context.Background(), true)
		served.Wait()
		dialect.Wait()
		for _, t := range []*http.Transport{keep, fresh} {
			t.CloseIdleConnections()
		}
		return errors.Join(serveErr)
	}}, nil
}
