// Package engine is a pair of SGLang-shaped workers, one prefill and one
// decode, that answer at once and cost as little CPU as possible, so that a
// load run measures the router between them and its clients. The bench command
// runs it in a process of its own and steers it through Control; it never
// looks at what a request asks for: what it answers is the Mode alone.
package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Role says which leg a listener serves.
type Role string

// The two legs of an exchange.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Action is what a leg does once it has read its request.
type Action string

// The actions. The zero value is AnswerJSON.
const (
	AnswerJSON   Action = ""       // 1 KB of JSON, status 200
	AnswerStream Action = "stream" // SSE: the mode's events, then [DONE]
	Stall        Action = "stall"  // SSE headers and one event, then silence
	Hold         Action = "hold"   // not one byte of an answer
	Refuse       Action = "refuse" // 400 after RefuseAfter
)

// refuseAfter is how long a refusing leg takes to say so: long enough for the
// other leg to have been dispatched.
const refuseAfter = 5 * time.Millisecond

// Mode is how both legs behave until the next Mode. The zero value answers
// every call with JSON.
type Mode struct {
	Prefill Action
	Decode  Action
	// Events and EventBytes shape decode's streams: how many events, [DONE] not
	// counted, and the bytes of each, framing included.
	Events     int
	EventBytes int
	// Gap is the time between two events of a stream, 0 for flat out.
	Gap time.Duration
	// Record makes legs that do not answer with JSON or a whole decode stream
	// note their arrivals, ends and aborts for Control.Wait. It costs a parse of
	// each body, so load runs leave it off.
	Record bool
}

// Config holds the addresses of an Engine, each "host:port".
type Config struct {
	Prefill, Decode, Control string
}

// Engine serves both legs and the control port.
type Engine struct {
	answers atomic.Pointer[answers]
	record  record
	counts  [2]atomic.Int64

	mu      sync.Mutex
	held    map[net.Conn]struct{} // connections of legs that stay silent
	all     map[net.Conn]struct{}
	closing bool
}

// Run serves until ctx ends, then closes every connection and waits for the
// goroutines behind them.
func Run(ctx context.Context, cfg Config) error {
	e := &Engine{held: map[net.Conn]struct{}{}, all: map[net.Conn]struct{}{}}
	e.SetMode(Mode{})
	var listeners []net.Listener
	closeAll := func() {
		for _, ln := range listeners {
			ln.Close()
		}
	}
	for _, addr := range []string{cfg.Prefill, cfg.Decode, cfg.Control} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			closeAll()
			return fmt.Errorf("engine: %w", err)
		}
		listeners = append(listeners, ln)
	}
	control := &http.Server{Handler: e.controlHandler(), ReadHeaderTimeout: 5 * time.Second}
	var wg sync.WaitGroup
	errs := make(chan error, 3)
	wg.Go(func() { errs <- e.accept(&wg, listeners[0], Prefill) })
	wg.Go(func() { errs <- e.accept(&wg, listeners[1], Decode) })
	wg.Go(func() { errs <- control.Serve(listeners[2]) })
	var err error
	select {
	case <-ctx.Done():
	case err = <-errs:
	}
	closeAll()
	control.Close()
	e.mu.Lock()
	e.closing = true
	closeConns(e.all)
	e.mu.Unlock()
	wg.Wait()
	return err
}

// SetMode makes m the behaviour of every later call and ends the calls that an
// earlier mode left silent.
func (e *Engine) SetMode(m Mode) {
	a := newAnswers(m)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers.Store(a)
	closeConns(e.held)
}

func closeConns(set map[net.Conn]struct{}) {
	for c := range set {
		c.Close()
	}
}

func (e *Engine) accept(wg *sync.WaitGroup, ln net.Listener, role Role) error {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("engine: accept on %s: %w", role, err)
		}
		if !e.admit(c) {
			c.Close()
			continue
		}
		wg.Go(func() {
			defer e.forget(c)
			e.serve(c, role)
		})
	}
}

func (e *Engine) admit(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.all[c] = struct{}{}
	return true
}

func (e *Engine) forget(c net.Conn) {
	c.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, c)
	delete(e.held, c)
}

// hold registers a silent connection, unless a is no longer the mode.
func (e *Engine) hold(c net.Conn, a *answers) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing || e.answers.Load() != a {
		return false
	}
	e.held[c] = struct{}{}
	return true
}

func roleIndex(r Role) int {
	if r == Prefill {
		return 0
	}
	return 1
}
