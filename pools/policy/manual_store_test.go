package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
)

var errDown = errors.New("the store is down")

// fakeStore is a store in memory.
type fakeStore struct {
	mu    sync.Mutex
	held  map[string][]pd.WorkerID
	calls int
	// These say what is wrong with it.
	delay time.Duration
	err   error
	panic any
	// before, if any, is called with each call, under the lock.
	before func(key string)
}

func newFakeStore() *fakeStore { return &fakeStore{held: map[string][]pd.WorkerID{}} }

func (f *fakeStore) Swap(ctx context.Context, key string, prev, next []pd.WorkerID) ([]pd.WorkerID, error) {
	f.mu.Lock()
	delay := f.delay
	f.calls++
	f.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panic != nil {
		panic(f.panic)
	}
	if f.err != nil {
		return nil, f.err
	}
	if f.before != nil {
		f.before(key)
	}
	if held := f.held[key]; held == nil || slices.Equal(held, prev) {
		f.held[key] = slices.Clone(next)
	}
	return slices.Clone(f.held[key]), nil
}

// set changes the store.
func (f *fakeStore) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// of is the workers that are stored for a session.
func (f *fakeStore) of(session int) []pd.WorkerID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[storeKey(session)]
}

func storeKey(session int) string {
	return fmt.Sprintf("%x", keyOf(fmt.Sprintf("session-%d", session)))
}

// asked is how many calls there were since it was last asked.
func (f *fakeStore) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.calls
	f.calls = 0
	return n
}

// bounds counts the bounds that were hit.
type bounds struct {
	mu  sync.Mutex
	hit map[string]int
}

func (b *bounds) bound(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.hit == nil {
		b.hit = map[string]int{}
	}
	b.hit[name]++
}

// take is what was hit since the last take.
func (b *bounds) take() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	hit := b.hit
	b.hit = nil
	return hit
}

func TestManualOnlyTheFirstRequestOfASessionWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		store.delay = 7 * time.Millisecond
		p := newManual(t, members, ManualOptions{Store: store})
		wait := func() time.Duration {
			start := time.Now()
			p.Pick(ofSession(1), members)
			return time.Since(start)
		}
		assert.Equal(t, store.delay, wait())
		for range 100 {
			assert.Zero(t, wait())
			time.Sleep(time.Second)
		}
		assert.InDelta(t, 1+100/5, store.asked(), 5, "it is asked again every 5 s, behind the request")
		for range 10 {
			p.Pick(ofSession(-1), members)
		}
		assert.Zero(t, store.asked(), "of what has no key the store hears nothing")
	})
}

func TestManualRoutersAgree(t *testing.T) {
	defer goleak.VerifyNone(t)
	const sessions = 300
	for _, how := range assignments {
		store, members := newFakeStore(), idle(t, 8)
		var mu sync.Mutex
		homes := make([]map[pd.WorkerID]bool, sessions)
		var wg sync.WaitGroup
		for range 3 {
			p := newManual(t, members, ManualOptions{Assignment: how, Store: store, StoreTimeout: time.Minute})
			defer p.Close()
			for range 2 { // each router has the first request of a session twice at once
				wg.Go(func() {
					for i := range sessions {
						m := p.Pick(ofSession(i), members)
						mu.Lock()
						if homes[i] == nil {
							homes[i] = map[pd.WorkerID]bool{}
						}
						homes[i][m.Worker.ID] = true
						mu.Unlock()
					}
				})
			}
		}
		wg.Wait()
		for i, ids := range homes {
			assert.Len(t, ids, 1, "%s: session %d", how, i)
		}
	}
}

func TestManualARouterThatRestartsFindsItsSessions(t *testing.T) {
	store, members := newFakeStore(), idle(t, 16)
	p := newManual(t, members, ManualOptions{Store: store})
	before := picks(t, p, 50, members)
	p.Close()
	assert.Equal(t, before, picks(t, newManual(t, members, ManualOptions{Store: store}), 50, members))
}

func TestManualAFailoverIsSeenByOtherRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 16)
		a := newManual(t, members, ManualOptions{Store: store})
		b := newManual(t, members, ManualOptions{Store: store})
		first := picks(t, a, 1, members)[0]
		require.Equal(t, first, picks(t, b, 1, members)[0])

		start := time.Now()
		second := picks(t, a, 1, less(members, first))[0]
		assert.Zero(t, time.Since(start), "nobody waits")
		synctest.Wait()
		assert.Equal(t, []pd.WorkerID{first, second}, store.of(0))

		time.Sleep(storeRefresh)
		assert.Equal(t, first, picks(t, b, 1, members)[0])
		synctest.Wait() // b has heard of it
		assert.Equal(t, second, picks(t, b, 1, less(members, first))[0])

		c := newManual(t, members, ManualOptions{Store: store})
		assert.Equal(t, second, picks(t, c, 1, less(members, first))[0], "who comes later hears of both")
		assert.Equal(t, first, picks(t, c, 1, members)[0])
	})
}

