package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// maxShown bounds the rooms of one leg, and the legs of one request, in a line.
const maxShown = 8

// lineWriter writes one line for each request, whole.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) done(req *pd.Request, report pd.Report) {
	line := requestLine(req, report)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = io.WriteString(l.w, line+"\n") // a reader that has gone takes nothing else with it
}

// requestLine says what became of a request, for a person to read:
//
//	r-1 chat prefill-0+decode-1 room=42 | prefill-0 200 sent=0.2ms headers=3.1ms first=3.1ms end=9.0ms success | … | ttft=9.4ms tokens=5+16 total=80.1ms ok
//
// Legs come in the order in which they were sent. Times count from the
// request's start; a dash is what never happened, or was never said: a stream
// has no token counts unless its client asks for usage.
func requestLine(req *pd.Request, r pd.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s room=%s", printable(req.ID), req.Endpoint, pairOf(r.Legs), roomsOf(r.Legs))
	for i, leg := range r.Legs {
		if i == maxShown {
			fmt.Fprintf(&b, " | and %d legs", len(r.Legs)-maxShown)
			break
		}
		b.WriteString(" | " + legText(leg, r))
	}
	fmt.Fprintf(&b, " | ttft=%s tokens=%s", ms(r.TTFT), tokensOf(r))
	if r.CachedTokens > 0 {
		fmt.Fprintf(&b, " cached=%d", r.CachedTokens)
	}
	if r.Events > 0 {
		fmt.Fprintf(&b, " events=%d", r.Events)
	}
	if r.Attempts > 1 {
		fmt.Fprintf(&b, " attempts=%d", r.Attempts)
	}
	fmt.Fprintf(&b, " total=%s %s", ms(r.Total), outcomeOf(r))
	return b.String()
}

// pairOf is the pair of the last attempt.
func pairOf(legs []pd.LegReport) string {
	prefill, decode := pd.WorkerID("-"), pd.WorkerID("-")
	for _, leg := range legs {
		if leg.Role == pd.Prefill {
			prefill = leg.Worker
		} else {
			decode = leg.Worker
		}
	}
	return string(prefill + "+" + decode)
}

// roomsOf lists the rooms of the last attempt.
func roomsOf(legs []pd.LegReport) string {
	if len(legs) == 0 {
		return "-"
	}
	var rooms []uint64
	last := legs[len(legs)-1].Attempt
	for _, leg := range legs {
		if leg.Role == pd.Prefill && leg.Attempt == last {
			rooms = append(rooms, leg.Rooms...)
		}
	}
	var texts []string
	for _, room := range rooms[:min(len(rooms), maxShown)] {
		texts = append(texts, strconv.FormatUint(room, 10))
	}
	if more := len(rooms) - maxShown; more > 0 {
		texts = append(texts, fmt.Sprintf("and-%d", more))
	}
	if texts == nil {
		return "-"
	}
	return strings.Join(texts, ",")
}

func legText(leg pd.LegReport, r pd.Report) string {
	status, outcome := "-", leg.Outcome.String()
	if leg.Status != 0 {
		status = strconv.Itoa(leg.Status)
	}
	switch {
	case leg.Sent == 0 || leg.End != 0:
	case r.Err == nil:
		outcome = "open" // it drains behind the client's answer
	default:
		outcome = "dropped" // told to stop, and being closed
	}
	text := fmt.Sprintf("%s %s sent=%s headers=%s first=%s end=%s %s",
		leg.Worker, status, ms(leg.Sent), ms(leg.Headers), ms(leg.First), ms(leg.End), outcome)
	if r.Attempts > 1 {
		text += fmt.Sprintf(" attempt=%d", leg.Attempt)
	}
	return text
}

// tokensOf is prompt+completion, as the engine counted.
func tokensOf(r pd.Report) string {
	if r.PromptTokens == 0 && r.CompletionTokens == 0 {
		return "-"
	}
	return fmt.Sprintf("%d+%d", r.PromptTokens, r.CompletionTokens)
}

func outcomeOf(r pd.Report) string {
	if r.Err == nil {
		return "ok"
	}
	text := fmt.Sprintf("%s:%s %d", r.Err.Stage, r.Err.Kind, r.Err.Status)
	if r.Err.Code != "" {
		text += " " + r.Err.Code
	}
	return text
}

func ms(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64) + "ms"
}

// printable is a client's word, quoted where it could pass for more than one.
func printable(id string) string {
	if quoted := strconv.QuoteToASCII(id); id == "" || strings.ContainsRune(id, ' ') || quoted != `"`+id+`"` {
		return quoted
	}
	return id
}
