package policy

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestManualTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 64)
		store.err = errDown
		var hit bounds
		failed := 0
		p := newManual(t, members, ManualOptions{
			Store: store, Bound: hit.bound,
			StoreFailed: func(err error) { assert.ErrorIs(t, err, errDown); failed++ },
		})
		before := picks(t, p, 1, members)
		synctest.Wait()
		assert.Equal(t, map[string]int{"manual_store": 1}, hit.take(), "decided without the store")
		assert.Equal(t, 2, failed, "it was asked, and told")

		store.asked()
		before = append(before, picksOf(t, p, 1, 20, members)...)
		assert.Equal(t, map[string]int{"manual_store": 19}, hit.take())
		assert.Zero(t, store.asked(), "a store that just failed is not waited for")
		for range 100 {
			assert.Equal(t, before, picks(t, p, 20, members))
		}
		assert.Empty(t, hit.take(), "what is known needs no store")

		time.Sleep(10 * time.Second)
		assert.Less(t, store.asked(), 12, "it is tried once in a second")
		store.set(func() { store.err = nil })
		time.Sleep(storePause)
		synctest.Wait()
		for i, id := range before {
			assert.Equal(t, []pd.WorkerID{id}, store.of(i), "it is told all when it is back")
		}
		picksOf(t, p, 100, 101, members)
		assert.Len(t, store.of(100), 1, "and asked again")
		assert.Empty(t, hit.take())
	})
}

func TestManualRoutersThatDecidedAloneAgreeWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 64)
		store.err = errDown
		a := newManual(t, members, ManualOptions{Store: store})
		b := newManual(t, members, ManualOptions{Store: store})
		require.NotEqual(t, picks(t, a, 20, members), picks(t, b, 20, members))
		store.set(func() { store.err = nil })
		time.Sleep(storePause)
		synctest.Wait()
		assert.Equal(t, picks(t, a, 20, members), picks(t, b, 20, members))
	})
}

func TestManualTheStoreIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 64)
		store.delay = 300 * time.Millisecond
		var hit bounds
		p := newManual(t, members, ManualOptions{Store: store, Bound: hit.bound})
		start := time.Now()
		first := picks(t, p, 1, members)[0]
		assert.Equal(t, 20*time.Millisecond, time.Since(start), "a request waits no longer")
		assert.Equal(t, map[string]int{"manual_store": 1}, hit.take())
		time.Sleep(500 * time.Millisecond)
		assert.Equal(t, []pd.WorkerID{first}, store.of(0), "behind it there is time")

		store.set(func() { store.delay = 0 })
		picksOf(t, p, 1, 2, members)
		assert.Empty(t, hit.take(), "as soon as it has answered it is asked again")
	})
}

func TestManualCloseDoesNotWaitForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		store.delay = time.Hour
		p := newManual(t, members, ManualOptions{Store: store, StoreFailed: func(err error) {
			assert.ErrorIs(t, err, context.DeadlineExceeded, "the end of the policy is no failure")
		}})
		before := picks(t, p, 1, members)
		start := time.Now()
		p.Close()
		p.Close()
		assert.Zero(t, time.Since(start))
		assert.Equal(t, before, picks(t, p, 1, members), "picks go on")
		picks(t, p, 10, members)
	})
}

func TestManualAStoreThatHasLostAllIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 64)
		p := newManual(t, members, ManualOptions{Store: store})
		before := picks(t, p, 10, members)
		store.set(func() { clear(store.held) })
		time.Sleep(storeRefresh)
		assert.Equal(t, before, picks(t, p, 10, members))
		synctest.Wait()
		assert.Equal(t, before, picks(t, newManual(t, members, ManualOptions{Store: store}), 10, members))
	})
}

func TestManualWhatHasNoPlaceInTheQueueIsToldWithTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions = storeQueue + 1000
		store, members := newFakeStore(), idle(t, 4)
		store.err, store.delay = errDown, storePatient/2
		var hit bounds
		p := newManual(t, members, ManualOptions{Store: store, Bound: hit.bound})
		before := picks(t, p, sessions, members)
		decided := hit.take()["manual_store"]
		assert.Greater(t, decided, sessions, "some decisions found the queue full")
		time.Sleep(storePatient)
		assert.Equal(t, map[string]int{"manual_store": 1}, hit.take(), "and so did the one that failed")

		store.set(func() { store.err, store.delay = nil, 0 })
		time.Sleep(2 * storePause)
		synctest.Wait()
		assert.GreaterOrEqual(t, len(store.held), storeQueue)
		assert.Less(t, len(store.held), sessions)

		assert.Equal(t, before, picks(t, p, sessions, members))
		synctest.Wait()
		assert.Len(t, store.held, sessions)
		assert.Empty(t, hit.take())
	})
}

func TestManualAStoreThatPanicsIsOneThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		store.panic = "no such thing"
		panics := 0
		p := newManual(t, members, ManualOptions{Store: store, Panic: func(value any, stack []byte) {
			assert.Equal(t, "no such thing", value)
			assert.Contains(t, string(stack), "Swap")
			panics++
		}})
		first := picks(t, p, 1, members)[0]
		synctest.Wait()
		assert.Equal(t, 2, panics)
		store.set(func() { store.panic = nil })
		time.Sleep(storePause)
		synctest.Wait()
		assert.Equal(t, []pd.WorkerID{first}, store.of(0))
	})
}

func TestManualAHookThatPanicsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, members := newFakeStore(), idle(t, 4)
		panics := 0
		p := newManual(t, members, ManualOptions{
			Store:       store,
			StoreFailed: func(error) { panic("hook") },
			Panic:       func(any, []byte) { panics++ },
		})
		picks(t, p, 1, members)
		store.set(func() { store.err = errDown })
		time.Sleep(storeRefresh)
		picks(t, p, 1, members)
		synctest.Wait()
		assert.Equal(t, 1, panics)
		store.set(func() { store.err = nil })
		time.Sleep(storePause)
		second := picksOf(t, p, 1, 2, members)
		assert.Equal(t, second, store.of(1))
		time.Sleep(storeRefresh)
		store.asked()
		picksOf(t, p, 1, 2, members)
		synctest.Wait()
		assert.Equal(t, 1, store.asked(), "sessions are asked about as before")
	})
}
