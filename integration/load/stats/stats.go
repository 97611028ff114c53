// Package stats holds the few numbers a load report is made of: medians,
// percentiles and the ratio of two interleaved series. It is pure; the bench
// command and the load clients call it.
package stats

import (
	"math"
	"slices"
)

// Median is the middle value, the mean of the two middle ones for an even
// count, NaN for none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	mid := len(s) / 2
	if len(s)%2 == 1 {
		return s[mid]
	}
	return (s[mid-1] + s[mid]) / 2
}

// Percentile is the smallest value with at least p percent of v at or below it
// (nearest rank), NaN for none. p is in (0, 100].
func Percentile(v []float64, p float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	rank := int(math.Ceil(p / 100 * float64(len(s))))
	return s[min(max(rank, 1), len(s))-1]
}

// MedianRatio is the median of v[i]/base[i]: each round is compared with its
// own baseline, so a machine that slows down halfway moves both. Rounds where
// either is missing (NaN) or the base is zero are left out.
func MedianRatio(v, base []float64) float64 {
	var ratios []float64
	for i := range min(len(v), len(base)) {
		r := v[i] / base[i]
		if !math.IsNaN(r) && !math.IsInf(r, 0) {
			ratios = append(ratios, r)
		}
	}
	return Median(ratios)
}
