package pd

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeaseEndsOnceWithItsFirstOutcome(t *testing.T) {
	var heard []Outcome
	lease := NewLease(&Worker{ID: "w"}, func(o Outcome) { heard = append(heard, o) }, nil)
	lease.End(Success)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { lease.End(Fault) })
	}
	wg.Wait()
	assert.Equal(t, []Outcome{Success}, heard)
}

func TestLeaseHearsOfEveryProgress(t *testing.T) {
	heard := 0
	lease := NewLease(&Worker{ID: "w"}, nil, func() { heard++ })
	lease.Progress()
	lease.Progress()
	assert.Equal(t, 2, heard)
	lease.End(Success)
}

func TestPlanEndsOnceWithBothOutcomes(t *testing.T) {
	var prefill, decode, ends atomic.Int32
	plan := NewPlan(
		NewLease(&Worker{ID: "p"}, func(Outcome) { prefill.Add(1) }, nil),
		NewLease(&Worker{ID: "d"}, func(Outcome) { decode.Add(1) }, nil),
		func(p, d Outcome) {
			ends.Add(1)
			assert.Equal(t, [2]Outcome{Success, Fault}, [2]Outcome{p, d})
			assert.EqualValues(t, 2, prefill.Load()+decode.Load(), "leases are given back before the outcome is judged")
		})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { plan.Prefill.End(Success) })
		wg.Go(func() { plan.End(Success, Fault) })
	}
	wg.Wait()
	assert.Equal(t, [3]int32{1, 1, 1}, [3]int32{prefill.Load(), decode.Load(), ends.Load()})
}

func TestPlanEndsTheLeasesThatHaveNotEnded(t *testing.T) {
	var heard []string
	hear := func(role Role) func(Outcome) {
		return func(o Outcome) { heard = append(heard, role.String()+" "+o.String()) }
	}
	plan := NewPlan(NewLease(workerA, hear(Prefill), nil), NewLease(workerB, hear(Decode), nil),
		func(Outcome, Outcome) { heard = append(heard, "plan") })
	plan.Prefill.End(Success)
	plan.End(Unused, Fault)
	plan.Decode.End(Success)
	assert.Equal(t, []string{"prefill success", "decode fault", "plan"}, heard)
}

func TestPlanOfOneLeg(t *testing.T) {
	ended := 0
	plan := NewPlan(nil, NewLease(&Worker{ID: "w"}, func(Outcome) { ended++ }, nil), nil)
	plan.Prefill.Progress()
	plan.Prefill.End(Success)
	plan.End(Unused, Success)
	plan.End(Unused, Fault)
	assert.Equal(t, 1, ended)
	bare := NewLease(&Worker{ID: "w"}, nil, nil)
	bare.Progress()
	bare.End(Success)
}
