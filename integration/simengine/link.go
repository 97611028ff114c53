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
// done and fail.
const (
	kindHello    = "hello"
	kindMetadata = "metadata"
	kindAbort    = "abort"
	kindDone     = "done"
	kindFail     = "fail"
)

// linkSendTimeout is SGLANG_DISAGGREGATION_ZMQ_SEND_TIMEOUT.
const linkSendTimeout = time.Second

// wire is one end of the channel.
type wire struct {
	conn net.Conn
	mu   sync.Mutex
}

// send writes one message. A loss is silent, as it is in ZMQ; all is lost on a
// nil wire.
func (w *wire) send(m message) {
	if w == nil {
		return
	}
	line := append(mustJSON(m), '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn.SetWriteDeadline(time.Now().Add(linkSendTimeout))
	if _, err := w.conn.Write(line); err != nil {
		w.conn.Close()
	}
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
	gone    chan struct{} // closed when the connection is
}

// serveRank accepts decodes on the rank address.
func (l *life) serveRank(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		l.spawn(func() { l.serveDecode(conn) })
	}
}

func (l *life) serveDecode(conn net.Conn) {
	link := &rankLink{wire: wire{conn: conn}, gone: make(chan struct{})}
	defer conn.Close()
	defer l.rooms.forget(link)
	defer close(link.gone)
	link.receive(func(m message) bool {
		l.e.gate.pass(l.ctx)
		switch m.Kind {
		case kindHello:
			link.session = m.Session
		case kindMetadata:
			if err := l.rooms.announce(m.Room, metadata{m.Rank, link}); err != nil {
				l.crash(err)
				return false
			}
		case kindAbort:
			l.rooms.abort(m.Room)
		}
		return true
	})
}
