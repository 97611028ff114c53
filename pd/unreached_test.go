package pd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dialFails makes one call whose connection cannot be made.
func dialFails(t *testing.T, err error) (*Call, *Error) {
	u := upstream(t)
	rt := NewTransport(time.Second, true)
	rt.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, err }
	u.Transport = rt
	c := newCall(t, workerB, `{}`)
	e := do(t.Context(), u, c)
	require.NotNil(t, e)
	return c, e
}

func TestNobodyIsThereOrNobodyAnswersOrNothingIsLeftHere(t *testing.T) {
	dial := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	type want struct {
		kind   Kind
		status int
		code   string
	}
	gone := want{Unavailable, 503, "decode_unavailable"}
	silent := want{Unavailable, 504, "decode_connect_timeout"}
	spent := want{Internal, 503, "router_exhausted"}
	for name, tt := range map[string]struct {
		err  error
		want want
	}{
		"refused":                       {dial(syscall.ECONNREFUSED), gone},
		"no way there":                  {dial(syscall.EHOSTUNREACH), gone},
		"reset at once":                 {dial(syscall.ECONNRESET), gone},
		"no such name":                  {&net.DNSError{Err: "no such host", IsNotFound: true}, gone},
		"an error of another kind":      {errors.New("proxy says no"), gone},
		"our timeout":                   {&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, silent},
		"the system's timeout":          {dial(syscall.ETIMEDOUT), silent},
		"a name that is not answered":   {&net.DNSError{Err: "i/o timeout", IsTimeout: true}, silent},
		"no descriptors of the process": {dial(syscall.EMFILE), spent},
		"no descriptors of the machine": {dial(syscall.ENFILE), spent},
		"no ports":                      {dial(syscall.EADDRNOTAVAIL), spent},
		"no buffers":                    {dial(syscall.ENOBUFS), spent},
	} {
		t.Run(name, func(t *testing.T) {
			c, e := dialFails(t, tt.err)
			assert.Equal(t, tt.want, want{e.Kind, e.Status, e.Code})
			assert.Equal(t, "1", e.RetryAfter)
			assert.Equal(t, workerB.ID, e.Worker)
			assert.ErrorIs(t, e, tt.err)
			assert.False(t, c.Reached())
		})
	}
}

func TestAWorkerThatAcceptsAndSaysNothingIsNotReached(t *testing.T) {
	s := newRawServer(t, func(_ *rawServer, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	u := upstream(t)
	u.Transport = NewTransport(100*time.Millisecond, true)
	c := newCall(t, &Worker{ID: "b", Role: Decode, URL: "https://" + s.Addr().String()}, `{}`)
	e := do(t.Context(), u, c)
	assert.Equal(t, Unavailable, e.Kind)
	assert.Equal(t, "decode_connect_timeout", e.Code)
	assert.False(t, c.Reached())
}

// One client must not be able to have every worker taken for gone.
func TestARequestThatCannotBeSentIsNoWorkersFault(t *testing.T) {
	s := newRawServer(t, func(*rawServer, net.Conn) { t.Error("the worker was called") })
	for name, header := range map[string]http.Header{
		"a name": {"X A": {"b"}}, "a value": {"X": {"a\x01b"}}, "a second line": {"X": {"a\r\nY: b"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCall(t, s.worker(), `{}`)
			c.Header = header
			e := do(t.Context(), upstream(t), c)
			require.NotNil(t, e)
			assert.Equal(t, Invalid, e.Kind)
			assert.Equal(t, 400, e.Status)
			assert.NotContains(t, e.Message, "a\x01b")
		})
	}
}
