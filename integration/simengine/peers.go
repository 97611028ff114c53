package simengine

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What a decode does to reach a prefill, before TimeScale.
const (
	topologyTries    = 15
	topologyInterval = time.Second
	topologyTimeout  = 5 * time.Second
	leastTimeout     = time.Second // of a call that is not to fail on a busy machine
	maxPeers         = 1024
)

// peers are the prefills that a decode knows, by bootstrap address.
type peers struct {
	l    *life
	http *http.Client

	mu    sync.Mutex
	known map[string]*peer
	live  map[Room]*decodeRoom // of all peers: the key is the room alone
}

// peer is one bootstrap address: its topology, once known, and the channels to
// its ranks.
type peer struct {
	p    *peers
	addr string

	mu       sync.Mutex
	ready    chan struct{} // closed when the look-up that is under way ends; nil before
	topology *topology     // nil until a look-up succeeds
	links    map[int]*wire
}

// topology is what /route says of a prefill.
type topology struct {
	DPSize int  `json:"dp_size"`
	Follow bool `json:"follow_bootstrap_room"`
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
		l: l, known: map[string]*peer{}, live: map[Room]*decodeRoom{},
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
	room := p.live[m.Room]
	p.mu.Unlock()
	if room == nil {
		return
	}
	select {
	case room.kv <- m:
	default:
	}
}

// look waits for the peer's topology, nil if it cannot be had. The first
// request that needs it starts the look-up; all share its outcome.
func (p *peer) look(it *item) (*topology, bool) {
	p.mu.Lock()
	if p.topology != nil {
		defer p.mu.Unlock()
		return p.topology, true
	}
	ready := p.ready
	if ready == nil {
		ready = make(chan struct{})
		p.ready = ready
		if !p.p.l.spawn(func() { p.lookUp(ready) }) {
			close(ready)
		}
	}
	p.mu.Unlock()
	select {
	case <-ready:
	case <-it.ctx.Done():
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.topology, true
}

// lookUp asks for the topology until it has it or has asked 15 times, and then
// watches the prefill.
func (p *peer) lookUp(ready chan struct{}) {
	l := p.p.l
	var found *topology
	for try := range topologyTries {
		if try > 0 && !sleep(l.ctx, l.cfg.scaled(topologyInterval)) {
			break
		}
		l.e.gate.pass(l.ctx)
		var t topology
		if err := p.get(routeQuery(-1, -1, -1, -1), &t); err == nil && t.DPSize > 0 {
			found = &t
			break
		}
	}
	p.mu.Lock()
	p.topology, p.ready = found, nil
	p.mu.Unlock()
	close(ready)
	if found != nil {
		p.watch()
	}
}

// watch is the heartbeat: after some failures in a row every room of the peer
// is lost and what was known of it is dropped.
func (p *peer) watch() {
	l := p.p.l
	for failures := 0; failures < l.cfg.Timers.HeartbeatMaxFailure; {
		if !sleep(l.ctx, l.cfg.scaled(l.cfg.Timers.HeartbeatInterval)) {
			return
		}
		if err := p.get("/health", nil); err != nil {
			failures++
		} else {
			failures = 0
		}
	}
	p.mu.Lock()
	p.topology = nil
	links := p.links
	p.links = map[int]*wire{}
	p.mu.Unlock()
	for _, w := range links {
		w.conn.Close()
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	for _, room := range p.p.live {
		if room.peer == p {
			room.once.Do(func() { close(room.lost) })
		}
	}
}

// link is the channel to one rank of the prefill, opened if need be.
func (p *peer) link(rank int) (*wire, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.links[rank]; w != nil {
		return w, nil
	}
	var at struct {
		IP   string `json:"rank_ip"`
		Port int    `json:"rank_port"`
	}
	if err := p.get(routeQuery(rank, 0, 0, 0), &at); err != nil {
		return nil, err
	}
	l := p.p.l
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(at.IP, strconv.Itoa(at.Port)), linkSendTimeout)
	if err != nil {
		return nil, err
	}
	if !l.track(conn) {
		return nil, net.ErrClosed
	}
	w := &wire{conn: &trackedConn{Conn: conn, l: l}}
	w.send(message{Kind: kindHello, Session: l.session})
	p.links[rank] = w
	if !l.spawn(func() { p.receive(rank, w) }) {
		w.conn.Close()
		return nil, net.ErrClosed
	}
	return w, nil
}

func (p *peer) receive(rank int, w *wire) {
	w.receive(func(m message) bool {
		p.p.l.e.gate.pass(p.p.l.ctx)
		p.p.deliver(m)
		return true
	})
	w.conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.links[rank] == w {
		delete(p.links, rank)
	}
}

// get asks the peer's bootstrap server.
func (p *peer) get(path string, answer any) error {
	l := p.p.l
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		return err
	}
	return p.do(req, answer)
}

// do sends one request to the bootstrap server, with the engine's time limit.
func (p *peer) do(req *http.Request, answer any) error {
	client := *p.p.http
	client.Timeout = max(p.p.l.cfg.scaled(topologyTimeout), leastTimeout)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", req.URL.Path, resp.StatusCode)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(body, answer)
}

// queryRank asks which rank a room is on, where the prefill does not follow it.
func (p *peer) queryRank(room Room) (int, bool) {
	body := strings.NewReader(`{"bootstrap_rooms":[` + string(room) + `]}`)
	req, err := http.NewRequestWithContext(p.p.l.ctx, http.MethodPost, "http://"+p.addr+"/query_dp_ranks", body)
	if err != nil {
		return 0, false
	}
	ranks := map[string]int{}
	if p.do(req, &ranks) != nil {
		return 0, false
	}
	rank, ok := ranks[string(room)]
	return rank, ok
}

func routeQuery(dp, cp, tp, pp int) string {
	return fmt.Sprintf("/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d", dp, cp, tp, pp)
}