func TestManualOneFailoverWinsWhereRoutersFailOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 64)
		a := newManual(t, members, ManualOptions{Store: store})
		b := newManual(t, members, ManualOptions{Store: store})
		first := picks(t, a, 1, members)[0]
		picks(t, b, 1, members)
		rest := less(members, first)
		picks(t, a, 1, rest)
		picks(t, b, 1, rest)
		synctest.Wait()
		want := store.of(0)[1]
		assert.Equal(t, want, picks(t, a, 1, rest)[0])
		assert.Equal(t, want, picks(t, b, 1, rest)[0])
	})
}

func TestManualTheStoreIsToldOfAFailoverBehindAFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 16)
		p := newManual(t, members, ManualOptions{Store: store})
		first := picks(t, p, 1, members)[0]
		store.set(func() { store.delay = 100 * time.Millisecond })
		second := picks(t, p, 1, less(members, first))[0]
		time.Sleep(50 * time.Millisecond) // the store is being told
		third := picks(t, p, 1, less(members, first, second))[0]
		time.Sleep(time.Second)
		assert.Equal(t, []pd.WorkerID{second, third}, store.of(0))
		assert.Equal(t, third, picks(t, p, 1, less(members, first, second))[0])
	})
}

func TestManualAForgottenSessionIsFoundInTheStore(t *testing.T) {
	store, members := newFakeStore(), idle(t, 16)
	p := newManual(t, members, ManualOptions{Store: store, MaxKeys: 10, StoreTimeout: time.Minute})
	before := picks(t, p, 100, members)
	assert.Len(t, p.known, 10)
	assert.Equal(t, before, picks(t, p, 100, members))
	soundManual(t, p)
}

func TestManualWorkersUnknownHereKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		store.held[storeKey(0)] = []pd.WorkerID{"stranger"}
		p := newManual(t, members[:3], ManualOptions{Store: store})
		first := picks(t, p, 1, members[:3])[0]
		assert.Equal(t, []pd.WorkerID{"stranger", first}, store.of(0))
		second := picks(t, p, 1, less(members[:3], first))[0]
		synctest.Wait()
		assert.Equal(t, []pd.WorkerID{first, second}, store.of(0), "until two are known")

		store.held[storeKey(0)] = []pd.WorkerID{"stranger"} // as another router has it
		time.Sleep(storeRefresh)
		picks(t, p, 1, members[:3])
		synctest.Wait()
		third := picks(t, p, 1, members[:3])[0]
		synctest.Wait()
		assert.Equal(t, []pd.WorkerID{"stranger", third}, store.of(0))

		// One that this router hears of later takes its sessions.
		store.held[storeKey(1)] = []pd.WorkerID{"decode-3"}
		assert.NotEqual(t, pd.WorkerID("decode-3"), picksOf(t, p, 1, 2, members[:3])[0])
		p.Follow(members)
		assert.Equal(t, []pd.WorkerID{"decode-3"}, picksOf(t, p, 1, 2, members))
	})
}

func TestManualGivesUpAgainstAStoreThatAlwaysSaysSomethingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		n := 0
		store.before = func(key string) {
			n++
			store.held[key] = []pd.WorkerID{pd.WorkerID(strings.Repeat("x", n))}
		}
		p := newManual(t, members, ManualOptions{Store: store})
		first := picks(t, p, 1, members)
		assert.Equal(t, storeTries, store.asked())
		synctest.Wait()
		assert.LessOrEqual(t, store.asked(), storeTries)
		assert.Len(t, first, 1)
		picks(t, p, 1, members)
		soundManual(t, p)
	})
}

func TestManualTakesTwoOfALongerList(t *testing.T) {
	store, members := newFakeStore(), idle(t, 4)
	store.held[storeKey(0)] = []pd.WorkerID{"decode-3", "decode-1", "decode-2"}
	p := newManual(t, members, ManualOptions{Store: store, StoreTimeout: time.Minute})
	assert.Equal(t, []pd.WorkerID{"decode-3"}, picks(t, p, 1, members))
	assert.Equal(t, []pd.WorkerID{"decode-1"}, picks(t, p, 1, less(members, "decode-3")))
}

func TestManualChurnOverAStore(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, how := range assignments {
		store, members := newFakeStore(), idle(t, 8)
		p := newManual(t, members, ManualOptions{
			Assignment: how, MaxKeys: 200, MaxIdle: 5 * time.Millisecond, Store: store, StoreTimeout: time.Millisecond,
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 50 {
				store.set(func() {
					store.err, store.delay = nil, time.Duration(i%3)*time.Millisecond
					if i%5 == 0 {
						store.err = errDown
					}
				})
				time.Sleep(time.Millisecond)
			}
		})
		churn(t, p, members)
		wg.Wait()
		p.Close()
	}
}
