package integration

import (
	"context"
	"flag"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// long has the tests under load run for a minute instead of seconds.
var long = flag.Bool("long", false, "run tests under load for a minute each")

// retrying is a stack's policy of attempts.
func retrying(attempts int, budget *pd.Budget) func(*pd.Orchestrator) {
	return func(o *pd.Orchestrator) { o.Retry = pd.Retry{MaxAttempts: attempts, Budget: budget} }
}

// watched looks at the workers often enough for a test.
func watched(h *health.Options) {
	h.Interval, h.Timeout, h.StartupTimeout = 2*time.Second, time.Second, time.Minute
}

// ready waits until every worker serves.
func (s *stack) ready() {
	s.t.Helper()
	for _, w := range s.workers {
		s.eventually(func() bool { return s.set.Serves(w.ID) }, "%s serves", w.ID)
	}
}

// together runs n calls of f, some at a time.
func together(n, atOnce int, f func(i int)) {
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for range atOnce {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	wg.Wait()
}

// halfFailing is four workers of each role, two of which fail every request
// before its first byte, each in a way of its own.
func halfFailing(t *testing.T, budget *pd.Budget) *stack {
	s := newStack(t, setup{prefills: 4, decodes: 4, policy: "random", orchestrator: retrying(9, budget)})
	for _, pool := range [][]*simengine.Engine{s.prefills, s.decodes} {
		pool[0].SetFault(always(simengine.Fault{Status: 500, Body: []byte(`{"message":"out of luck"}`)}))
		pool[1].SetFault(always(simengine.Fault{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: []byte(`{"message":"full"}`)}))
	}
	return s
}

func TestHalfOfEachPoolMayFailBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	s := halfFailing(t, nil)
	all := calls(2)
	together(200, 16, func(i int) {
		r := s.post(all[i%len(all)])
		assert.Equal(t, 200, r.status, r.body)
		assert.NoError(t, r.err)
	})
}

func TestWithABudgetWhatFailsIsWhatItRefused(t *testing.T) {
	t.Parallel()
	s := halfFailing(t, new(pd.Budget))
	var failed atomic.Int64
	all := calls(2)
	together(300, 16, func(i int) {
		if r := s.post(all[i%len(all)]); r.status != 200 {
			failed.Add(1)
		}
	})
	assert.EqualValues(t, s.hit("retry_budget"), failed.Load())
}

// F11: three requests in a row show that a pair is bad. From then on it is tried
// three times a minute, both its workers serve with others, and no client sees
// any of it.
func TestF11OneBadPairIsAvoidedAndNobodyElse(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 2, policy: "random", orchestrator: retrying(5, new(pd.Budget))})
	s.breakPair(s.prefills[0], s.decodes[0])
	together(120, 4, func(int) {
		r := s.post(generateCall(4))
		assert.Equal(t, 200, r.status, r.body)
	})
	s.idle()
	tried := 0
	rooms := make(map[simengine.Room]bool)
	for _, rec := range generations(s.prefills[0]) {
		rooms[rec.Rooms[0]] = true
	}
	for _, rec := range generations(s.decodes[0]) {
		if rooms[rec.Rooms[0]] {
			tried++
		}
	}
	assert.Positive(t, tried)
	assert.LessOrEqual(t, tried, 10, "of 120")
	status := s.set.Status()
	assert.Equal(t, []pools.PairStatus{{Prefill: "prefill-0", Decode: "decode-0"}}, status.Avoided)
	for _, w := range status.Workers {
		assert.Equal(t, pools.Ready, w.State, "%s serves", w.ID)
		assert.Equal(t, "closed", w.Breaker, "%s is not blamed", w.ID)
	}
	for _, e := range s.engines() {
		assert.Greater(t, len(generations(e)), 8, "%s goes on with the other", e.ID()) // the least is 30 on average, give or take 5
	}
}

// breakPair has every KV transfer between the two fail, as a link does.
func (s *stack) breakPair(p, d *simengine.Engine) {
	var mu sync.Mutex
	partner := make(map[simengine.Room]chan bool) // whether a room's decode is d
	of := func(room simengine.Room) chan bool {
		mu.Lock()
		defer mu.Unlock()
		c := partner[room]
		if c == nil {
			c = make(chan bool, 1)
			partner[room] = c
		}
		return c
	}
	for _, other := range s.decodes {
		other.SetFault(func(r simengine.Record) *simengine.Fault {
			of(r.Rooms[0]) <- other == d
			return nil
		})
	}
	p.SetFault(func(r simengine.Record) *simengine.Fault {
		select {
		case bad := <-of(r.Rooms[0]):
			if bad {
				return &simengine.Fault{FailTransfer: true}
			}
		case <-time.After(patience): // decode was not sent the request
		}
		return nil
	})
}

// One of four prefills is killed under load. What it had is done again elsewhere,
// except for streams that have begun and are still without their KV.
func TestKillingOnePrefillOfFourUnderLoad(t *testing.T) {
	length, rate := 4*time.Second, 50
	if *long {
		length, rate = time.Minute, 100
	}
	s := newStack(t, setup{
		prefills: 4, decodes: 4, policy: "power_of_two", mayDie: true, health: watched,
		orchestrator: retrying(5, new(pd.Budget)),
		prefill: func(c *simengine.Config) {
			c.Speed.PrefillDelay, c.Speed.TransferDelay = 30*time.Millisecond, 5*time.Millisecond
		},
		decode: func(c *simengine.Config) { c.Speed.TokenInterval = 5 * time.Millisecond },
	})
	s.ready()
	all := calls(20)
	var wg sync.WaitGroup
	var sent, excused atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	kill := time.AfterFunc(length/3, s.prefills[0].Kill)
	defer kill.Stop()
	pace := time.NewTicker(time.Second / time.Duration(rate))
	defer pace.Stop()
	for ctx.Err() == nil {
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
		c := all[rand.IntN(len(all))]
		wg.Go(func() {
			sent.Add(1)
			r := s.post(c)
			switch {
			case r.status == 200 && r.err == nil && len(s.cutEvents(r)) == 0:
			case r.status == 200 && r.err != nil: // begun, and it still needed the prefill that was killed
				excused.Add(1)
			default:
				assert.Fail(t, "a client error", "%d %v %s", r.status, r.err, r.body)
			}
		})
	}
	wg.Wait()
	t.Logf("%d requests, %d streams cut that had begun", sent.Load(), excused.Load())
	assert.LessOrEqual(t, excused.Load(), int64(rate), "no more than were under way")
	require.Eventually(t, func() bool { return s.set.Find("prefill-0").State() == pools.Dead }, patience, 5*time.Millisecond)
	require.NoError(t, s.prefills[0].Restart())
	s.eventually(func() bool { return s.set.Find("prefill-0").State() == pools.Ready }, "it comes back by itself")
}

// cutEvents are the error events of a stream.
func (s *stack) cutEvents(r reply) (errors []string) {
	for _, e := range r.events() {
		if len(e) > 9 && e[:9] == `{"error":` {
			errors = append(errors, e)
		}
	}
	return errors
}
