package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
)

// workerList is the part of GET /workers that is shown.
type workerList struct {
	Workers []shownWorker `json:"workers"`
	// Errors is what is wrong with those who say which workers there are.
	Errors map[string]struct {
		At   time.Time `json:"at"`
		Text string    `json:"error"`
	} `json:"source_errors"`
}

type shownWorker struct {
	ID        string `json:"id"`
	Role      string `json:"role"`
	Model     string `json:"model_id"`
	State     string `json:"state"`
	Reason    string `json:"reason"`
	InFlight  int64  `json:"in_flight"`
	Breaker   string `json:"breaker"`
	URL       string `json:"url"`
	LastError *struct {
		At   time.Time `json:"at"`
		Code string    `json:"code"`
	} `json:"last_error"`
	Served *struct {
		Prompt int64 `json:"prompt_tokens"`
		Cached int64 `json:"cached_tokens"`
	} `json:"served"`
}

// write is the list as a table, with what is wrong with its sources below.
func (l *workerList) write(out io.Writer, now time.Time) {
	if len(l.Workers) == 0 {
		fmt.Fprintln(out, "The router has no workers.")
	} else {
		l.table(out, now)
	}
	for _, source := range slices.Sorted(maps.Keys(l.Errors)) {
		e := l.Errors[source]
		fmt.Fprintf(out, "Workers from %s: %s (%s ago)\n", visible(source), visible(e.Text), age(now.Sub(e.At)))
	}
}

func (l *workerList) table(out io.Writer, now time.Time) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tROLE\tMODEL\tSTATE\tIN FLIGHT\tBREAKER\tHIT RATE\tLAST ERROR\tREASON\tURL")
	for i := range l.Workers {
		w := &l.Workers[i]
		cells := []string{
			w.ID, w.Role, w.Model, w.State, strconv.FormatInt(w.InFlight, 10), w.Breaker, w.hitRate(),
			w.lastError(now), w.Reason, w.URL,
		}
		for i, cell := range cells {
			cells[i] = visible(cell)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // out is a buffer
}

// hitRate is how much of the prompts the engine had in its cache.
func (w *shownWorker) hitRate() string {
	if w.Served == nil || w.Served.Prompt == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*float64(w.Served.Cached)/float64(w.Served.Prompt))
}

// lastError is how the last leg that failed did, and how long ago.
func (w *shownWorker) lastError(now time.Time) string {
	if w.LastError == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", w.LastError.Code, age(now.Sub(w.LastError.At)))
}

// age is a time in its largest unit. The router's clock may be ahead of this one.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// escaped is a JSON document, its lines apart, in which no string can do anything to
// a terminal.
func escaped(doc string) string {
	var out strings.Builder
	for _, r := range doc {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// visible is a text that can do nothing to a terminal or a table, and a dash where
// there is none: what engines and others say is shown to an operator.
func visible(text string) string {
	if text == "" {
		return "-"
	}
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			out.WriteRune(r)
		} else {
			quoted := strconv.QuoteRune(r)
			out.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return out.String()
}
