package simengine

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
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
	started time.Time

	addr, bootstrapAddr, rankAddr string
	listeners                     []net.Listener
	servers                       []*http.Server

	mu    sync.Mutex
	over  bool
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup

	live      *registry
	states    [stateCount]atomic.Int64
	used      atomic.Int64 // KV tokens held
	generated atomic.Int64 // requests served since the start
	nextRank  atomic.Int64
	flushing  atomic.Bool
	rooms     *roomTable  // prefill
	cache     *prefix     // prefill
	dpRanks   *dpRegister // prefill
	budget    *budget     // decode
	peers     *peers      // decode
}

func newLife(e *Engine) (*life, error) {
	l := &life{e: e, cfg: &e.cfg, session: newID(), started: time.Now(), conns: map[net.Conn]struct{}{}}
	l.gate.began = l.started
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.live = newRegistry()
	if err := l.listen(); err != nil {
		l.cancel()
		for _, ln := range l.listeners {
			ln.Close()
		}
		return nil, err
	}
	if e.cfg.Role == Prefill {
		l.rooms = newRoomTable(e.cfg.CrossTalk)
		l.cache = newPrefix(e.cfg.MaxTotalTokens / cacheBlock)
		l.dpRanks = newDPRegister(e.cfg.scaled(e.cfg.Timers.EntryCleanup))
	} else {
		l.budget = newBudget(e.cfg.MaxTotalTokens)
		l.peers = newPeers(l)
	}
	return l, nil
}

// listen opens the API's listener and, on a prefill, the bootstrap server's and
// the rank address.
func (l *life) listen() error {
	open := func(addr string) (string, error) {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return "", err
		}
		l.listeners = append(l.listeners, &trackedListener{Listener: ln, l: l})
		return ln.Addr().String(), nil
	}
	var err error
	if l.addr, err = open(l.cfg.Addr); err != nil || l.cfg.Role != Prefill {
		return err
	}
	if l.bootstrapAddr, err = open(l.cfg.BootstrapAddr); err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(l.addr)
	l.rankAddr, err = open(net.JoinHostPort(host, "0"))
	return err
}

// serve starts answering. It is separate from newLife because handlers need the
// engine to be complete.
func (l *life) serve() {
	handlers := []http.Handler{http.HandlerFunc(l.serveAPI)}
	if l.cfg.Role == Prefill {
		handlers = append(handlers, http.HandlerFunc(l.serveBootstrap))
	}
	for i, h := range handlers {
		srv := &http.Server{
			Handler:     h,
			IdleTimeout: l.cfg.Timers.KeepAlive,
			ErrorLog:    log.New(io.Discard, "", 0),
			BaseContext: func(net.Listener) context.Context { return l.ctx },
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				return context.WithValue(ctx, connKey{}, c)
			},
		}
		l.servers = append(l.servers, srv)
		l.spawn(func() { srv.Serve(l.listeners[i]) })
	}
	if l.cfg.Role == Prefill {
		l.spawn(func() { l.serveRank(l.listeners[2]) })
	}
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
	l.mu.Unlock()
	for _, ln := range l.listeners {
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
	for _, srv := range l.servers {
		srv.Close()
	}
	if l.peers != nil {
		l.peers.http.CloseIdleConnections()
	}
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
