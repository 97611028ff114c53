package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// dice throws the same numbers in every run.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// anyFault is what may go wrong with one request, most often nothing.
func (d *dice) anyFault(simengine.Record) *simengine.Fault {
	faults := []simengine.Fault{
		{Status: 500, Body: []byte(tooLong)},
		{Status: 400, Body: []byte(tooLong)},
		{Status: 503, Body: []byte(tooLong)},
		{Reset: true},
		{Hang: true},
		{ResetAfter: 2},
		{CutAfter: 1},
		{ErrorAt: 2, ErrorEvent: tooLong},
		{HeadDelay: 40 * time.Millisecond},
		{Delay: 30 * time.Millisecond},
		{Split: 50},
		{Merge: 3},
	}
	if i := d.roll(3 * len(faults)); i < len(faults) {
		return &faults[i]
	}
	return nil
}

// Whatever goes wrong at the same time, an answer is right or says that it is
// not, and nothing is left of it: that is what every stack checks at its end.
func TestWhateverGoesWrongNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	f := func(name string, attempts int) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &dice{r: rand.New(rand.NewPCG(1, uint64(attempts)))}
			s := newStack(t, setup{
				prefills: 2, decodes: 3, policy: "power_of_two",
				decode: func(c *simengine.Config) { c.Speed.TokenInterval = time.Millisecond },
				orchestrator: func(o *pd.Orchestrator) {
					o.Retry.MaxAttempts = attempts
					o.Upstream.Deadlines = pd.Deadlines{Request: time.Second, FirstEvent: time.Second, Idle: time.Second}
				},
			})
			for _, e := range s.engines() {
				e.SetFault(d.anyFault)
			}
			var clients sync.WaitGroup
			var mu sync.Mutex
			seen := map[string]int{}
			for range 8 {
				clients.Go(func() {
					for range 25 {
						how := s.anyCall(d)
						mu.Lock()
						seen[how]++
						mu.Unlock()
					}
				})
			}
			clients.Wait()
			for _, how := range []string{"right", "refused", "broken", "left"} {
				assert.Positive(t, seen[how], "%v", seen)
			}
			assert.Zero(t, seen["wrong"], "%v", seen)
			for _, e := range s.engines() {
				e.SetFault(nil)
			}
			s.idle()
			s.ok(generateCall(4))
		})
	}
	f("one attempt", 1)
	f("three attempts", 3)
}

// anyCall makes one of many calls, some of which it leaves, and says how it went.
func (s *stack) anyCall(d *dice) string {
	c := calls(3 + d.roll(6))[d.roll(6)]
	if d.roll(3) == 0 {
		c = sampled(c, 2+d.roll(2), d.roll(100))
	}
	want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
	if err != nil {
		return "wrong"
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	left := false
	if d.roll(5) == 0 {
		left = true
		defer time.AfterFunc(time.Duration(d.roll(60))*time.Millisecond, cancel).Stop()
	}
	resp, err := s.send(ctx, "POST", c.path, c.json())
	if err != nil {
		if left {
			return "left"
		}
		s.t.Logf("no answer to %s: %v", c.json(), err)
		return "wrong"
	}
	r := whole(resp)
	switch {
	case left && r.err != nil:
		return "left"
	case r.status >= 400:
		return "refused"
	case r.err != nil, strings.Contains(r.body, tooLong):
		return "broken"
	}
	for i, text := range textOf(s.t, c.path, r) {
		if text != want[i].Text {
			s.t.Logf("%s: index %d says %q, want %q: %s", c.json(), i, text, want[i].Text, r.body)
			return "wrong"
		}
	}
	return "right"
}
