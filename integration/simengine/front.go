package simengine

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// front is what a prefill shows to decodes: its bootstrap server and its rank
// address.
type front struct {
	l          *life
	addr       string // of the bootstrap server
	bootstrap  net.Listener
	server     *http.Server
	rank       net.Listener
	rankPort   int
	registered atomic.Bool // the bootstrap server knows its rank

	mu     sync.Mutex
	closed bool
	links  map[net.Conn]struct{} // of decodes
}

// openFront opens the bootstrap server, which answers from then on.
func (l *life) openFront() error {
	ln, err := l.open(l.bootstrapAddr)
	if err != nil {
		return err
	}
	f := &front{l: l, addr: ln.Addr().String(), bootstrap: ln, links: map[net.Conn]struct{}{}}
	l.bootstrapAddr = f.addr // the next one is at the same place
	f.server = l.serveHTTP(ln, func(w http.ResponseWriter, r *http.Request) { l.serveBootstrap(f, w, r) })
	l.front.Store(f)
	return nil
}

// listen opens the rank address.
func (f *front) listen() error {
	host, _, _ := net.SplitHostPort(f.l.addr)
	var err error
	if f.rank, err = f.l.open(net.JoinHostPort(host, "0")); err != nil {
		return err
	}
	f.rankPort = portOf(f.rank.Addr().String())
	return nil
}

// register makes the bootstrap server name the rank, which serves from then on.
func (f *front) register() {
	f.registered.Store(true)
	f.l.spawn(func() { f.l.serveRank(f) })
}

// close ends both listeners and every connection to them.
func (f *front) close() {
	l := f.l
	l.front.Store(nil)
	f.registered.Store(false)
	f.mu.Lock()
	f.closed = true
	for conn := range f.links {
		conn.Close()
	}
	f.mu.Unlock()
	f.server.Close()
	l.mu.Lock()
	l.servers = slices.DeleteFunc(l.servers, func(s *http.Server) bool { return s == f.server })
	l.mu.Unlock()
	for _, ln := range []net.Listener{f.bootstrap, f.rank} {
		if ln != nil {
			l.closeListener(ln)
		}
	}
}

// link notes a decode's connection; false if the front is closed.
func (f *front) link(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.links[conn] = struct{}{}
	}
	return !f.closed
}

func (f *front) unlink(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.links, conn)
}
