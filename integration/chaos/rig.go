package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
)

// The engines. Their own timers run 33 times faster, which makes 9 s of the
// 300 s after which they give a peer up: later than all of the router's
// deadlines, as it is in life, so that nothing but the router frees a leg.
const (
	timeScale     = 0.03
	prefillDelay  = 10 * time.Millisecond
	transferDelay = 2 * time.Millisecond
	tokenInterval = 8 * time.Millisecond
	kvTokens      = 1 << 16
)

// rig is the engines and the router before them.
type rig struct {
	prefills, decodes []*simengine.Engine
	router            *stack.Stack
}

// newRig starts engines, which tell saw of their legs, and a router.
func newRig(prefills, decodes int, saw func(engine string, role simengine.Role, r simengine.Record), hooks pd.Hooks) (*rig, error) {
	r := &rig{}
	var workers []*pd.Worker
	for i := range prefills + decodes {
		role, name := simengine.Prefill, fmt.Sprintf("prefill-%d", i)
		if i >= prefills {
			role, name = simengine.Decode, fmt.Sprintf("decode-%d", i-prefills)
		}
		e, err := startEngine(simengine.Config{
			Role: role, ID: name, TimeScale: timeScale, HealthDelay: -1, MaxTotalTokens: kvTokens, KeepRecords: -1,
			Speed:   simengine.Speed{PrefillDelay: prefillDelay, TransferDelay: transferDelay, TokenInterval: tokenInterval},
			Observe: func(rec simengine.Record) { saw(name, role, rec) },
		})
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		if role == simengine.Prefill {
			r.prefills = append(r.prefills, e)
		} else {
			r.decodes = append(r.decodes, e)
		}
		workers = append(workers, stack.Worker(pd.WorkerID(name), e))
	}
	var err error
	if r.router, err = startRouter(workers, hooks); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// Ports of engines are below those that systems give to outgoing connections:
// one of these could take the port of a killed engine, and even connect to
// itself there.
const (
	firstPort, lastPort = 10240, 32000
	portTries           = 50
)

func startEngine(cfg simengine.Config) (e *simengine.Engine, err error) {
	for range portTries {
		port := firstPort + 2*rand.IntN((lastPort-firstPort)/2)
		at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
		cfg.Addr, cfg.BootstrapAddr = at(port), at(port+1)
		if e, err = simengine.Start(cfg); err == nil {
			return e, nil
		}
	}
	return nil, err
}

func (r *rig) engines() []*simengine.Engine {
	return append(append([]*simengine.Engine(nil), r.prefills...), r.decodes...)
}

// counters are the counts of now.
func (r *rig) counters() *counters {
	c := &counters{pools: r.router.Set.Status(), rooms: r.router.Rooms.Live(), engine: map[string]simengine.Loads{}}
	for _, e := range r.engines() {
		c.engine[e.ID()] = e.Loads()
	}
	return c
}

// ready waits until every engine takes part.
func (r *rig) ready(ctx context.Context) error {
	all := func() bool {
		return !slices.ContainsFunc(r.engines(), func(e *simengine.Engine) bool { return !r.router.Set.Serves(pd.WorkerID(e.ID())) })
	}
	if !until(ctx, 2*settleTime, all) {
		return fmt.Errorf("not all engines take part after %s: %+v", 2*settleTime, r.router.Set.Status())
	}
	return nil
}

// fresh restarts all engines, which closes every connection to them and between
// them, and forgets what they cache.
func (r *rig) fresh() error {
	var errs []error
	for _, e := range r.engines() {
		errs = append(errs, e.Restart())
	}
	return errors.Join(errs...)
}

// close ends everything.
func (r *rig) close() error {
	var errs []error
	if r.router != nil {
		errs = append(errs, r.router.Close())
	}
	for _, e := range r.engines() {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// until waits for ok, at most for d.
func until(ctx context.Context, d time.Duration, ok func() bool) bool {
	const every = 50 * time.Millisecond
	for end := time.Now().Add(d); !ok(); wait(ctx, every) {
		if ctx.Err() != nil || time.Now().After(end) {
			return ok()
		}
	}
	return true
}
