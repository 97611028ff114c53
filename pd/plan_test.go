package pd

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeaseIsReleasedOnce(t *testing.T) {
	var released atomic.Int32
	lease := NewLease(&Worker{ID: "w"}, func() { released.Add(1) })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(lease.Release)
	}
	wg.Wait()
	assert.EqualValues(t, 1, released.Load())
}

func TestPlanEndsOnceWithBothOutcomes(t *testing.T) {
	var prefill, decode, ends atomic.Int32
	plan := NewPlan(
		NewLease(&Worker{ID: "p"}, func() { prefill.Add(1) }),
		NewLease(&Worker{ID: "d"}, func() { decode.Add(1) }),
		func(p, d Outcome) {
			ends.Add(1)
			assert.Equal(t, [2]Outcome{Success, Fault}, [2]Outcome{p, d})
			assert.EqualValues(t, 2, prefill.Load()+decode.Load(), "leases are given back before the outcome is judged")
		})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(plan.Prefill.Release)
		wg.Go(func() { plan.End(Success, Fault) })
	}
	wg.Wait()
	assert.Equal(t, [3]int32{1, 1, 1}, [3]int32{prefill.Load(), decode.Load(), ends.Load()})
}

func TestPlanOfOneLeg(t *testing.T) {
	released := 0
	plan := NewPlan(nil, NewLease(&Worker{ID: "w"}, func() { released++ }), nil)
	plan.Prefill.Release()
	plan.End(Unused, Success)
	plan.End(Unused, Fault)
	assert.Equal(t, 1, released)
	NewLease(&Worker{ID: "w"}, nil).Release()
}
