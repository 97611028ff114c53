package router

import (
	"container/list"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tandem-pd/tandem/pd"
)

// admission bounds how many data requests are at the engines at once and how
// many go there a second. The others wait in the order in which they came, a
// bounded number of them for a bounded time. A place is held from enter to
// leave; a token of the rate is spent.
//
// Who gives a place back hands it to the first in the queue, so that nobody who
// comes in between can take it. Waiting is done by the requests' own goroutines.
type admission struct {
	places  int // 0 for no bound
	queue   int
	timeout time.Duration
	rate    *rate.Limiter // nil for no bound
	refill  *time.Timer   // when the first in the queue finds a token; any waiter may hear it
	bound   func(name string)

	mu       sync.Mutex
	underway int
	waiting  list.List // of *waiter; the first lacks a place or a token
}

// waiter is a request in the queue.
type waiter struct {
	ctx      context.Context // ends when the client leaves
	rids     []string        // the client's own
	spot     *list.Element
	admitted bool          // holds a place; under the admission's lock
	aborted  bool          // somebody asked for its end; under the admission's lock
	turn     chan struct{} // closed when admitted or aborted
}

func newAdmission(cfg Config) *admission {
	q := &admission{
		places:  max(cfg.MaxConcurrent, 0),
		queue:   max(cfg.QueueSize, 0),
		timeout: cfg.QueueTimeout,
		bound:   cfg.Bound,
		refill:  time.NewTimer(time.Hour),
	}
	q.refill.Stop()
	if cfg.RatePerSecond > 0 {
		burst := cfg.RatePerSecond
		if q.places > 0 {
			burst = q.places
		}
		q.rate = rate.NewLimiter(rate.Limit(cfg.RatePerSecond), burst)
	}
	return q
}

// enter takes a place and a token, and waits in the queue until there are some.
// After a nil error the caller holds a place and must leave; after another it
// holds nothing. An abort of one of rids ends the wait.
func (q *admission) enter(ctx context.Context, rids []string) error {
	w, ok := q.join(ctx, rids)
	switch {
	case !ok:
		return q.full()
	case w == nil:
		return nil
	}
	timer := time.NewTimer(q.timeout)
	defer timer.Stop()
	for {
		select {
		case <-q.refill.C:
			q.look()
			continue
		case <-w.turn:
		case <-ctx.Done():
		case <-timer.C:
		}
		switch {
		case q.settle(w):
			return nil
		case ctx.Err() != nil:
			return pd.ErrCancelled(pd.StageRequest)
		case w.aborted: // settled: nobody writes it any more
			return pd.ErrAborted(pd.StageRequest)
		default:
			return q.late()
		}
	}
}

// join admits a request at once, and then returns no waiter, or queues it. It
// reports false when it can do neither.
func (q *admission) join(ctx context.Context, rids []string) (w *waiter, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.Len() == 0 && q.take() {
		return nil, true
	}
	if q.waiting.Len() >= q.queue {
		return nil, false
	}
	w = &waiter{ctx: ctx, rids: rids, turn: make(chan struct{})}
	w.spot = q.waiting.PushBack(w)
	if q.waiting.Len() == 1 {
		q.awaitToken()
	}
	return w, true
}

// settle ends a wait, whatever ended it, and reports whether w holds a place. A
// client that left as its turn came leaves the place to the next.
func (q *admission) settle(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !w.admitted {
		q.waiting.Remove(w.spot) // advance may have; a refill that is set is the next one's
		return false
	}
	if w.ctx.Err() == nil {
		return true
	}
	q.underway--
	q.advance()
	return false
}

// abort ends the waiting of those that have rid, or of all, and returns how many
// there were.
func (q *admission) abort(rid string, all bool) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for spot := q.waiting.Front(); spot != nil; {
		next, w := spot.Next(), spot.Value.(*waiter)
		if all || slices.Contains(w.rids, rid) {
			w.aborted = true
			close(w.turn)
			q.waiting.Remove(spot)
			n++
		}
		spot = next
	}
	if n > 0 {
		q.advance() // the first may be another one now
	}
	return n
}

// leave gives a place back.
func (q *admission) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.underway--
	q.advance()
}

// look admits who can be, when time has passed.
func (q *admission) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.advance()
}

// advance admits from the front of the queue while it can, and passes over
// clients that have left.
func (q *admission) advance() {
	for q.waiting.Len() > 0 {
		first := q.waiting.Front()
		w := first.Value.(*waiter)
		if w.ctx.Err() == nil {
			if !q.take() {
				q.awaitToken()
				return
			}
			w.admitted = true
			close(w.turn)
		}
		q.waiting.Remove(first)
	}
}

// take takes a place and a token, or neither.
func (q *admission) take() bool {
	if q.crowded() || q.rate != nil && !q.rate.Allow() {
		return false
	}
	q.underway++
	return true
}

// crowded reports whether every place is taken.
func (q *admission) crowded() bool { return q.places > 0 && q.underway >= q.places }

// awaitToken sets the refill, when a token is all that is missing. A place that
// is missing comes with its holder's leave.
func (q *admission) awaitToken() {
	if q.rate == nil || q.crowded() {
		return
	}
	missing := 1 - q.rate.Tokens()
	q.refill.Reset(time.Duration(missing / float64(q.rate.Limit()) * float64(time.Second)))
}

func (q *admission) full() error {
	q.bound("queue_size")
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Overload, Status: http.StatusTooManyRequests, RetryAfter: "1",
		Code: "queue_full", Message: "the router is busy and its queue is full",
	}
}

func (q *admission) late() error {
	q.bound("queue_timeout")
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Overload, Status: http.StatusServiceUnavailable, RetryAfter: "1",
		Code: "queue_timeout", Message: fmt.Sprintf("the router is busy: the request waited %s for its turn", q.timeout),
	}
}

// admit waits until the request may go to the engines. The visit's end gives the
// place back.
func (v *visit) admit(req *pd.Request) error {
	rids := req.Rids
	if req.Rid != "" {
		rids = []string{req.Rid}
	}
	if err := v.app.admission.enter(v.ctx, rids); err != nil {
		return err
	}
	v.admitted = true
	return nil
}
