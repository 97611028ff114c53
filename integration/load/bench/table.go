package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/integration/load/stats"
)

// print writes the report as Markdown tables.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d CPUs, Linux %s, %s, %d rounds of %s\n",
		r.Started.UTC().Format(time.DateOnly), r.CPUs, r.Kernel, r.Go, r.Rounds, r.Slice)
	r.printLoad(w)
	r.printLatency(w)
	r.printLarge(w)
	r.printStalled(w)
	r.printFaults(w)
	r.printErrors(w)
}

func (r *report) printLoad(w io.Writer) {
	t := table{head: []string{"scenario", "router", "CPU µs per unit", "x nginx", "units/s", "x nginx", "errors"}}
	for _, l := range r.Load {
		if l.paced {
			continue
		}
		s := l.Summary
		t.add(l.Scenario, l.Router, s.CPUPerUnit.text(1), s.CPUOverNginx.text(2), s.Rate.text(0), s.RateOverNginx.text(2), fmt.Sprint(s.Errors))
	}
	t.print(w, "Load: the unit is a call of post-*, an event of sse-*")
}

func (r *report) printLatency(w io.Writer) {
	t := table{head: []string{"scenario", "router", "p50 ms", "p99 ms", "p50 added", "p99 added", "CPU µs per call", "errors"}}
	for _, l := range r.Load {
		if !l.paced {
			continue
		}
		s := l.Summary
		addedP50, addedP99 := number(math.NaN()), number(math.NaN())
		if d := r.find(l.Scenario, direct); d != nil && d != l {
			addedP50, addedP99 = s.P50-d.Summary.P50, s.P99-d.Summary.P99
		}
		t.add(l.Scenario, l.Router, s.P50.text(2), s.P99.text(2), addedP50.text(2), addedP99.text(2), s.CPUPerUnit.text(0), fmt.Sprint(s.Errors))
	}
	t.print(w, "Latency at 100 calls per second: added is over a direct call of decode")
}

func (r *report) printLarge(w io.Writer) {
	t := table{head: []string{"part", "router", "idle MB", "peak MB", "peak / payload", "CPU s", "wall s", "errors"}}
	for _, l := range r.Large {
		t.add(l.Part, l.Router, mb(l.Before.RSS), mb(l.After.Peak), number(float64(l.After.Peak)/float64(l.Payload)).text(2),
			number(l.CPU.Seconds()).text(1), number(l.Result.Elapsed.Seconds()).text(1), fmt.Sprint(l.Result.Errors))
	}
	t.print(w, "Large bodies")
}

func (r *report) printStalled(w io.Writer) {
	t := table{head: []string{"router", "streams held", "idle MB", "holding MB", "KB per stream", "idle CPU %", "errors"}}
	for _, l := range r.Stalled {
		perStream := number(float64(l.Holding.RSS-l.Before.RSS) / float64(l.Result.Requests) / 1024)
		t.add(l.Router, fmt.Sprint(l.Result.Requests), mb(l.Before.RSS), mb(l.Holding.RSS), perStream.text(1),
			number(100*l.IdleCPU.Seconds()/r.Settle.Seconds()).text(1), fmt.Sprint(l.Result.Errors))
	}
	t.print(w, "Stalled streams")
}

func (r *report) printFaults(w io.Writer) {
	t := table{head: []string{"fault", "router", "runs", "not freed", "freed p50 ms", "p99", "socket closed p50 ms", "p99"}}
	for _, l := range r.Faults {
		freed, closed := millis(l.Result.Freed), millis(l.Result.Closed)
		t.add(string(l.Fault), l.Router, fmt.Sprint(len(freed)+l.Result.Misses), fmt.Sprint(l.Result.Misses),
			number(stats.Percentile(freed, 50)).text(2), number(stats.Percentile(freed, 99)).text(2),
			number(stats.Percentile(closed, 50)).text(2), number(stats.Percentile(closed, 99)).text(2))
	}
	t.print(w, fmt.Sprintf("Faults: from the fault to the last leg freed (an abort or a closed socket), limit %s", freeLimit))
}

// printErrors shows the first errors of each row that has any.
func (r *report) printErrors(w io.Writer) {
	t := table{head: []string{"where", "router", "first errors"}}
	add := func(where, router string, samples []string) {
		if len(samples) > 0 {
			t.add(where, router, strings.ReplaceAll(strings.Join(samples, "; "), "|", `\|`))
		}
	}
	for _, l := range r.Load {
		var samples []string
		for _, s := range l.Slices {
			samples = append(samples, s.Result.Samples...)
		}
		add(l.Scenario, l.Router, samples[:min(len(samples), 3)])
	}
	for _, l := range r.Large {
		add(l.Part, l.Router, l.Result.Samples)
	}
	for _, l := range r.Stalled {
		add(partStalled, l.Router, l.Result.Samples)
	}
	for _, l := range r.Faults {
		add(string(l.Fault), l.Router, l.Result.Samples[:min(len(l.Result.Samples), 1)])
	}
	t.print(w, "Errors")
}

// table is a Markdown table; one without rows prints nothing.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer, title string) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n\n", title)
	line := func(cells []string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	fmt.Fprintln(w, "|"+strings.Repeat(" --- |", len(t.head)))
	for _, r := range t.rows {
		line(r)
	}
}

// text shows n with that many decimals, a dash for what is not a number.
func (n number) text(decimals int) string {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return "-"
	}
	return fmt.Sprintf("%.*f", decimals, float64(n))
}

func mb(bytes int64) string { return fmt.Sprint(bytes >> 20) }

func millis(d []time.Duration) []float64 {
	ms := make([]float64, len(d))
	for i, v := range d {
		ms[i] = v.Seconds() * 1e3
	}
	return ms
}
