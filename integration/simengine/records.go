package simengine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"sync"
	"time"
)

// Record is one request as the engine saw it.
type Record struct {
	Method string
	Path   string
	Query  string
	Header http.Header
	Body   []byte // as received; nil if the store keeps none
	Rooms  []Room
	Rids   []string
	Stream bool

	Arrived time.Time
	// FirstByte is when the head of the answer went out.
	FirstByte time.Time
	// Ended is when the engine was done with it, zero while it is not.
	Ended time.Time
	// Freed is when the last of its items was out of the scheduler, zero before:
	// a batch can outlive its answer.
	Freed time.Time
	// ClosedByClient is when the client was seen to be gone, zero if it was not.
	ClosedByClient time.Time
	// AbortedAt is when /abort_request or a disconnect freed it, zero if none did.
	AbortedAt time.Time
	// Events is the number of events written to a stream.
	Events int
	// Status is that of the answer, 0 if there was none.
	Status int
	// End is "finished", "refused", "failed", "aborted", "gone" (the client
	// left before an answer), "fault" or "down" (the engine ended).
	End string
}

// record is a Record under the lock of its store.
type record struct {
	store      *recordStore
	generation bool
	busy       int // things in service: the call, and the items of a batch
	r          Record
}

// recordStore keeps the last records, and counts.
type recordStore struct {
	mu      sync.Mutex
	keep    int
	observe func(Record) // may be nil
	list    []*record
	arrived int // generation requests
	active  int // generation requests and batch items being served, and KV that is held back
	changed chan struct{}
}

func newRecordStore(cfg *Config) *recordStore {
	return &recordStore{keep: cfg.KeepRecords, observe: cfg.Observe}
}

// arrive notes a new request.
func (s *recordStore) arrive(r *http.Request, body []byte, generation bool) *record {
	rec := &record{store: s, generation: generation, r: Record{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header, Arrived: time.Now(),
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation {
		s.arrived++
		s.active++
		rec.busy = 1
	}
	if s.keep > 0 || s.observe != nil {
		rec.r.Body = body
	}
	if s.keep > 0 {
		if len(s.list) >= 2*s.keep {
			s.list = append(s.list[:0:0], s.list[len(s.list)-s.keep:]...)
		}
		s.list = append(s.list, rec)
	}
	s.wakeLocked()
	return rec
}

// hold counts one more thing in service; the result ends it.
func (r *record) hold() (release func()) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.active++
	r.busy++
	return func() { r.update(func(*Record) { r.leaveLocked() }) }
}

// linger keeps the engine from being idle; the result ends it.
func (s *recordStore) linger() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
		s.wakeLocked()
	}
}

// leaveLocked ends one thing in service.
func (r *record) leaveLocked() {
	r.store.active--
	if r.busy--; r.busy == 0 {
		r.r.Freed = time.Now()
	}
}

// tell shows the record to the observer, if there is one.
func (r *record) tell() {
	if r.generation && r.store.observe != nil {
		r.store.observe(r.snapshot())
	}
}

// all are copies of the kept records.
func (s *recordStore) all() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copyLocked()
}

func (s *recordStore) copyLocked() []Record {
	list := s.list
	if n := len(list) - max(s.keep, 0); n > 0 {
		list = list[n:]
	}
	out := make([]Record, len(list))
	for i, rec := range list {
		out[i] = rec.r
	}
	return out
}

// until waits for ok, which is asked under the lock after each change.
func (s *recordStore) until(ctx context.Context, ok func(*recordStore) bool) error {
	for {
		s.mu.Lock()
		if ok(s) {
			s.mu.Unlock()
			return nil
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pulse makes those who wait look again.
func (s *recordStore) pulse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakeLocked()
}

func (s *recordStore) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// update changes the record, and tells the observer if that has freed it.
func (r *record) update(change func(*Record)) {
	r.store.mu.Lock()
	before := r.r.Freed
	change(&r.r)
	freed := r.r.Freed != before
	r.store.wakeLocked()
	r.store.mu.Unlock()
	if freed {
		r.tell()
	}
}

// done ends the record; the first end counts.
func (r *record) done(status int, how string) {
	r.update(func(rec *Record) {
		if !rec.Ended.IsZero() {
			return
		}
		rec.Ended = time.Now()
		if rec.Status == 0 {
			rec.Status = status
		}
		if rec.End == "" {
			rec.End = how
		}
		if r.generation {
			r.leaveLocked()
		}
	})
}

// snapshot is a copy of the record.
func (r *record) snapshot() Record {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	return r.r
}

// newID is a random id of 32 hex digits, as the engine's request ids are.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
