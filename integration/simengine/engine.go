package simengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Engine is one running engine. All methods may be called from any goroutine.
type Engine struct {
	cfg     Config
	log     *log.Logger
	records *recordStore
	fault   atomic.Pointer[func(Record) *Fault]
	boot    atomic.Int32 // BootstrapState
	paths   sync.Map     // path -> *Fault, of the paths that do not generate

	mu     sync.Mutex
	life   *life // the running incarnation, or the last one
	closed bool
	fatal  error
}

// errEnded is a start that something else has ended.
var errEnded = errors.New("ended while it started")

// Start starts an engine and returns once its listeners are open.
func Start(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("simulated engine: %w", err)
	}
	e := &Engine{cfg: cfg}
	out := cfg.Log
	if out == nil {
		out = io.Discard
	}
	e.records = newRecordStore(&cfg)
	l := newLife(e)
	if err := l.listen(); err != nil {
		l.end(true)
		l.wait()
		return nil, fmt.Errorf("simulated %s: %w", cfg.Role, err)
	}
	// A restart takes the same ports, whatever the first start was given.
	e.cfg.Addr, e.cfg.BootstrapAddr = l.addr, l.bootstrapAddr
	if e.cfg.ID == "" {
		e.cfg.ID = fmt.Sprintf("%s-%d", cfg.Role, portOf(l.addr))
	}
	e.log = log.New(out, "simengine "+e.cfg.ID+": ", log.LstdFlags|log.Lmicroseconds)
	e.life = l
	l.serve()
	return e, nil
}

// URL is the API's base, "http://host:port".
func (e *Engine) URL() string { return "http://" + e.cfg.Addr }

// ID is the name of the engine in logs and in the debug field.
func (e *Engine) ID() string { return e.cfg.ID }

// Host is the API's host without its port, in brackets if it is an IPv6 one:
// what a bootstrap_host field wants.
func (e *Engine) Host() string {
	host, _, _ := net.SplitHostPort(e.cfg.Addr)
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		return "[" + host + "]"
	}
	return host
}

// Role is the role that the engine serves now: that of its Config, or what
// /pd_role_switch made of it since the last start.
func (e *Engine) Role() Role { return e.current().role() }

// BootstrapPort is the port of a prefill's bootstrap server, 0 in any other role.
func (e *Engine) BootstrapPort() int {
	l := e.current()
	if l.role() != Prefill {
		return 0
	}
	if f := l.front.Load(); f != nil {
		return portOf(f.addr)
	}
	return portOf(e.cfg.BootstrapAddr)
}

// Close ends the engine: it closes every listener and connection and waits for
// all its goroutines. Later calls do nothing.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	l := e.life
	e.mu.Unlock()
	l.end(false)
	l.wait()
	return nil
}

// Kill ends the engine as SIGKILL does: every connection is reset, and new ones
// are refused until Restart.
func (e *Engine) Kill() {
	l := e.current()
	l.end(true)
	l.wait()
}

// Restart starts a killed, crashed or running engine anew at the same address,
// with empty queues and caches, and returns once its listeners are open. Records
// and faults stay; Fatal is forgotten.
func (e *Engine) Restart() error {
	old := e.current()
	old.end(true)
	old.wait()
	l := newLife(e)
	if err := e.replace(old, l); err != nil {
		l.end(true)
		return err
	}
	if err := l.listen(); err != nil {
		l.end(true)
		l.wait()
		return fmt.Errorf("restart simulated %s: %w", e.cfg.Role, err)
	}
	l.serve()
	return nil
}

// replace makes l the engine's life after old.
func (e *Engine) replace(old, l *life) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return errors.New("simulated engine: closed")
	case e.life != old:
		return errors.New("simulated engine: restarted already")
	}
	e.life, e.fatal = l, nil
	return nil
}

// Pause stops the engine as SIGSTOP does: on all of its listeners connections
// are accepted and nothing is answered, and nothing that it has begun goes on.
// What is sent to it meanwhile is read when it goes on.
func (e *Engine) Pause() { e.current().gate.shut() }

// Resume ends Pause, as SIGCONT does; Restart does too.
func (e *Engine) Resume() { e.current().gate.open() }

// Fatal is the first reason why the engine crashed since its last start, nil if
// it did not: a live room was used again, a negative room, a token outside the
// vocabulary, and the like.
func (e *Engine) Fatal() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fatal
}

// SetFault installs the script of faults: choose is asked once for each
// generation request, before anything is done with it; nil is no fault. It must
// not end or restart the engine, which waits for it: Fault.Die does.
func (e *Engine) SetFault(choose func(Record) *Fault) {
	if choose == nil {
		e.fault.Store(nil)
		return
	}
	e.fault.Store(&choose)
}

// SetPathFault makes a path that does not generate, as /health, /server_info or
// /update_weights_from_disk, fail or lie: of the fault only Delay, Hang, Reset,
// Status, Header and Body count, and FailSwitch. Nil ends it.
func (e *Engine) SetPathFault(path string, f *Fault) {
	if f == nil {
		e.paths.Delete(path)
		return
	}
	e.paths.Store(path, f)
}

// SetBootstrap changes how the bootstrap server of a prefill behaves.
func (e *Engine) SetBootstrap(s BootstrapState) { e.boot.Store(int32(s)) }

// Records are the requests received, oldest first, as far as they are kept.
func (e *Engine) Records() []Record { return e.records.all() }

// Wait returns when n requests that use the model (generate, chat and the like)
// have arrived since the start, or with the context's error.
func (e *Engine) Wait(ctx context.Context, n int) error {
	return e.records.until(ctx, func(s *recordStore) bool { return s.arrived >= n })
}

// WaitIdle returns when no generation request is being served, even for a
// client that is gone, and decode holds no KV back for a prefill that does not
// answer, or with the context's error.
func (e *Engine) WaitIdle(ctx context.Context) error {
	return e.records.until(ctx, func(s *recordStore) bool { return s.active == 0 })
}

// WaitFor returns when ok holds for the records, or with the context's error.
func (e *Engine) WaitFor(ctx context.Context, ok func([]Record) bool) error {
	return e.records.until(ctx, func(s *recordStore) bool { return ok(s.copyLocked()) })
}

// Loads counts what the engine is doing now, as /v1/loads does.
func (e *Engine) Loads() Loads { return e.current().loads() }

// Prompts counts the tokens of the prompts that were computed since the start,
// and how many of them the prefix cache had.
func (e *Engine) Prompts() (tokens, cached int) {
	l := e.current()
	return int(l.prompts.Load()), int(l.hits.Load())
}

func (e *Engine) current() *life {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

// crashed notes the first reason of a crash.
func (e *Engine) crashed(err error) {
	e.mu.Lock()
	if e.fatal == nil {
		e.fatal = err
	}
	e.mu.Unlock()
	e.log.Printf("crash: %v", err)
	e.records.pulse()
}

func portOf(addr string) int {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return n
}
