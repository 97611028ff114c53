package simengine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// state is where in the scheduler an item is.
type state int32

const (
	stateNone      state = iota
	stateHeld            // waits for generation to go on, or for the role to change
	stateBootstrap       // prefill: waits for decode's metadata
	stateForward         // prefill, regular: computes, or waits for its turn to
	stateInflight        // prefill: moves the KV
	statePrealloc        // decode: looks its prefill up; decode, regular: waits for KV space
	stateTransfer        // decode: waits for the KV
	stateRunning         // decode, regular: generates
	stateCount
)

// serving is an item's time in the scheduler.
type serving struct {
	l      *life
	call   *call
	ctx    context.Context // ends with the life, or with errAborted
	cancel context.CancelCauseFunc
	state  atomic.Int32

	role     Role // that serves it
	rank     int
	out      Output
	cached   int
	prefill  string // id of the prefill that computed the first token
	arrived  time.Time
	forward  time.Time
	computed time.Time // prefill: the first token was there
	first    time.Time
	finished time.Time

	framed   bool // a frame was sent
	sentText int  // bytes of text sent, where frames are deltas
	sentToks int
}

// enter moves the item to a state, and to none at its end. It waits while the
// engine is paused.
func (s *serving) enter(to state) {
	s.l.pass()
	from := state(s.state.Swap(int32(to)))
	if from != stateNone {
		s.l.states[from].Add(-1)
	}
	if to != stateNone {
		s.l.states[to].Add(1)
	}
	s.l.e.records.pulse()
}

// abort ends the item as /abort_request does.
func (s *serving) abort() {
	s.call.rec.update(func(r *Record) {
		if r.AbortedAt.IsZero() {
			r.AbortedAt = time.Now()
		}
	})
	s.cancel(errAborted)
}

// down reports whether the engine is, which is the other reason for an end of ctx.
func (s *serving) down() bool { return s.l.ctx.Err() != nil }

// workUntil takes the item's time until the engine has worked for so long; false
// if the item ended first.
func (s *serving) workUntil(worked time.Duration) bool {
	pause := &s.l.roles.pause
	if !pause.pass(s.ctx) {
		return false
	}
	for left := worked - s.l.worked(); left > 0; left = worked - s.l.worked() {
		ok := sleep(s.ctx, left)
		s.l.pass()
		if !ok || !pause.pass(s.ctx) {
			return false
		}
	}
	return s.ctx.Err() == nil
}

// worked is for how long the engine has run and generation was not paused.
func (l *life) worked() time.Duration {
	return l.gate.ran() - time.Duration(l.roles.pause.lost.Load())
}

// sleep waits for d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// registry knows the live items by their rid.
type registry struct {
	mu sync.Mutex
	m  map[string]*item
}

func newRegistry() *registry { return &registry{m: map[string]*item{}} }

// add registers all items or none, if a rid is in use.
func (r *registry) add(items []*item) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		if r.m[it.rid] != nil {
			return valueError(fmt.Sprintf("Duplicate request ID detected: %s", it.rid))
		}
	}
	for _, it := range items {
		r.m[it.rid] = it
	}
	return nil
}

func (r *registry) remove(it *item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[it.rid] == it {
		delete(r.m, it.rid)
	}
}

// matching are the live items whose rid starts with prefix, or all.
func (r *registry) matching(prefix string, all bool) []*item {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !all && prefix == "" {
		return nil
	}
	var found []*item
	for rid, it := range r.m {
		if all || strings.HasPrefix(rid, prefix) {
			found = append(found, it)
		}
	}
	return found
}

// serveAbort is POST /abort_request: always 200 and empty.
func (l *life) serveAbort(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return
	}
	var req struct {
		Rid      string `json:"rid"`
		AbortAll bool   `json:"abort_all"`
	}
	rec := l.e.records.arrive(r, body, false)
	defer rec.done(http.StatusOK, "finished")
	if len(body) > 0 && json.Unmarshal(body, &req) != nil {
		writeJSON(w, http.StatusBadRequest, schemaError("/abort_request", fmt.Errorf("JSON decode error")))
		return
	}
	rec.update(func(rec *Record) { rec.Rids = []string{req.Rid} })
	for _, it := range l.live.matching(req.Rid, req.AbortAll) {
		it.abort()
	}
}
