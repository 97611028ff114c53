package router

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// tlsRig is an App behind TLS.
type tlsRig struct {
	*rig
	client *tls.Config // that trusts it
}

func startTLS(t *testing.T, cfg Config) *tlsRig {
	t.Helper()
	certs := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(certs.Close)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(certs.Certificate())
	return &tlsRig{
		rig:    startOn(t, WatchTLS(ln, certs.TLS), cfg),
		client: &tls.Config{RootCAs: roots, ServerName: "example.com"},
	}
}

// dialTLS opens a connection, makes the handshake and sends text.
func (r *tlsRig) dialTLS(text string) *tls.Conn {
	r.t.Helper()
	c := tls.Client(r.dial(""), r.client)
	require.NoError(r.t, c.Handshake())
	_, err := io.WriteString(c, text)
	require.NoError(r.t, err)
	return c
}

func TestClientThatLeavesUnderTLSEndsItsRequest(t *testing.T) {
	for how, leave := range map[string]func(*tls.Conn){
		"with a goodbye": func(c *tls.Conn) { _ = c.Close() },
		"without one":    func(c *tls.Conn) { _ = c.NetConn().Close() },
		"by a reset": func(c *tls.Conn) {
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
			_ = c.NetConn().Close()
		},
	} {
		t.Run("before the answer, "+how, func(t *testing.T) {
			entered, cancelled := make(chan struct{}), make(chan error, 1)
			r := startTLS(t, Config{Server: serving(func(ctx context.Context, _ *pd.Request) (*pd.Response, error) {
				close(entered)
				<-ctx.Done()
				cancelled <- ctx.Err()
				return nil, pd.ErrCancelled(pd.StagePlan)
			})})
			c := r.dialTLS(post("/generate", text(20_000)))
			within(t, entered, "the dispatch")
			leave(c)
			assert.ErrorIs(t, within(t, cancelled, "the cancellation"), context.Canceled)
		})
		t.Run("in a stalled stream, "+how, func(t *testing.T) {
			bodies := make(chan *fakeBody, 1)
			r := startTLS(t, Config{Server: opened(bodies)})
			c := r.dialTLS(post("/generate", `{"stream":true}`))
			body := within(t, bodies, "the stream")
			_, err := c.Read(make([]byte, 1))
			require.NoError(t, err)
			leave(c)
			within(t, body.gone, "the body's close")
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
}

func TestConnectionsAreKeptUnderTLS(t *testing.T) {
	r := startTLS(t, Config{Server: serving(sizes)})
	c := r.dialTLS("")
	in := bufio.NewReader(c)
	for _, size := range []int{20, 1 << 20, 11} {
		_, err := io.WriteString(c, post("/generate", text(size)))
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(size), string(body))
		assert.False(t, resp.Close)
	}
}

func TestTheProtocolUnderTLSIsHTTP11(t *testing.T) {
	r := startTLS(t, Config{Server: serving(nil)})
	f := func(want string, offered ...string) {
		t.Helper()
		config := r.client.Clone()
		config.NextProtos = offered
		c := tls.Client(r.dial(""), config)
		err := c.Handshake()
		if want == "none" {
			assert.ErrorContains(t, err, "no application protocol")
			return
		}
		require.NoError(t, err)
		assert.Equal(t, want, c.ConnectionState().NegotiatedProtocol)
	}
	f("http/1.1", "h2", "http/1.1")
	f("", []string{}...)
	f("none", "h2")
}

func TestPlainHTTPWhereTLSIsSpoken(t *testing.T) {
	server := serving(sizes)
	r := startTLS(t, Config{Server: server})
	rest, _ := io.ReadAll(r.dial(post("/generate", text(20))))
	assert.NotContains(t, string(rest), "200 OK")
	assert.Zero(t, server.served.Load())
	_, body := answered(t, r.dialTLS(post("/generate", text(20))))
	assert.Equal(t, "20", body, "others are served")
}

// A body that ends with the session and not with its last chunk is a cut one,
// though TLS ended in order.
func TestBodyCutByAGoodbyeIsNotServed(t *testing.T) {
	server := serving(sizes)
	r := startTLS(t, Config{Server: server})
	c := r.dialTLS("POST /generate HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
	require.NoError(t, c.CloseWrite())
	_, _ = io.ReadAll(c)
	assert.Zero(t, server.served.Load())
}

func TestSilentSessionsDoNotHoldTheShutdown(t *testing.T) {
	r := startTLS(t, Config{Grace: time.Minute, Server: serving(sizes)})
	silent := r.dial("")
	halfway := r.dial("\x16\x03\x01\x02\x00\x01") // a handshake's first bytes
	shaken := r.dialTLS("")
	idle := r.dialTLS(post("/generate", text(11)))
	_, _ = answered(t, idle)
	require.Eventually(t, func() bool { return r.connections() == 4 }, patience, time.Millisecond)
	report := within(t, r.shutdown(true), "the shutdown")
	assert.Less(t, report.Elapsed, 3*time.Second, "the server alone would wait 5 s for the one that has shaken hands")
	for _, c := range []net.Conn{silent, halfway, shaken, idle} {
		_, err := c.Read(make([]byte, 1))
		assert.Error(t, err)
	}
}

func TestGraceEndsStreamsUnderTLSWithAnEvent(t *testing.T) {
	bodies := make(chan *fakeBody, 1)
	r := startTLS(t, Config{Grace: 50 * time.Millisecond, Server: opened(bodies)})
	c := r.dialTLS(post("/generate", `{"stream":true}`))
	within(t, bodies, "the stream")
	report := r.shutdown(true)
	rest, _ := io.ReadAll(c)
	assert.True(t, strings.Contains(string(rest), "the router is shutting down"), string(rest))
	assert.Equal(t, 1, within(t, report, "the shutdown").Requests)
}

func TestHandshakeThatTakesTooLongIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := &conn{Conn: near, sealed: true}
		s := &session{Conn: tls.Server(c, &tls.Config{}), conn: c}
		began := time.Now()
		var client sync.WaitGroup
		client.Go(func() { // a byte now and then is not enough
			for _, b := range "\x16\x03\x01\x02\x00" + strings.Repeat("\x01", 100) {
				if _, err := far.Write([]byte{byte(b)}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		assert.Error(t, s.Handshake())
		assert.Equal(t, handshakeTime, time.Since(began))
		require.NoError(t, far.Close())
		client.Wait()
	})
}
