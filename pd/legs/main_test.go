package legs

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is both workers' transport in a test: calls hang until their socket is
// closed, and aborts are answered as the test says. It logs what it sees.
type engine struct {
	start time.Time
	// onAbort answers an abort; nil answers at once.
	onAbort func(rid string, req *http.Request) error
	// unreached makes calls hang before they have a connection, half after a
	// part of their body.
	unreached, half bool
	// late finds a connection just as the call is given up.
	late bool

	mu     sync.Mutex
	log    []seen
	auth   []string
	active int // aborts under way
	most   int // at any time
}

// seen is one thing that an engine saw, and when.
type seen struct {
	what string
	at   time.Duration
}

func (e *engine) saw(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, seen{what, time.Since(e.start)})
}

func (e *engine) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path == "/abort_request" {
		return e.abort(req)
	}
	trace := httptrace.ContextClientTrace(req.Context())
	if !e.unreached {
		trace.GotConn(httptrace.GotConnInfo{})
		if !e.half {
			trace.WroteRequest(httptrace.WroteRequestInfo{})
		}
	}
	<-req.Context().Done()
	if e.late {
		trace.GotConn(httptrace.GotConnInfo{})
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	e.saw("closed")
	return nil, req.Context().Err()
}

func (e *engine) abort(req *http.Request) (*http.Response, error) {
	body := new(strings.Builder)
	buf := make([]byte, 1000)
	n, _ := req.Body.Read(buf)
	body.Write(buf[:n])
	rid := strings.TrimSuffix(strings.TrimPrefix(body.String(), `{"rid":"`), `"}`)
	e.saw("abort " + rid)
	e.mu.Lock()
	e.auth = append(e.auth, req.Header.Get("Authorization"))
	e.active++
	e.most = max(e.most, e.active)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.active--
		e.mu.Unlock()
	}()
	if e.onAbort != nil {
		if err := e.onAbort(rid, req); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
}

// deaf is an engine's answer to an abort that never comes.
func deaf(_ string, req *http.Request) error {
	<-req.Context().Done()
	return req.Context().Err()
}

func newRequest(t *testing.T, body string) *pd.Request {
	req, err := pd.NewRequest(pd.Generate, []byte(body))
	require.NoError(t, err)
	req.Header = pd.Outbound(http.Header{"Authorization": {"Bearer client"}})
	return req
}

// ends records what a leg came to.
type ends struct {
	mu  sync.Mutex
	all []pd.Outcome
}

func (e *ends) end(o pd.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, o)
}

func (e *ends) outcomes() []pd.Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

func leaseOn(w *pd.Worker) *pd.Lease { return pd.NewLease(w, nil, nil) }

func newLeg(ctx context.Context, req *pd.Request, lease *pd.Lease, rids []string, onEnd func(pd.Outcome)) *Leg {
	call := &pd.Call{Worker: lease.Worker, Method: "POST", Path: "/generate", Header: req.Header, Body: req.Edit.Payload()}
	return NewLeg(ctx, req, lease, call, []uint64{1}, rids, onEnd)
}

// run makes the leg's call and ends it with what comes of it, as the goroutine
// of a dialect does.
func run(l *Leg, rt http.RoundTripper) {
	_, err := l.Send(&pd.Upstream{Transport: rt, Fresh: rt})
	l.End(pd.Fault, err)
}
