package simengine

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// life is one incarnation of an engine, from a start to a crash, kill or close.
// Everything an engine forgets when it restarts belongs to it.
type life struct {
	e       *Engine
	cfg     *Config
	ctx     context.Context
	cancel  context.CancelFunc
	session string // names this incarnation to the other side
	gate    gate
	started time.Time // when the API opened

	addr          string
	bootstrapAddr string // where a bootstrap server is to be: of start and role switch only
	api           net.Listener
	front         atomic.Pointer[front] // prefill

	mu        sync.Mutex
	over      bool
	listeners []net.Listener
	servers   []*http.Server
	conns     map[net.Conn]struct{}
	wg        sync.WaitGroup

	roles     scheduler
	live      *registry
	states    [stateCount]atomic.Int64
	used      atomic.Int64 // KV tokens held
	generated atomic.Int64 // requests served since the start
	nextRank  atomic.Int64
	flushing  atomic.Bool
	prompts   atomic.Int64 // tokens of prompts computed since the start
	hits      atomic.Int64 // of these, found in the prefix cache

	switching atomic.Bool
	stored    storedResponses // regular

	// What only some roles use is there in all: a switch finds it empty.
	gpu     *budget     // prefill, regular: one prompt at a time
	cache   *prefix     // prefill, regular
	rooms   *roomTable  // prefill
	dpRanks *dpRegister // prefill
	budget  *budget     // decode, regular
	peers   *peers      // decode
}

func newLife(e *Engine) *life {
	cfg := &e.cfg
	l := &life{
		e: e, cfg: cfg, session: newID(), bootstrapAddr: cfg.BootstrapAddr,
		conns: map[net.Conn]struct{}{}, live: newRegistry(),
		gpu: newBudget(1), budget: newBudget(cfg.MaxTotalTokens), cache: newPrefix(cfg.MaxTotalTokens),
		rooms: newRoomTable(cfg.CrossTalk), dpRanks: newDPRegister(cfg.scaled(cfg.Timers.EntryCleanup)),
	}
	l.roles.role = cfg.Role
	l.gate.began = time.Now()
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.peers = newPeers(l)
	return l
}

// listen opens the listeners in the order of a start: long before the others a
// prefill's bootstrap server, which answers from then on.
func (l *life) listen() error {
	if !l.enter() {
		return errEnded
	}
	defer l.wg.Done()
	delay := l.cfg.scaled(l.cfg.StartDelay)
	early := delay / 4
	if l.cfg.Role == Prefill {
		if !sleep(l.ctx, early) {
			return errEnded
		}
		if err := l.openFront(); err != nil {
			return err
		}
		delay -= early
	}
	if !sleep(l.ctx, delay) {
		return errEnded
	}
	var err error
	if l.api, err = l.open(l.cfg.Addr); err != nil {
		return err
	}
	l.addr = l.api.Addr().String()
	if f := l.front.Load(); f != nil {
		return f.listen()
	}
	return nil
}

// open opens one listener.
func (l *life) open(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		ln.Close()
		return nil, errEnded
	}
	tracked := &trackedListener{Listener: ln, l: l}
	l.listeners = append(l.listeners, tracked)
	return tracked, nil
}

// closeListener closes one listener ahead of the others.
func (l *life) closeListener(ln net.Listener) {
	ln.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners = slices.DeleteFunc(l.listeners, func(one net.Listener) bool { return one == ln })
}

// serve starts answering. It is separate from listen because handlers need the
// engine to be complete.
func (l *life) serve() {
	l.started = time.Now()
	if f := l.front.Load(); f != nil {
		f.register()
	}
	l.serveHTTP(l.api, l.serveAPI)
}

func (l *life) serveHTTP(ln net.Listener, h http.HandlerFunc) *http.Server {
	srv := &http.Server{
		Handler:     h,
		IdleTimeout: l.cfg.Timers.KeepAlive,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return l.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	l.mu.Lock()
	l.servers = append(l.servers, srv)
	l.mu.Unlock()
	l.spawn(func() { srv.Serve(ln) })
	return srv
}

// spawn runs f in a goroutine that the life waits for; false if it is over.
func (l *life) spawn(f func()) bool {
	if !l.enter() {
		return false
	}
	go func() {
		defer l.wg.Done()
		l.guard(f)
	}()
	return true
}

// guard runs f and makes a panic in it the end of the engine.
func (l *life) guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			l.crash(fmt.Errorf("panic: %v", v))
		}
	}()
	f()
}

// pass waits while the engine is paused; false if it is over.
func (l *life) pass() bool { return l.gate.pass(l.ctx) }

// enter adds one to what the life waits for; false if it is over. The caller
// calls wg.Done.
func (l *life) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.wg.Add(1)
	return true
}

// crash ends the life as an exception in a scheduler ends an engine.
func (l *life) crash(err error) {
	l.mu.Lock()
	over := l.over
	l.mu.Unlock()
	if over {
		return
	}
	l.e.crashed(err)
	l.end(true)
}

// end closes or resets everything, and waits for nothing: it may be called from
// a goroutine of the life.
func (l *life) end(reset bool) {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return
	}
	l.over = true
	conns := make([]net.Conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
	listeners := slices.Clone(l.listeners)
	l.mu.Unlock()
	for _, ln := range listeners {
		ln.Close()
	}
	for _, c := range conns {
		if reset {
			resetConn(c)
		} else {
			c.Close()
		}
	}
	l.cancel()
}

// wait returns when every goroutine of an ended life is gone.
func (l *life) wait() {
	l.wg.Wait()
	l.mu.Lock()
	servers := l.servers
	l.mu.Unlock()
	for _, srv := range servers {
		srv.Close()
	}
	l.peers.http.CloseIdleConnections()
	l.e.records.pulse()
}

// track notes an open connection; false (and closed) if the life is over.
func (l *life) track(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		resetConn(c)
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *life) untrack(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// logf writes one line to the engine's log.
func (l *life) logf(format string, args ...any) { l.e.log.Printf(format, args...) }

type connKey struct{}

// trackedListener hands out connections that the life can reset.
type trackedListener struct {
	net.Listener
	l *life
}

func (t *trackedListener) Accept() (net.Conn, error) {
	for {
		c, err := t.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if t.l.track(c) {
			return &trackedConn{Conn: c, l: t.l}, nil
		}
	}
}

type trackedConn struct {
	net.Conn
	l *life
}

func (t *trackedConn) Close() error {
	t.l.untrack(t.Conn)
	return t.Conn.Close()
}

// resetConn closes c so that the peer sees a reset, not an end.
func resetConn(c net.Conn) {
	if t, ok := c.(*trackedConn); ok {
		t.l.untrack(t.Conn)
		c = t.Conn
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}
