package stats

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMedianIsTheMiddleValue(t *testing.T) {
	f := func(want float64, v ...float64) {
		t.Helper()
		assert.Equal(t, want, Median(v))
	}
	f(3, 3)
	f(2, 3, 1)
	f(3, 9, 1, 3)
	f(2.5, 4, 1, 3, 2)
	assert.True(t, math.IsNaN(Median(nil)))
}

func TestMedianLeavesItsInputInOrder(t *testing.T) {
	v := []float64{3, 1, 2}
	Median(v)
	Percentile(v, 99)
	assert.Equal(t, []float64{3, 1, 2}, v)
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	f := func(p, want float64, v []float64) {
		t.Helper()
		assert.Equal(t, want, Percentile(v, p))
	}
	f(50, 50, hundred)
	f(99, 99, hundred)
	f(100, 100, hundred)
	f(1, 1, hundred)
	f(0.1, 1, hundred)
	f(99, 7, []float64{7})
	assert.True(t, math.IsNaN(Percentile(nil, 50)))
}

func TestMedianRatioComparesRoundsWithTheirOwnBase(t *testing.T) {
	// The machine became ten times slower in the last two rounds; the ratio holds.
	assert.Equal(t, 2.0, MedianRatio([]float64{2, 20, 20}, []float64{1, 10, 10}))
	// A round in which either failed says nothing.
	assert.Equal(t, 3.0, MedianRatio([]float64{3, math.NaN(), 8}, []float64{1, 1, 0}))
	assert.Equal(t, 3.0, MedianRatio([]float64{3, 5}, []float64{1}))
	assert.True(t, math.IsNaN(MedianRatio(nil, []float64{1})))
}
