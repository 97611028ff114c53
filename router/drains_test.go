package router

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pd"
)

func known(pd.WorkerID) error { return nil }

// Whoever drains and resumes at the same moment sees the worker in one of the
// two states, and a limit only in the first.
func TestAWorkerThatTakesWorkIsNeverCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			var d drains
			draining, wronged := false, false
			var callers sync.WaitGroup
			for i := range 6 {
				callers.Go(func() {
					state, limit := i%2 == 0, time.Duration(0)
					if state {
						limit = time.Second
					}
					d.change("w", func(pd.WorkerID) error { draining = state; return nil }, limit,
						func() { wronged = wronged || !draining })
				})
			}
			callers.Wait()
			time.Sleep(time.Second) // a limit is over at the very moment of a resume
			d.change("w", func(pd.WorkerID) error { draining = false; return nil }, 0, nil)
			synctest.Wait()
			assert.False(t, wronged)
			assert.Empty(t, d.timers)
		}
	})
}

func TestALimitOnADrain(t *testing.T) {
	f := func(name string, cuts int, use func(d *drains, cut func())) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d drains
				n := 0
				use(&d, func() { n++ })
				time.Sleep(time.Hour)
				synctest.Wait()
				assert.Equal(t, cuts, n)
				assert.Empty(t, d.timers, "nothing is kept of it")
			})
		})
	}
	f("cuts once", 1, func(d *drains, cut func()) { d.change("w", known, time.Second, cut) })
	f("counts from the last call", 1, func(d *drains, cut func()) {
		d.change("w", known, time.Second, cut)
		d.change("w", known, time.Minute, cut)
	})
	f("is not for an unknown worker", 0, func(d *drains, cut func()) {
		assert.Error(t, d.change("w", func(pd.WorkerID) error { return errors.New("unknown") }, time.Second, cut))
	})
	f("ends with the router", 0, func(d *drains, cut func()) {
		d.change("w", known, time.Second, cut)
		d.end()
		d.change("v", known, time.Second, cut)
	})
}
