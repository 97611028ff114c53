package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-pd/tandem/pd"
)

// Bounds of calls to workers that are no generation.
const (
	fanOutParallel = 32
	infoTimeout    = 10 * time.Second // server_info makes a round trip through the scheduler
	infoAnswer     = 8 << 20          // bytes
)

// call is one request to a worker.
type call struct {
	method  string
	path    string // with the query
	timeout time.Duration
	header  http.Header // nil for none but the client's Authorization and Via
	body    []byte
	// together has all workers called at once, however many: they may wait for
	// each other before they answer.
	together bool
}

// reply is what came of a call.
type reply struct {
	worker *pd.Worker
	status int
	body   []byte
	err    error // names addresses: never shown
}

func (r *reply) ok() bool { return r.err == nil && r.status >= 200 && r.status < 300 }

// failure says why a reply is not ok, without an address.
func (r *reply) failure() string {
	switch {
	case r.ok():
		return ""
	case errors.Is(r.err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(r.err, errAnswerTooLarge):
		return "the answer is too large"
	case r.err != nil:
		return "cannot be reached"
	default:
		return fmt.Sprintf("answered with status %d", r.status)
	}
}

var errAnswerTooLarge = errors.New("answer too large")

// withRole is the workers of one role, in their order.
func withRole(workers []*pd.Worker, role pd.Role) []*pd.Worker {
	var out []*pd.Worker
	for _, w := range workers {
		if w.Role == role {
			out = append(out, w)
		}
	}
	return out
}

// engineID is the id of the engine that a worker is, or is a rank of.
func engineID(w *pd.Worker) pd.WorkerID {
	if w.Rank == nil {
		return w.ID
	}
	return pd.WorkerID(strings.TrimSuffix(string(w.ID), "@"+strconv.Itoa(*w.Rank)))
}

// enginesOf are the workers, each address once: where ranks are workers, their
// engine stands for them.
func enginesOf(workers []*pd.Worker) []*pd.Worker {
	seen := make(map[string]bool, len(workers))
	out := make([]*pd.Worker, 0, len(workers))
	for _, w := range workers {
		if seen[w.URL] {
			continue
		}
		seen[w.URL] = true
		if w.Rank != nil {
			engine := *w
			engine.ID, engine.Rank = engineID(w), nil
			w = &engine
		}
		out = append(out, w)
	}
	return out
}

// askAll makes the same call to many workers, a bounded number at a time unless
// they are to be called together, and returns the replies in the workers' order.
func (a *App) askAll(v *visit, workers []*pd.Worker, c call) []reply {
	if c.header == nil {
		c.header = make(http.Header)
		if auth := v.authorization(); auth != "" {
			c.header.Set("Authorization", auth)
		}
		if via := v.via(); len(via) > 0 {
			c.header[fiber.HeaderVia] = via
		}
	}
	parallel := fanOutParallel
	if c.together {
		parallel = len(workers)
	}
	replies := make([]reply, len(workers))
	for i, w := range workers {
		replies[i] = reply{worker: w, err: errPanic()} // unless it comes to an end
	}
	a.some(v, len(workers), parallel, func(i int) { replies[i] = a.ask(v.ctx, workers[i], c) })
	return replies
}

// each runs f for 0 to n-1, a bounded number at a time, and waits. A panic ends
// its own call alone.
func (a *App) each(v *visit, n int, f func(i int)) { a.some(v, n, fanOutParallel, f) }

// some is each, with that many at a time.
func (a *App) some(v *visit, n, parallel int, f func(i int)) {
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer a.recovered(v.id)
			f(i)
		})
	}
	wg.Wait()
}

// ask makes one call and reads its answer whole.
func (a *App) ask(ctx context.Context, w *pd.Worker, c call) reply {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := a.send(ctx, w, c.method, c.path, c.header.Clone(), c.body)
	if err != nil {
		return reply{worker: w, err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, infoAnswer+1))
	if err == nil && len(body) > infoAnswer {
		err = errAnswerTooLarge
	}
	return reply{worker: w, status: resp.StatusCode, body: body, err: err}
}

// send makes one call with the given headers, and the worker's own key if it
// has one.
func (a *App) send(ctx context.Context, w *pd.Worker, method, path string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.GetBody = nil // the transport replays nothing
	w.Authorize(req.Header)
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = []string{""} // keeps net/http from naming itself
	}
	return a.cfg.Transport.RoundTrip(req)
}
