package router

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// code is an error's code, empty for nil.
func code(err error) string {
	if err == nil {
		return ""
	}
	return pd.AsError(err).Code
}

// turnstile drives an admission alone, in a bubble of synctest.
type turnstile struct {
	*admission
	start    time.Time
	leaveAll context.CancelFunc
	clients  context.Context

	mu     sync.Mutex
	bounds []string
	log    []string // how each wait ended: the name, the second, the error's code
}

func newTurnstile(cfg Config) *turnstile {
	ts := &turnstile{start: time.Now()}
	ts.clients, ts.leaveAll = context.WithCancel(context.Background())
	cfg.Bound = func(name string) {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.bounds = append(ts.bounds, name)
	}
	ts.admission = newAdmission(cfg.withDefaults())
	return ts
}

// send has a request arrive, and go on or wait; leave has its client leave.
func (ts *turnstile) send(name string) (leave context.CancelFunc) {
	ctx, cancel := context.WithCancel(ts.clients)
	go func() {
		err := ts.enter(ctx, nil)
		entry := fmt.Sprintf("%s %.1fs", name, time.Since(ts.start).Seconds())
		if err != nil {
			entry += " " + code(err)
		}
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.log = append(ts.log, entry)
	}()
	synctest.Wait()
	return func() {
		cancel()
		synctest.Wait()
	}
}

// free gives a place back.
func (ts *turnstile) free() {
	ts.leave()
	synctest.Wait()
}

// pass lets time pass.
func (ts *turnstile) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// load is how many hold a place, and how many wait for one.
func (q *admission) load() [2]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return [2]int{q.underway, q.waiting.Len()}
}

func TestAdmission(t *testing.T) {
	f := func(name string, cfg Config, play func(ts *turnstile), want ...string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ts := newTurnstile(cfg)
				play(ts)
				assert.Equal(t, want, ts.log)
				ts.leaveAll()
			})
		})
	}
	one := Config{MaxConcurrent: 1}

	f("without bounds nobody waits", Config{}, func(ts *turnstile) {
		for _, name := range []string{"a", "b", "c"} {
			ts.send(name)
		}
		assert.Equal(t, [2]int{3, 0}, ts.load())
	}, "a 0.0s", "b 0.0s", "c 0.0s")

	f("places go in the order of arrival", one, func(ts *turnstile) {
		for _, name := range []string{"a", "b", "c", "d"} {
			ts.send(name)
		}
		assert.Equal(t, [2]int{1, 3}, ts.load())
		for range 3 {
			ts.pass(time.Second)
			ts.free()
		}
		assert.Equal(t, [2]int{1, 0}, ts.load())
	}, "a 0.0s", "b 1.0s", "c 2.0s", "d 3.0s")

	f("who comes when a place is free and none waits gets it", one, func(ts *turnstile) {
		ts.send("a")
		ts.free()
		ts.send("b")
	}, "a 0.0s", "b 0.0s")

	f("a full queue refuses at once", Config{MaxConcurrent: 1, QueueSize: 2}, func(ts *turnstile) {
		for _, name := range []string{"a", "b", "c", "d"} {
			ts.send(name)
		}
		assert.Equal(t, []string{"queue_size"}, ts.bounds)
		assert.Equal(t, [2]int{1, 2}, ts.load())
	}, "a 0.0s", "d 0.0s queue_full")

	f("a hundred wait by default", one, func(ts *turnstile) {
		for range 101 {
			ts.send("x")
		}
		ts.send("y")
		assert.Equal(t, [2]int{1, 100}, ts.load())
	}, "x 0.0s", "y 0.0s queue_full")

	f("without a queue nobody waits", Config{MaxConcurrent: 1, QueueSize: -1}, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")
		ts.free()
		ts.send("c")
	}, "a 0.0s", "b 0.0s queue_full", "c 0.0s")

	f("a wait ends after its time and the others' go on", Config{MaxConcurrent: 1, QueueTimeout: 5 * time.Second}, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")
		ts.pass(2 * time.Second)
		ts.send("c")
		ts.pass(4 * time.Second)
		assert.Equal(t, []string{"queue_timeout"}, ts.bounds)
		assert.Equal(t, [2]int{1, 1}, ts.load())
		ts.free()
	}, "a 0.0s", "b 5.0s queue_timeout", "c 6.0s")

	f("a minute is the longest wait by default", one, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")
		ts.pass(time.Hour)
	}, "a 0.0s", "b 60.0s queue_timeout")

	f("a client that leaves makes room in the queue at once", Config{MaxConcurrent: 1, QueueSize: 2}, func(ts *turnstile) {
		ts.send("a")
		leave := ts.send("b")
		ts.send("c")
		leave()
		assert.Equal(t, [2]int{1, 1}, ts.load())
		ts.send("d")
		ts.free()
		ts.free()
		assert.Empty(t, ts.bounds, "leaving is nobody's bound")
	}, "a 0.0s", "b 0.0s client_closed_request", "c 0.0s", "d 0.0s")

	f("a rate admits its burst and then one by one", Config{RatePerSecond: 2}, func(ts *turnstile) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			ts.send(name)
		}
		assert.Equal(t, [2]int{2, 3}, ts.load())
		ts.pass(10 * time.Second)
		assert.Equal(t, [2]int{5, 0}, ts.load())
	}, "a 0.0s", "b 0.0s", "c 0.5s", "d 1.0s", "e 1.5s")

	f("a rate's burst is the number of places", Config{RatePerSecond: 1, MaxConcurrent: 3}, func(ts *turnstile) {
		for _, name := range []string{"a", "b", "c", "d"} {
			ts.send(name)
		}
		ts.free()
		ts.pass(time.Second)
	}, "a 0.0s", "b 0.0s", "c 0.0s", "d 1.0s")

	f("a place without a token does not do, nor a token without a place", Config{RatePerSecond: 1, MaxConcurrent: 1}, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")
		ts.send("c")
		ts.free() // b lacks a token until 1 s
		ts.pass(3 * time.Second)
		assert.Equal(t, [2]int{1, 1}, ts.load(), "c lacks a place")
		ts.free()
	}, "a 0.0s", "b 1.0s", "c 3.0s")

	f("a client that leaves takes no token", Config{RatePerSecond: 1}, func(ts *turnstile) {
		ts.send("a")
		leave := ts.send("b")
		ts.send("c")
		ts.send("d")
		ts.pass(500 * time.Millisecond)
		leave()
		ts.pass(10 * time.Second)
	}, "a 0.0s", "b 0.5s client_closed_request", "c 1.0s", "d 2.0s")

	f("a token that came while nobody waited is the next one's", Config{RatePerSecond: 1}, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")()
		ts.pass(3 * time.Second)
		ts.send("c")
		ts.send("d")
		ts.pass(time.Second)
	}, "a 0.0s", "b 0.0s client_closed_request", "c 3.0s", "d 4.0s")

	f("without a queue a rate refuses", Config{RatePerSecond: 1, QueueSize: -1}, func(ts *turnstile) {
		ts.send("a")
		ts.send("b")
		ts.pass(time.Second)
		ts.send("c")
	}, "a 0.0s", "b 0.0s queue_full", "c 1.0s")
}

