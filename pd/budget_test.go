package pd

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// taken is how many of n repeats the budget allows.
func taken(b *Budget, n int) int {
	allowed := 0
	for range n {
		if b.take() {
			allowed++
		}
	}
	return allowed
}

func requests(b *Budget, n int) {
	for range n {
		b.request()
	}
}

func TestBudgetAllowsAShareOfTheRequestsOrAFloor(t *testing.T) {
	for _, tt := range []struct {
		name     string
		budget   *Budget
		requests int
		want     int
	}{
		{"the floor by default", new(Budget), 0, 30},
		{"the floor while it is more", new(Budget), 150, 30},
		{"a fifth by default", new(Budget), 1000, 200},
		{"the share it is given", &Budget{Percent: 50, Floor: 1}, 100, 50},
		{"rounded down", &Budget{Percent: 50, Floor: -1}, 3, 1},
		{"the floor it is given", &Budget{Floor: 3}, 10, 3},
		{"nothing without requests and without a floor", &Budget{Floor: -1}, 0, 0},
		{"less than one is none", &Budget{Floor: -1}, 4, 0},
		{"no bound", nil, 0, 10_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests(tt.budget, tt.requests)
				assert.Equal(t, tt.want, taken(tt.budget, 10_000))
			})
		})
	}
}

func TestBudgetForgetsWhatIsTenSecondsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Budget{Percent: 10, Floor: -1}
		requests(b, 100)
		require.Equal(t, 10, taken(b, 100))
		time.Sleep(5 * time.Second)
		assert.Zero(t, taken(b, 100), "the repeats still count")
		requests(b, 100)
		assert.Equal(t, 10, taken(b, 100))
		time.Sleep(4 * time.Second)
		assert.Zero(t, taken(b, 100), "all of it is less than ten seconds old")
		time.Sleep(time.Second)
		assert.Zero(t, taken(b, 100), "the older repeats are gone, and so are their requests")
		requests(b, 10)
		assert.Equal(t, 1, taken(b, 100))
		time.Sleep(5 * time.Second)
		assert.Zero(t, taken(b, 100), "the newest are left")
		requests(b, 20)
		assert.Equal(t, 2, taken(b, 100))
		time.Sleep(time.Hour)
		assert.Zero(t, taken(b, 100))
		requests(b, 10)
		assert.Equal(t, 1, taken(b, 100), "after a long silence")
	})
}

func TestBudgetHoldsWhoeverTakesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Budget{Percent: 20, Floor: -1}
		requests(b, 500)
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 10 {
					b.request()
					allowed.Add(int64(taken(b, 3)))
				}
			})
		}
		wg.Wait()
		allowed.Add(int64(taken(b, 1000)))
		assert.EqualValues(t, 200, allowed.Load(), "a fifth of 1000")
	})
}
