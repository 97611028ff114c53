package simengine

import (
	"bufio"
	"encoding/json"
	"net"
	"sync"
	"time"
)

// message is one line of the private channel between a decode and the rank
// address of a prefill, which stands for the engines' ZMQ and KV transfer.
type message struct {
	Kind    string `json:"kind"`
	Session string `json:"session,omitempty"` // hello: the decode's incarnation
	Room    Room   `json:"room,omitempty"`
	Rank    int    `json:"rank,omitempty"`    // metadata: the prefill's DP rank
	Cached  int    `json:"cached,omitempty"`  // done: tokens of the prompt found in the prefix cache
	Hash    uint64 `json:"hash,omitempty"`    // done: of the prompt whose KV was moved
	Prefill string `json:"prefill,omitempty"` // done: the prefill's id
}

// The kinds of messages. Decode says hello, metadata and abort, prefill says
// done and fail, and answers an abort with drained.
const (
	kindHello    = "hello"
	kindMetadata = "metadata"
	kindAbort    = "abort"
	kindDone     = "done"
	kindFail     = "fail"
	kindDrained  = "drained"
)

// linkBacklog is how many messages a prefill reads ahead.
const linkBacklog = 1024

// linkSendTimeout is SGLANG_DISAGGREGATION_ZMQ_SEND_TIMEOUT.
const linkSendTimeout = time.Second

// wire is one end of the channel.
type wire struct {
	conn net.Conn
	mu   sync.Mutex
}

// send writes one message; false if it is lost, as all is on a nil wire.
func (w *wire) send(m message) bool {
	if w == nil {
		return false
	}
	line := append(mustJSON(m), '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn.SetWriteDeadline(time.Now().Add(linkSendTimeout))
	if _, err := w.conn.Write(line); err != nil {
		w.conn.Close()
		return false
	}
	return true
}

// receive calls got for every message until the connection or got ends it.
func (w *wire) receive(got func(message) bool) {
	lines := bufio.NewScanner(w.conn)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil || !got(m) {
			return
		}
	}
}

// rankLink is a prefill's end of the channel to one decode.
type rankLink struct {
	wire
	session string
	addr    string        // of the decode's end
	gone    chan struct{} // closed when the connection is
}

// serveRank accepts decodes on the rank address.
func (l *life) serveRank(f *front) {
	for {
		conn, err := f.rank.Accept()
		if err != nil {
			return
		}
		l.spawn(func() { l.serveDecode(f, conn) })
	}
}

// serveDecode takes what one decode says. What came while the engine was paused
// is taken in one step: an abort is known before the metadata ahead of it counts.
func (l *life) serveDecode(f *front, conn net.Conn) {
	link := &rankLink{wire: wire{conn: conn}, addr: conn.RemoteAddr().String(), gone: make(chan struct{})}
	defer conn.Close()
	if !f.link(conn) {
		return
	}
	defer f.unlink(conn)
	defer l.rooms.forget(link)
	defer close(link.gone)
	inbox := make(chan message, linkBacklog)
	reads := l.spawn(func() {
		defer close(inbox)
		link.receive(func(m message) bool {
			select {
			case inbox <- m:
				return true
			case <-l.ctx.Done():
				return false
			}
		})
	})
	if !reads {
		return
	}
	for m := range inbox {
		if !l.pass() {
			return
		}
		batch := []message{m}
		for len(inbox) > 0 {
			batch = append(batch, <-inbox)
		}
		if err := l.rooms.take(link, batch); err != nil {
			l.crash(err)
			return
		}
	}
}
