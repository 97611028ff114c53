package pd

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// NewRid makes a request id for an engine: 32 hex digits. All are of one
// length, because engines match aborts by prefix.
func NewRid() string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], rand.Uint64())
	binary.BigEndian.PutUint64(raw[8:], rand.Uint64())
	return hex.EncodeToString(raw[:])
}

// liveSet knows the requests under way and which engines hold which rids.
type liveSet struct {
	mu    sync.Mutex
	calls map[*call]struct{}
}

// call is one live request.
type call struct {
	set     *liveSet
	name    string   // what a client calls it: its own rid, else the public id
	rids    []string // a client's own, of a batch
	aborted atomic.Bool
	cancel  context.CancelCauseFunc
	left    bool               // the client has its answer; guarded by set.mu
	held    map[*Hold]struct{} // guarded by set.mu
	idle    chan struct{}      // closed when nothing is held any more; nil while nobody waits; guarded by set.mu
}

// Hold says that a worker knows rids, from before dispatch until the leg is
// closed or answered.
type Hold struct {
	call   *call
	worker *Worker
	rids   []string
	ours   bool // the rids are from NewRid, no client's
	past   bool // the attempt has failed: the leg is being closed; guarded by set.mu
}

// add makes a request live. cancel ends it with the cause; it must not block.
func (s *liveSet) add(name string, rids []string, cancel context.CancelCauseFunc) *call {
	c := &call{set: s, name: name, rids: rids, cancel: cancel, held: make(map[*Hold]struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = make(map[*call]struct{})
	}
	s.calls[c] = struct{}{}
	return c
}

// leave ends the call, as soon as nothing is held any more: a hold outlives the
// client's answer by as long as it takes to close a leg.
func (s *liveSet) leave(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.cancel(nil)
	c.left = true
	if len(c.held) == 0 {
		delete(s.calls, c)
	}
}

// Hold registers rids with the worker that is about to get them.
func (r *Request) Hold(w *Worker, rids []string) *Hold {
	h := &Hold{call: r.live, worker: w, rids: rids, ours: r.Rid == "" && r.Rids == nil}
	if r.live == nil {
		return h
	}
	s := r.live.set
	s.mu.Lock()
	defer s.mu.Unlock()
	r.live.held[h] = struct{}{}
	return h
}

// Release is called when the worker is done with the rids. Calls after the
// first do nothing.
func (h *Hold) Release() {
	c := h.call
	if c == nil {
		return
	}
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if _, ok := c.held[h]; !ok {
		return
	}
	delete(c.held, h)
	if len(c.held) == 0 {
		if c.idle != nil {
			close(c.idle)
			c.idle = nil
		}
		if c.left {
			delete(c.set.calls, c)
		}
	}
}

// MayAbort reports whether an abort of rid would reach no other live request:
// engines abort every request whose rid starts with the one given. The next
// attempt of the same request on the same worker counts as another one.
// Only a client's rid is looked for, because that takes a walk over all live
// ones: one of ours is new and as long as any, so no other starts with it, and
// a large batch that is dropped must not hold up everybody else.
func (h *Hold) MayAbort(rid string) bool {
	if h.call == nil || h.ours {
		return true
	}
	s := h.call.set
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		for other := range c.held {
			if c == h.call && (other == h || other.worker.URL != h.worker.URL) {
				continue
			}
			for _, r := range other.rids {
				if strings.HasPrefix(r, rid) {
					return false
				}
			}
		}
	}
	return true
}

// Aborted reports whether somebody's abort request has named this request.
func (r *Request) Aborted() bool { return r.live != nil && r.live.aborted.Load() }

// PublicID is the id that the client knows the request by.
func (r *Request) PublicID() string {
	if r.live == nil {
		return r.Rid
	}
	return r.live.name
}

// failed says that the present attempt is over: what is still held of it is
// about to be let go, and the call is no longer at work on it.
func (c *call) failed() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	for h := range c.held {
		h.past = true
	}
}

// works reports whether an attempt is under way on a worker that is, or any. The
// caller holds set.mu.
func (c *call) works(is func(*Worker) bool) bool {
	for h := range c.held {
		if !h.past && is(h.worker) {
			return true
		}
	}
	return false
}

// settled waits until no engine holds the call's rids, at most for d.
func (c *call) settled(ctx context.Context, d time.Duration) {
	idle := c.whenIdle()
	if idle == nil {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// whenIdle is closed when nothing is held any more; nil when nothing is held now.
func (c *call) whenIdle() <-chan struct{} {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	if len(c.held) > 0 && c.idle == nil {
		c.idle = make(chan struct{})
	}
	return c.idle
}

// target is one abort to be sent on a client's behalf.
type target struct {
	worker *Worker
	rid    string
}

// mark finds what an abort of rid means, marks the live requests it may hit and
// returns where to send it: to the holders of that very rid, or of the request
// that it names. An engine that gets it may abort every request whose rid merely
// begins like it, so those are marked too; but they are not sent to, or half a
// rid would reach strangers' requests on engines that would not have looked. An
// empty result means that nobody here knows rid; an empty rid means nobody, as
// it does to the engines. A request between two attempts, which no engine could
// answer the abort of, ends here.
func (s *liveSet) mark(rid string, all bool) []target {
	if rid == "" && !all {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []target
	for c := range s.calls {
		named := c.name == rid
		hit := all || named || slices.Contains(c.rids, rid)
		for h := range c.held {
			for _, r := range h.rids {
				if all || named || r == rid {
					out = append(out, target{h.worker, r})
				}
				hit = hit || strings.HasPrefix(r, rid)
			}
		}
		if !hit {
			continue
		}
		c.aborted.Store(true)
		if !c.left && !c.works(func(*Worker) bool { return true }) {
			c.cancel(ErrAborted(StagePlan))
		}
	}
	return out
}

// cut ends the calls that worker id is at work on, and returns how many.
func (s *liveSet) cut(id WorkerID, why *Error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for c := range s.calls {
		if !c.left && c.works(func(w *Worker) bool { return w.ID == id }) {
			c.cancel(why)
			n++
		}
	}
	return n
}
