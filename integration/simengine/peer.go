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
	heartbeatTimeout = 3 * time.Second
	// A call is not to fail on a busy machine, whatever the scale. Heartbeats
	// may: it takes some in a row.
	leastTimeout   = time.Second
	leastHeartbeat = 500 * time.Millisecond
)

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
		if !l.pass() {
			break
		}
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
// is lost and what was known of it is dropped. The channels to its ranks stay
// for as long as the rooms' KV is held back, because a prefill that was only
// paused may still say that it lets go of it.
func (p *peer) watch() {
	l := p.p.l
	for failures := 0; failures < l.cfg.Timers.HeartbeatMaxFailure; {
		if !sleep(l.ctx, l.cfg.scaled(l.cfg.Timers.HeartbeatInterval)) || !l.pass() {
			return
		}
		if err := p.beat(); err != nil {
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
	p.p.lose(p)
	sleep(l.ctx, l.cfg.scaled(l.cfg.Timers.DeferredRelease))
	for _, w := range links {
		w.conn.Close()
	}
}

// beat asks the peer's bootstrap server how it is.
func (p *peer) beat() error {
	req, err := p.request("/health")
	if err != nil {
		return err
	}
	return p.do(req, nil, max(p.p.l.cfg.scaled(heartbeatTimeout), leastHeartbeat))
}

// link is the channel to one rank of the prefill, opened if need be, or if it is
// the one that was found broken.
func (p *peer) link(rank int, broken *wire) (*wire, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.links[rank]; w != nil && w != broken {
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
		if !p.p.l.pass() {
			return false
		}
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
	req, err := p.request(path)
	if err != nil {
		return err
	}
	return p.do(req, answer, p.timeout())
}

func (p *peer) request(path string) (*http.Request, error) {
	return http.NewRequestWithContext(p.p.l.ctx, http.MethodGet, "http://"+p.addr+path, nil)
}

// timeout is the time limit of all requests but heartbeats.
func (p *peer) timeout() time.Duration {
	return max(p.p.l.cfg.scaled(topologyTimeout), leastTimeout)
}

// do sends one request to the bootstrap server.
func (p *peer) do(req *http.Request, answer any, limit time.Duration) error {
	client := *p.p.http
	client.Timeout = limit
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
	if p.do(req, &ranks, p.timeout()) != nil {
		return 0, false
	}
	rank, ok := ranks[string(room)]
	return rank, ok
}

func routeQuery(dp, cp, tp, pp int) string {
	return fmt.Sprintf("/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d", dp, cp, tp, pp)
}
