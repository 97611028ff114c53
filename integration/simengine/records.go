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
	r          Record
}

// recordStore keeps the last records, and counts.
type recordStore struct {
	mu      sync.Mutex
	keep    int
	list    []*record
	arrived int // generation requests
	active  int // generation requests and batch items being served
	changed chan struct{}
}

func newRecordStore(keep int) *recordStore { return &recordStore{keep: keep} }

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
	}
	if s.keep > 0 {
		rec.r.Body = body
		if len(s.list) >= 2*s.keep {
			s.list = append(s.list[:0:0], s.list[len(s.list)-s.keep:]...)
		}
		s.list = append(s.list, rec)
	}
	s.wakeLocked()
	return rec
}

// hold counts one more thing in service; the result ends it.
func (s *recordStore) hold() (release func()) {
	s.mu.Lock()
	s.active++
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active--
		s.wakeLocked()
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
	if n := len(list) - s.keep; n > 0 {
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

// update changes the record.
func (r *record) update(change func(*Record)) {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	change(&r.r)
	r.store.wakeLocked()
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
			r.store.active--
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