func TestPlaceGrantedToAClientThatLeavesGoesToTheNext(t *testing.T) {
	q := newAdmission(Config{MaxConcurrent: 1, QueueSize: 9}.withDefaults())
	require.NoError(t, q.enter(t.Context(), nil))
	ctx, leave := context.WithCancel(t.Context())
	first, _ := q.join(ctx, nil)
	second, _ := q.join(t.Context(), nil)

	q.leave()
	require.True(t, first.admitted)
	leave()
	assert.False(t, q.settle(first))
	within(t, second.turn, "the second's turn")
	assert.True(t, q.settle(second))
	assert.Equal(t, 1, q.underway)
	assert.Zero(t, q.waiting.Len())
}

func TestClientThatHasLeftIsPassedOver(t *testing.T) {
	q := newAdmission(Config{MaxConcurrent: 1, RatePerSecond: 1, QueueSize: 9}.withDefaults())
	require.NoError(t, q.enter(t.Context(), nil))
	ctx, leave := context.WithCancel(t.Context())
	first, _ := q.join(ctx, nil)
	leave()
	q.leave()
	assert.False(t, first.admitted, "no token is waited for, let alone spent")
	assert.Zero(t, q.waiting.Len())
	assert.False(t, q.settle(first))
	assert.Zero(t, q.underway)
}

func TestNobodyOvertakesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newAdmission(Config{RatePerSecond: 1}.withDefaults())
		require.NoError(t, q.enter(t.Context(), nil))
		first, _ := q.join(t.Context(), nil)
		time.Sleep(time.Second) // there is a token that the first has not heard of
		second, _ := q.join(t.Context(), nil)
		require.NotNil(t, second)
		q.look()
		assert.True(t, first.admitted)
		assert.False(t, second.admitted)
	})
}

func TestAdmissionUnderAStorm(t *testing.T) {
	const places, queue, requests = 5, 40, 400
	f := func(name string, run func(*testing.T, func(*testing.T)), cfg Config, stay func()) {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				cfg.MaxConcurrent, cfg.QueueSize, cfg.QueueTimeout = places, queue, 20*time.Millisecond
				q := newAdmission(cfg.withDefaults())
				var inside, most atomic.Int32
				var wg sync.WaitGroup
				for range requests {
					wg.Go(func() {
						for range 5 {
							ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(10_000))*time.Microsecond)
							if q.enter(ctx, nil) == nil {
								n := inside.Add(1)
								for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
								}
								stay()
								inside.Add(-1)
								q.leave()
							}
							cancel()
						}
					})
				}
				wg.Wait()
				assert.NotZero(t, most.Load())
				assert.LessOrEqual(t, most.Load(), int32(places))
				assert.Zero(t, q.underway)
				assert.Zero(t, q.waiting.Len())
			})
		})
	}
	stay := func() { time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond) }
	awake := func(t *testing.T, test func(*testing.T)) { test(t) }
	f("in real time", awake, Config{}, stay)
	f("in real time, with a rate", awake, Config{RatePerSecond: 5000}, stay)
	f("in a bubble", synctest.Test, Config{}, stay)
	f("in a bubble, with a rate", synctest.Test, Config{RatePerSecond: 3000}, stay)
}

func TestAdmissionWithoutWaitingAllocatesNothing(t *testing.T) {
	for name, cfg := range map[string]Config{"places": {MaxConcurrent: 8}, "places and rate": {MaxConcurrent: 8, RatePerSecond: 1 << 30}} {
		q := newAdmission(cfg.withDefaults())
		ctx := t.Context()
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if q.enter(ctx, nil) == nil {
				q.leave()
			}
		}), name)
	}
}

func BenchmarkAdmissionWithoutWaiting(b *testing.B) {
	q := newAdmission(Config{MaxConcurrent: 1 << 20}.withDefaults())
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if q.enter(ctx, nil) == nil {
				q.leave()
			}
		}
	})
}
