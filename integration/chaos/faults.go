package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// dice are shared by the requests of a faulty engine.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

// roll is in [0, n).
func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.roll(int(to-from)))
}

// patient is an engine in the hands of the director.
type patient struct {
	engine *simengine.Engine
	dice   *dice
}

// kind is one way in which an engine breaks. run breaks it for about d and
// leaves it whole, also when ctx ends first; its error is that it could not.
type kind struct {
	name        string
	prefillOnly bool
	paused      bool
	harmless    bool
	run         func(ctx context.Context, p patient, d time.Duration) error
}

const (
	errorBody  = `{"object":"error","message":"asked for by the director","type":"InternalServerError","param":null,"code":%d}`
	errorEvent = `{"error":{"message":"asked for by the director","type":"InternalServerError","code":500}}`
)

// kinds are all the ways. Where a fault may hit a request, others go well.
var kinds = []kind{
	{name: "kill", run: kill},
	{name: "restart", run: func(_ context.Context, p patient, _ time.Duration) error { return p.engine.Restart() }},
	{name: "pause", paused: true, run: func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.Pause()
		defer p.engine.Resume()
		wait(ctx, d)
		return nil
	}},
	{name: "slow", harmless: true, run: some(1, func(d *dice) *simengine.Fault {
		return &simengine.Fault{Delay: d.between(0, 200*time.Millisecond), HeadDelay: d.between(0, 200*time.Millisecond)}
	})},
	{name: "fragments", harmless: true, run: some(1, func(d *dice) *simengine.Fault {
		return []*simengine.Fault{{Split: 40 + d.roll(100)}, {Merge: 2 + d.roll(3)}, {Pad: d.roll(8 << 10)}}[d.roll(3)]
	})},
	{name: "reset", run: some(2, func(*dice) *simengine.Fault { return &simengine.Fault{Reset: true} })},
	{name: "status 500", run: some(2, func(*dice) *simengine.Fault { return says(http.StatusInternalServerError) })},
	{name: "status 429", run: some(1, func(*dice) *simengine.Fault { return says(http.StatusTooManyRequests) })},
	{name: "status 503", run: some(1, func(*dice) *simengine.Fault { return says(http.StatusServiceUnavailable) })},
	{name: "hang", run: some(3, func(*dice) *simengine.Fault { return &simengine.Fault{Hang: true} })},
	{name: "cut", run: some(2, func(d *dice) *simengine.Fault {
		n := 1 + d.roll(4)
		return []*simengine.Fault{{CutAfter: n}, {ResetAfter: n}}[d.roll(2)]
	})},
	{name: "truncate", run: some(2, func(d *dice) *simengine.Fault { return &simengine.Fault{TruncateAfter: 1 + d.roll(4)} })},
	{name: "error event", run: some(2, func(d *dice) *simengine.Fault {
		return &simengine.Fault{ErrorAt: 1 + d.roll(3), ErrorEvent: errorEvent}
	})},
	{name: "die early", run: die(simengine.DieBeforeHandshake)},
	{name: "die late", run: die(simengine.DieAfterHandshake)},
	{name: "ill", run: func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.SetPathFault("/health", says(http.StatusServiceUnavailable))
		defer p.engine.SetPathFault("/health", nil)
		wait(ctx, d)
		return nil
	}},
	{name: "lost transfers", prefillOnly: true, run: loseTransfers(func(d *dice) bool { return d.roll(4) == 0 })},
	{name: "bad pair", prefillOnly: true, run: func(ctx context.Context, p patient, d time.Duration) error {
		var once sync.Once
		return loseTransfers(func(*dice) (first bool) {
			once.Do(func() { first = true })
			return first
		})(ctx, p, d)
	}},
	{name: "bootstrap down", prefillOnly: true, run: bootstrapIs(simengine.BootstrapDown)},
	{name: "unregistered", prefillOnly: true, run: bootstrapIs(simengine.BootstrapUnregistered)},
}

// wait returns after d or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func says(status int) *simengine.Fault {
	return &simengine.Fault{Status: status, Body: fmt.Appendf(nil, errorBody, status), Header: http.Header{"Retry-After": {"1"}}}
}

// some lets one in so many requests meet a fault.
func some(oneIn int, fault func(*dice) *simengine.Fault) func(context.Context, patient, time.Duration) error {
	return func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.SetFault(func(simengine.Record) *simengine.Fault {
			if p.dice.roll(oneIn) != 0 {
				return nil
			}
			return fault(p.dice)
		})
		defer p.engine.SetFault(nil)
		wait(ctx, d)
		return nil
	}
}

func kill(ctx context.Context, p patient, d time.Duration) error {
	p.engine.Kill()
	wait(ctx, d)
	return p.engine.Restart()
}

// die lets the next request kill the engine.
func die(at simengine.DiePoint) func(context.Context, patient, time.Duration) error {
	return func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.SetFault(func(simengine.Record) *simengine.Fault { return &simengine.Fault{Die: at} })
		wait(ctx, d)
		p.engine.SetFault(nil)
		if err := p.engine.Fatal(); err != nil && !errors.Is(err, simengine.ErrScripted) {
			return err
		}
		return p.engine.Restart()
	}
}

// loseTransfers loses the KV of chosen requests on its way, which breaks the
// pair until the prefill restarts.
func loseTransfers(choose func(*dice) bool) func(context.Context, patient, time.Duration) error {
	return func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.SetFault(func(simengine.Record) *simengine.Fault {
			if !choose(p.dice) {
				return nil
			}
			return &simengine.Fault{FailTransfer: true}
		})
		wait(ctx, d)
		p.engine.SetFault(nil)
		return p.engine.Restart()
	}
}

func bootstrapIs(s simengine.BootstrapState) func(context.Context, patient, time.Duration) error {
	return func(ctx context.Context, p patient, d time.Duration) error {
		p.engine.SetBootstrap(s)
		defer p.engine.SetBootstrap(simengine.BootstrapUp)
		wait(ctx, d)
		return nil
	}
}
