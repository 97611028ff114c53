package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// How long an engine is well between two episodes, and how long one lasts.
const (
	minWell, maxWell = time.Second, 8 * time.Second
	minIll, maxIll   = 300 * time.Millisecond, 3 * time.Second
)

// episode is one fault of one engine, after it was well for a time.
type episode struct {
	well, ill time.Duration
	kind      *kind
}

// plan is the episodes of each engine of a role, for at least d. Kinds are dealt
// to the engines in turns from a shuffled deck, so that none is left out.
func plan(r *rand.Rand, role simengine.Role, engines int, d time.Duration) [][]episode {
	var deck []*kind
	deal := func() *kind {
		if len(deck) == 0 {
			for i := range kinds {
				if role == simengine.Prefill || !kinds[i].prefillOnly {
					deck = append(deck, &kinds[i])
				}
			}
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		k := deck[len(deck)-1]
		deck = deck[:len(deck)-1]
		return k
	}
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }
	episodes := make([][]episode, engines)
	length := make([]time.Duration, engines)
	for more := true; more; {
		more = false
		for i := range episodes {
			if length[i] >= d {
				continue
			}
			e := episode{well: between(minWell, maxWell), ill: between(minIll, maxIll), kind: deal()}
			length[i] += e.well + e.ill
			episodes[i] = append(episodes[i], e)
			more = true
		}
	}
	return episodes
}

// director breaks engines. Every engine has its own episodes, one at a time;
// those of several engines meet as they may.
type director struct {
	seed     uint64
	timeline *timeline
	report   func(Violation)

	mu     sync.Mutex
	faults map[string]int
}

// run breaks the engines of a role until ctx ends, and leaves them whole. Its
// error is that of an engine that did not come back.
func (d *director) run(ctx context.Context, role simengine.Role, engines []*simengine.Engine, length time.Duration) error {
	stream := uint64(1)
	if role == simengine.Decode {
		stream = 2
	}
	episodes := plan(rand.New(rand.NewPCG(d.seed, stream)), role, len(engines), length)
	failed := make([]error, len(engines))
	var wg sync.WaitGroup
	for i, e := range engines {
		p := patient{e, &dice{r: rand.New(rand.NewPCG(d.seed, 100*stream+uint64(i)))}}
		wg.Go(func() { failed[i] = d.treat(ctx, p, episodes[i]) })
	}
	wg.Wait()
	return errors.Join(failed...)
}

func (d *director) treat(ctx context.Context, p patient, episodes []episode) error {
	for _, e := range episodes {
		wait(ctx, e.well)
		if err := d.revive(p); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		end := d.timeline.begin(p.engine.ID(), spell{kind: e.kind.name, from: time.Now(), paused: e.kind.paused, harmless: e.kind.harmless})
		d.count(e.kind.name)
		err := e.kind.run(ctx, p, e.ill)
		end(time.Now())
		if err != nil {
			return fmt.Errorf("%s of %s: %w", e.kind.name, p.engine.ID(), err)
		}
	}
	return nil
}

// revive restarts an engine that has died though nobody asked it to, which is a
// violation: of a room used twice, of bootstrap fields that must not pass.
func (d *director) revive(p patient) error {
	fatal := p.engine.Fatal()
	if fatal == nil {
		return nil
	}
	d.report(Violation{Invariant: invariantCrash, Engine: p.engine.ID(), Detail: fatal.Error()})
	return p.engine.Restart()
}

func (d *director) count(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[name]++
}
