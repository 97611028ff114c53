package router

import (
	"crypto/tls"
	"net"
	"time"
)

// handshakeTime bounds a TLS handshake, the wait for its first byte included.
const handshakeTime = 10 * time.Second

// WatchTLS is [Watch] with TLS around its connections, as the server's side of
// config. The protocol that is negotiated is HTTP/1.1, the only one there is.
func WatchTLS(ln net.Listener, config *tls.Config) net.Listener {
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	return &tlsListener{Listener: Watch(ln), config: config}
}

// tlsListener accepts sessions. The handshake is made by who reads first.
type tlsListener struct {
	net.Listener // of watched connections
	config       *tls.Config
}

func (l *tlsListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := nc.(*conn)
	c.sealed = true
	return &session{Conn: tls.Server(c, l.config), conn: c}, nil
}

// session is TLS over a watched connection. What the connection is told of the
// client's reads is told here, since what it sees itself are records.
type session struct {
	*tls.Conn
	conn *conn
}

// Handshake is the server's first call. A client that takes too long for it is
// dropped.
func (s *session) Handshake() error {
	timer := time.AfterFunc(handshakeTime, s.conn.drop)
	defer timer.Stop()
	return s.Conn.Handshake()
}

func (s *session) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return s.conn.noted(n, err)
}
