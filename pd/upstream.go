package pd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/pd/patch"
)

// staleWindow is how soon after the body's last byte a reused connection must
// break, without a byte of answer, for the engine to have closed it unseen.
const staleWindow = 50 * time.Millisecond

// inOnePiece is the size up to which a body is copied to be written together
// with its headers, in bytes.
const inOnePiece = 32 << 10

// Deadlines are the waits of an exchange. A stream that makes progress is
// never cut; zero means the default.
type Deadlines struct {
	// Request is for prefill's answer, for the first event of a whole engine's stream,
	// and for the whole of a call that is not streamed; 1800 s.
	Request    time.Duration
	FirstEvent time.Duration // decode's first event of a stream, after prefill's success; 60 s
	Idle       time.Duration // between two reads of a stream; 300 s
}

// WithDefaults fills in what is zero.
func (d Deadlines) WithDefaults() Deadlines {
	d.Request = cmp.Or(d.Request, 1800*time.Second)
	d.FirstEvent = cmp.Or(d.FirstEvent, 60*time.Second)
	d.Idle = cmp.Or(d.Idle, 300*time.Second)
	return d
}

// Upstream makes the calls to workers.
type Upstream struct {
	Transport http.RoundTripper // keeps connections; must never replay a body
	Fresh     http.RoundTripper // opens a connection for each call
	Deadlines Deadlines

	fresh bool // this attempt repeats one that met a stale connection
}

// NewTransport is a transport for engines: connections are kept for less than
// the 5 s after which an engine closes them, nothing is compressed, no body is
// replayed. keep false opens a connection for each call. Before its first use the
// caller may set TLSClientConfig: whom to trust, and what to show.
func NewTransport(connect time.Duration, keep bool) *http.Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connect,
		DisableCompression:     true,
		DisableKeepAlives:      !keep,
		MaxIdleConns:           0, // bounded per host and by the time below
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        3 * time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		ReadBufferSize:         8 << 10,
	}
}

// Call is one request to one worker. It must not be used twice.
type Call struct {
	Worker *Worker
	Method string
	Path   string
	Header http.Header // shared between legs: never changed
	Body   *patch.Payload

	asked    atomic.Bool
	reused   atomic.Bool
	reached  atomic.Bool
	answered atomic.Bool
	wrote    atomic.Pointer[time.Time] // when the body's last byte was written, nil before
}

// Reached reports whether a connection to the worker existed.
func (c *Call) Reached() bool { return c.reached.Load() }

// WroteAt is when the body's last byte was written, zero before.
func (c *Call) WroteAt() time.Time {
	if at := c.wrote.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Do sends the call and returns the answer's head. Its errors are *Error; a
// context cancelled with an *Error as its cause returns that.
func (u *Upstream) Do(ctx context.Context, c *Call) (*http.Response, error) {
	body := c.body()
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, c.clientTrace()), c.Method, c.Worker.URL+c.Path, body)
	if err != nil {
		return nil, c.fail(Internal, http.StatusInternalServerError, "internal_error", "the worker's address cannot be used", err)
	}
	req.ContentLength = c.Body.Len()
	if req.Header = c.Header; req.Header == nil {
		req.Header = make(http.Header)
	}
	if c.Worker.APIKey != "" {
		req.Header = req.Header.Clone()
		c.Worker.Authorize(req.Header)
	}
	rt := u.Transport
	if u.fresh {
		rt = u.Fresh
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, c.classify(ctx, err)
	}
	return resp, nil
}

// body is the payload as a reader. An empty one is net/http's own, since any other
// would go out in chunks, which some engines do not take for no body. A small one
// is put into one piece: net/http writes the headers by themselves, with a system
// call of their own, unless it knows that the body is in memory.
func (c *Call) body() io.ReadCloser {
	switch size := c.Body.Len(); {
	case size == 0:
		return http.NoBody
	case size <= inOnePiece:
		return io.NopCloser(bytes.NewReader(c.Body.Bytes()))
	}
	return c.Body.NewReader()
}

