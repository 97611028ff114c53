package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/integration/load/stats"
)

// report is everything one run measured; it is the JSON file as it stands.
type report struct {
	Started time.Time
	CPUs    int
	Go      string
	Kernel  string
	Rounds  int
	Slice   time.Duration
	Settle  time.Duration
	Load    []*loadRow
	Large   []largeRow
	Stalled []stalledRow
	Faults  []faultRow
}

// loadRow is one router under one scenario, with the numbers of summary filled
// in by save.
type loadRow struct {
	Scenario string
	Router   string
	Slices   []slice
	Summary  summary
	paced    bool
}

// summary is a loadRow in a line. Ratios are medians of per-round ratios, the
// rest medians over the rounds; null is what could not be computed.
type summary struct {
	CPUPerUnit    number // microseconds of router CPU per call or event
	CPUOverNginx  number
	Rate          number // calls or events per second
	RateOverNginx number
	P50, P99      number // milliseconds, paced scenarios only
	Errors        int
}

// number is a float64 that JSON shows as null when it is not a number.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func newReport(cfg config) *report {
	// Where the kernel does not say its version the field stays empty.
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return &report{
		Started: time.Now(), CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: strings.TrimSpace(string(kernel)), Rounds: cfg.rounds, Slice: cfg.slice, Settle: cfg.settle,
	}
}

func (r *report) addSlice(s scenario, router string, got slice) {
	row := r.find(s.name, router)
	if row == nil {
		row = &loadRow{Scenario: s.name, Router: router, paced: s.job.Rate > 0}
		r.Load = append(r.Load, row)
	}
	row.Slices = append(row.Slices, got)
}

func (r *report) find(scenario, router string) *loadRow {
	i := slices.IndexFunc(r.Load, func(l *loadRow) bool { return l.Scenario == scenario && l.Router == router })
	if i < 0 {
		return nil
	}
	return r.Load[i]
}

// save fills in the summaries and writes the report to file, if it has a name.
func (r *report) save(file string) error {
	for _, row := range r.Load {
		row.Summary = row.summarize(r.find(row.Scenario, baseline))
	}
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (l *loadRow) summarize(base *loadRow) summary {
	s := summary{CPUOverNginx: number(math.NaN()), RateOverNginx: number(math.NaN()), P50: number(math.NaN()), P99: number(math.NaN())}
	cpu, rate := l.series()
	s.CPUPerUnit, s.Rate = number(stats.Median(cpu)), number(stats.Median(rate))
	if base != nil {
		baseCPU, baseRate := base.series()
		s.CPUOverNginx = number(stats.MedianRatio(cpu, baseCPU))
		s.RateOverNginx = number(stats.MedianRatio(rate, baseRate))
	}
	var ms []float64
	for _, sl := range l.Slices {
		s.Errors += sl.Result.Errors
		for _, d := range sl.Result.Latencies {
			ms = append(ms, d.Seconds()*1e3)
		}
	}
	if l.paced {
		s.P50, s.P99 = number(stats.Percentile(ms, 50)), number(stats.Percentile(ms, 99))
	}
	return s
}

// series is CPU per unit in microseconds and units per second, by round. A
// slice without a unit is NaN, which MedianRatio leaves out.
func (l *loadRow) series() (cpu, rate []float64) {
	for _, s := range l.Slices {
		n := float64(s.units())
		if n == 0 {
			n = math.NaN()
		}
		cpu = append(cpu, float64(s.CPU.Microseconds())/n)
		rate = append(rate, n/s.Result.Elapsed.Seconds())
	}
	return cpu, rate
}
