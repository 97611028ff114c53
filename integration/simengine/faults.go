package simengine

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"
)

// Fault is what goes wrong with one request. Several of its fields may be set;
// they are looked at in this order. Events are the "data:" blocks of a stream,
// the first is number 1.
type Fault struct {
	// Delay passes before the engine looks at the request.
	Delay time.Duration
	// Hang reads the request and answers nothing, until the client leaves.
	Hang bool
	// Reset resets the connection instead of an answer.
	Reset bool
	// Die crashes the engine at a point of the exchange.
	Die DiePoint
	// Status answers at once with this status, Header and Body.
	Status int
	Header http.Header
	Body   []byte
	// FailTransfer (prefill) loses the KV on its way; this pair then stays
	// broken until decode restarts.
	FailTransfer bool
	// FailSwitch (/pd_role_switch) breaks the engine while its role changes: it is
	// not well any more, and serves nothing until it is restarted.
	FailSwitch bool
	// HeadDelay holds back the head of the answer.
	HeadDelay time.Duration
	// ErrorAt replaces this event by ErrorEvent (its JSON), after which the
	// stream ends with [DONE].
	ErrorAt    int
	ErrorEvent string
	// ResetAfter resets the connection after this many events, CutAfter closes
	// it within the body, TruncateAfter ends the body well, without [DONE].
	ResetAfter, CutAfter, TruncateAfter int
	// Merge writes this many events at once, Split writes each in pieces of
	// this many bytes.
	Merge, Split int
	// Pad adds a member of this many bytes to every event.
	Pad int
}

// DiePoint says when an engine dies.
type DiePoint int

// The points of Fault.Die: on arrival of the request, or once the two sides
// know of each other (prefill has decode's metadata, decode has sent it; a
// regular engine has room for the prompt).
const (
	DieBeforeHandshake DiePoint = iota + 1
	DieAfterHandshake
)

// BootstrapState is how a prefill's bootstrap server behaves.
type BootstrapState int32

// The states of Engine.SetBootstrap.
const (
	BootstrapUp           BootstrapState = iota
	BootstrapUnregistered                // /route answers 503, /health is well
	BootstrapDown                        // every connection is reset, though the API lives
)

// fault asks the script; the zero fault is none.
func (l *life) faultFor(rec *record) *Fault {
	if choose := l.e.fault.Load(); choose != nil {
		if f := (*choose)(rec.snapshot()); f != nil {
			return f
		}
	}
	return &Fault{}
}

// before applies what happens instead of serving the request, and reports
// whether it did.
func (c *call) before() bool {
	f := c.fault
	ctx := c.r.Context()
	if f.Delay > 0 && !sleep(ctx, f.Delay) {
		return true
	}
	switch {
	case f.Hang:
		<-ctx.Done()
	case f.Reset:
		c.out.reset()
	case f.Die == DieBeforeHandshake:
		c.l.crash(ErrScripted)
	case f.Status != 0:
		maps.Copy(c.out.w.Header(), f.Header)
		c.out.plain(f.Status, contentTypeOf(f.Body), f.Body)
	default:
		return false
	}
	c.rec.update(func(r *Record) { r.End = "fault" })
	return true
}

// failPath applies the fault of a path that does not generate, and reports
// whether that was the answer.
func (l *life) failPath(w http.ResponseWriter, r *http.Request, f *Fault) bool {
	if f.Delay > 0 && !sleep(r.Context(), f.Delay) {
		return true
	}
	if !f.Hang && !f.Reset && f.Status == 0 {
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return true
	}
	instead := &Fault{Hang: f.Hang, Reset: f.Reset, Status: f.Status, Header: f.Header, Body: f.Body}
	c := &call{l: l, r: r, rec: l.e.records.arrive(r, body, false), fault: instead}
	c.out = &out{c: c, w: w}
	defer c.finish()
	return c.before()
}

func contentTypeOf(body []byte) string {
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) || bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		return "application/json"
	}
	return "text/plain; charset=utf-8"
}

// pad adds a member of n bytes to an event's object.
func pad(data []byte, n int) []byte {
	if n <= 0 || len(data) == 0 || data[len(data)-1] != '}' {
		return data
	}
	out := append([]byte{}, data[:len(data)-1]...)
	out = append(out, `,"pad":"`...)
	out = append(out, strings.Repeat("x", n)...)
	return append(out, `"}`...)
}

// ErrScripted is what Fatal says of an engine that Fault.Die has ended.
var ErrScripted = errors.New("crash asked for by a test")
