package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Counts are the legs each worker has read since it started.
type Counts struct {
	Prefill, Decode int64
}

// Until says what Control.Wait waits for.
type Until string

// The states of a run that can be waited for.
const (
	Opened Until = "opened" // that many legs have arrived
	Ended  Until = "ended"  // and every silent one of them is closed
)

// controlHandler serves the calls of Control.
func (e *Engine) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /mode", func(w http.ResponseWriter, r *http.Request) {
		var m Mode
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e.SetMode(m)
	})
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, Counts{Prefill: e.counts[0].Load(), Decode: e.counts[1].Load()})
	})
	mux.HandleFunc("POST /run", func(http.ResponseWriter, *http.Request) { e.record.newRun() })
	mux.HandleFunc("GET /run", func(w http.ResponseWriter, r *http.Request) {
		legs, _ := strconv.Atoi(r.FormValue("legs"))
		limit, _ := time.ParseDuration(r.FormValue("limit"))
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		ended := Until(r.FormValue("until")) == Ended
		writeJSON(w, e.record.wait(ctx, func(got []Leg) bool {
			return len(got) >= legs && (!ended || allEnded(got))
		}))
	})
	return mux
}

// allEnded counts a leg that answered as ended: it has nothing left to free.
func allEnded(legs []Leg) bool {
	for _, l := range legs {
		if l.Closed == 0 && l.Answered == 0 {
			return false
		}
	}
	return true
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// The peer is the bench itself; if it has gone, nobody is left to tell.
	_ = json.NewEncoder(w).Encode(v)
}

// Control steers an Engine in another process.
type Control struct {
	Addr   string // the engine's control address
	Client http.Client
}

// SetMode makes m the behaviour of both legs.
func (c *Control) SetMode(ctx context.Context, m Mode) error {
	return c.do(ctx, http.MethodPut, "/mode", m, nil)
}

// Counts returns the legs read so far.
func (c *Control) Counts(ctx context.Context) (n Counts, err error) {
	err = c.do(ctx, http.MethodGet, "/counts", nil, &n)
	return n, err
}

// NewRun forgets the legs recorded so far.
func (c *Control) NewRun(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/run", nil, nil)
}

// Wait returns the recorded legs once the state is reached for at least that
// many, or what there is of them after limit.
func (c *Control) Wait(ctx context.Context, legs int, until Until, limit time.Duration) (got []Leg, err error) {
	path := fmt.Sprintf("/run?legs=%d&until=%s&limit=%s", legs, until, limit)
	err = c.do(ctx, http.MethodGet, path, nil, &got)
	return got, err
}

func (c *Control) do(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("engine control: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Addr+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("engine control: %w", err)
	}
	resp, err := c.Client.Do(req)
	if err != nil {
		return fmt.Errorf("engine control: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("engine control: %s %s: %s", method, path, resp.Status)
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("engine control: %w", err)
	}
	return nil
}
