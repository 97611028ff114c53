package simengine

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// maxPeers bounds the bootstrap addresses that a decode knows.
const maxPeers = 1024

// peers are the prefills that a decode knows, by bootstrap address.
type peers struct {
	l    *life
	http *http.Client

	mu    sync.Mutex
	known map[string]*peer
	live  map[Room]*decodeRoom // of all peers: the key is the room alone
	// rooms that decode left while a prefill could still write into their KV,
	// until that prefill lets go of it
	draining map[Room]chan struct{}
}

// decodeRoom is a live request's view of its room.
type decodeRoom struct {
	peer  *peer
	users int           // requests in the room: one, but for CrossTalk
	kv    chan message  // done or fail
	lost  chan struct{} // closed when the prefill is given up
	once  sync.Once
}

func newPeers(l *life) *peers {
	return &peers{
		l: l, known: map[string]*peer{}, live: map[Room]*decodeRoom{}, draining: map[Room]chan struct{}{},
		http: &http.Client{Transport: &http.Transport{IdleConnTimeout: 3 * time.Second, MaxIdleConnsPerHost: 4}},
	}
}

// at is the peer at an address.
func (p *peers) at(addr string) (*peer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[addr]; known != nil {
		return known, nil
	}
	if len(p.known) >= maxPeers {
		return nil, fmt.Errorf("more than %d bootstrap addresses", maxPeers)
	}
	known := &peer{p: p, addr: addr, links: map[int]*wire{}}
	p.known[addr] = known
	return known, nil
}

// open registers a live room. One that is live already is the end of the engine.
func (p *peers) open(room Room, at *peer) (*decodeRoom, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	size := 1
	if p.l.cfg.CrossTalk {
		size = maxSharedRoom
	}
	if r := p.live[room]; r != nil {
		if r.users == size {
			return nil, errRoomReused(room)
		}
		r.users++
		return r, nil
	}
	r := &decodeRoom{peer: at, users: 1, kv: make(chan message, size), lost: make(chan struct{})}
	p.live[room] = r
	return r, nil
}

func (p *peers) close(room Room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.live[room]; r.users > 1 {
		r.users--
		return
	}
	delete(p.live, room)
}

// deliver hands what a prefill says of a room to its request.
func (p *peers) deliver(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Kind == kindDrained {
		p.drainedLocked(m.Room)
		return
	}
	room := p.live[m.Room]
	if room == nil {
		return
	}
	select {
	case room.kv <- m:
	default:
	}
}

// drain says when the prefill has let go of a room's KV.
func (p *peers) drain(room Room) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.draining[room]
	if c == nil {
		c = make(chan struct{})
		p.draining[room] = c
	}
	return c
}

// undrain ends the wait for a room's prefill.
func (p *peers) undrain(room Room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drainedLocked(room)
}

func (p *peers) drainedLocked(room Room) {
	if c := p.draining[room]; c != nil {
		delete(p.draining, room)
		close(c)
	}
}

// lose gives up every room of a peer.
func (p *peers) lose(at *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, room := range p.live {
		if room.peer == at {
			room.once.Do(func() { close(room.lost) })
		}
	}
}