func (c *Call) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { c.asked.Store(true) },
		GotConn: func(info httptrace.GotConnInfo) {
			c.reused.Store(info.Reused)
			c.reached.Store(true)
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				now := time.Now()
				c.wrote.Store(&now)
			}
		},
		GotFirstResponseByte: func() { c.answered.Store(true) },
	}
}

// classify says what a failed round trip means for retry and blame.
func (c *Call) classify(ctx context.Context, err error) *Error {
	if cause := cancelCause(ctx); cause != nil {
		return cause
	}
	role := c.Worker.Role.String()
	if !c.asked.Load() { // the worker had no part in it
		return c.fail(Invalid, http.StatusBadRequest, "invalid_request", "a header of the request cannot be sent on", err)
	}
	if !c.reached.Load() {
		return c.unreached(role, err)
	}
	wrote := c.WroteAt()
	if c.reused.Load() && !c.answered.Load() && (wrote.IsZero() || time.Since(wrote) <= staleWindow) {
		e := c.fail(Stale, http.StatusBadGateway, role+"_connection_lost",
			fmt.Sprintf("%s worker %s closed the connection", role, c.Worker.ID), err)
		e.Ran = !wrote.IsZero()
		return e
	}
	if c.answered.Load() {
		return c.fail(Broken, http.StatusBadGateway, role+"_bad_response",
			fmt.Sprintf("%s worker %s sent an answer that is not HTTP", role, c.Worker.ID), unquoted(err))
	}
	return c.Lost(err)
}

// unreached is the error of a worker that no connection was made to.
func (c *Call) unreached(role string, err error) *Error {
	var e *Error
	switch timeout, ok := errors.AsType[net.Error](err); {
	case Exhausted(err):
		e = c.fail(Internal, http.StatusServiceUnavailable, "router_exhausted", "the router has no more connections to give", err)
	case ok && timeout.Timeout():
		e = c.fail(Unavailable, http.StatusGatewayTimeout, role+"_connect_timeout",
			fmt.Sprintf("%s worker %s did not take a connection in time", role, c.Worker.ID), err)
	default:
		e = c.fail(Unavailable, http.StatusServiceUnavailable, role+"_unavailable",
			fmt.Sprintf("%s worker %s cannot be reached", role, c.Worker.ID), err)
	}
	e.RetryAfter = "1"
	return e
}

// Exhausted reports whether it is this process or machine that can open no more
// connections, which is no worker's fault.
func Exhausted(err error) bool {
	for _, own := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// Lost is the error of a connection that broke after the worker had the body.
func (c *Call) Lost(err error) *Error {
	role := c.Worker.Role.String()
	return c.fail(Lost, http.StatusBadGateway, role+"_connection_lost",
		fmt.Sprintf("the connection to %s worker %s broke", role, c.Worker.ID), unquoted(err))
}

// unquoted is err without what a worker sent: net/http quotes the bytes that it
// could not read, and those may be of a prompt.
func unquoted(err error) error {
	if what, _, quotes := strings.Cut(err.Error(), `"`); quotes {
		return errors.New(strings.TrimSpace(what))
	}
	return err
}

// ReadError is the error of an answer's body that could not be read to its
// end. A context cancelled with an *Error as its cause gives that.
func (c *Call) ReadError(ctx context.Context, err error) *Error {
	if cause := cancelCause(ctx); cause != nil {
		return cause
	}
	return c.Lost(err)
}

func (c *Call) fail(k Kind, status int, code, msg string, err error) *Error {
	return &Error{
		Stage: StageOf(c.Worker.Role), Worker: c.Worker.ID, Kind: k,
		Status: status, Code: code, Message: msg, Err: err,
	}
}

func cancelCause(ctx context.Context) *Error {
	if ctx.Err() == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](context.Cause(ctx)); ok {
		return e
	}
	return ErrCancelled(StageClient)
}
