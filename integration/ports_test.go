package integration

import (
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// kill ends an engine and keeps its port to the test's end: another test's
// server would take it and answer in the engine's place.
func (s *stack) kill(e *simengine.Engine) {
	s.t.Helper()
	e.Kill()
	holdPort(s.t, strings.TrimPrefix(e.URL(), "http://"))
}

// holdPort takes a port without listening on it: as the near end of a connection.
func holdPort(t *testing.T, address string) {
	t.Helper()
	far, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if far.Addr().String() == address { // it was free
		other, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, far.Close())
		far = other
	}
	t.Cleanup(func() { _ = far.Close() })
	near, err := net.ResolveTCPAddr("tcp", address)
	require.NoError(t, err)
	dialer := net.Dialer{LocalAddr: near, Control: func(_, _ string, socket syscall.RawConn) error {
		// Connections that the engine has closed may linger on the port.
		return socket.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
		})
	}}
	conn, dialErr := dialer.DialContext(t.Context(), "tcp", far.Addr().String())
	require.NoError(t, err)
	require.NoError(t, dialErr)
	t.Cleanup(func() { _ = conn.Close() })
}

func TestAHeldPortRefusesConnections(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	holdPort(t, ln.Addr().String())
	_, err = net.Dial("tcp", ln.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}
