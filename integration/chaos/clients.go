package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxAnswer is how much of an answer a client reads, in bytes.
	maxAnswer = 16 << 20
	// slowRead and slowPause are how a slow client reads, for at most slowFor.
	slowRead, slowPause, slowFor = 512, 10 * time.Millisecond, 1500 * time.Millisecond
	// smallWindow is the receive buffer of a slow client's connection, in bytes.
	smallWindow = 4 << 10
)

// clients send calls to the router and tell the checkers of them.
type clients struct {
	url        string
	fast, slow *http.Client
	patience   time.Duration // after which a client gives up, which is later than the bound
	legs       *legChecker
	outcomes   *outcomeChecker
	success    *successChecker
	available  *availabilityChecker
	report     func(Violation)
}

func newClients(url string, patience time.Duration) *clients {
	transport := func(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: 512, IdleConnTimeout: 30 * time.Second}}
	}
	var d net.Dialer
	return &clients{
		url: url, patience: patience, fast: transport(d.DialContext),
		slow: transport(func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			if err := conn.(*net.TCPConn).SetReadBuffer(smallWindow); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return conn, nil
		}),
	}
}

// close closes the idle connections.
func (c *clients) close() {
	c.fast.CloseIdleConnections()
	c.slow.CloseIdleConnections()
}

// do makes a call to its end and judges it.
func (c *clients) do(ctx context.Context, k *call) (*answer, result) {
	began := time.Now()
	c.legs.began(k.id, k.unsent)
	c.success.began(k.id)
	c.outcomes.began(k.id, k.describe, began)
	a := c.exchange(ctx, k)
	ended := time.Now()
	r := judge(k, a)
	c.legs.ended(k.id, ended, r.outcome == right)
	c.outcomes.ended(k.id, ended)
	code, engines := a.header.Get("X-Tandem-Error"), c.success.engines(k.id)
	c.available.answered(k.id, a.status, code, began, ended)
	// A 503 for want of a worker is the matter of the line above.
	judged := k.stays() && !k.unsent && (a.status != http.StatusServiceUnavailable || code == "")
	c.success.ended(k.id, judged, r.outcome == right, fmt.Sprintf("%s (%s): %s", r.outcome, r.why, k.describe), began, ended)
	if r.outcome == wrong {
		c.report(Violation{Invariant: invariantAnswers, Request: k.id, Detail: fmt.Sprintf("%s: %s, on %v", r.why, k.describe, engines)})
	}
	return a, r
}

// exchange sends the call, reads its answer and leaves when the client is to.
func (c *clients) exchange(ctx context.Context, k *call) *answer {
	ctx, leave := context.WithTimeout(ctx, c.patience)
	defer leave()
	var hasLeft atomic.Bool
	switch k.manner {
	case leavesEarly:
		defer time.AfterFunc(k.after, func() { hasLeft.Store(true); leave() }).Stop()
	case aborts:
		var abort sync.WaitGroup
		abortCtx, answered := context.WithCancel(ctx)
		defer abort.Wait()
		defer answered()
		abort.Go(func() { c.abort(abortCtx, k) })
	}
	a := &answer{}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+k.path, bytes.NewReader(k.body))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(requestIDHeader, k.id)
	client := c.fast
	if k.manner == readsSlowly {
		client = c.slow
	}
	resp, err := client.Do(req)
	if err != nil {
		a.err, a.left = err, hasLeft.Load()
		return a
	}
	a.status, a.header = resp.StatusCode, resp.Header
	left := read(ctx, k, resp.Body, a)
	leave()
	_ = resp.Body.Close()
	a.left = left || a.err != nil && hasLeft.Load()
	return a
}

// read reads the answer's body in the client's manner; left says that the client
// has had enough.
func read(ctx context.Context, k *call, from io.Reader, a *answer) (left bool) {
	size := 32 << 10
	if k.manner == readsSlowly {
		size = slowRead
	}
	var slept time.Duration
	for buf := make([]byte, size); ; {
		n, err := from.Read(buf)
		a.body = append(a.body, buf[:n]...)
		switch {
		case err == io.EOF:
			return false
		case err != nil:
			a.err = err
			return false
		case len(a.body) > maxAnswer:
			a.err = fmt.Errorf("an answer of more than %d bytes", maxAnswer)
			return false
		case k.manner == leavesLate && bytes.Count(a.body, []byte("\n\n")) >= k.events:
			return true
		case k.manner == readsSlowly && slept < slowFor:
			wait(ctx, slowPause)
			slept += slowPause
		}
	}
}

// abort asks for the end of a call by its rid, unless it has ended before.
func (c *clients) abort(ctx context.Context, k *call) {
	wait(ctx, k.after)
	if ctx.Err() != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/abort_request", bytes.NewReader(fmt.Appendf(nil, `{"rid":%q}`, k.rid)))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.fast.Do(req)
	if err != nil {
		return // the call has ended, or the run
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	_ = resp.Body.Close()
}
