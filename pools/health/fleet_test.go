package health_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// reply is how a scripted engine answers a probe.
type reply func(req *http.Request) (*http.Response, error)

func status(code int) reply {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody}, nil
	}
}

// after is an answer that takes a while, as long as somebody waits for it.
func after(d time.Duration, then reply) reply {
	return func(req *http.Request) (*http.Response, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return then(req)
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

func failing(err error) reply {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func dialError(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

var (
	ok      = status(200)
	silence = after(time.Hour, ok)
	refusal = failing(dialError(syscall.ECONNREFUSED))
)

// fleet is a set of scripted workers with a monitor over it, in a bubble of
// synctest. A worker w has its API at http://w and its bootstrap server at
// w:8998.
type fleet struct {
	t     *testing.T
	set   *pools.Set
	start time.Time
	stop  context.CancelFunc
	ended chan struct{}

	mu      sync.Mutex
	replies map[string]reply           // by host
	asked   map[string][]time.Duration // when, by host
	at, max int                        // probes under way now, and at most
	want    []pd.WorkerID              // whom the policy picks
	heard   []string                   // calls of hooks but Probed
	probed  map[pd.WorkerID][]error
}

func names(role pd.Role, n int) []*pd.Worker {
	var ws []*pd.Worker
	for i := range n {
		id := fmt.Sprintf("%s-%d", role, i)
		w := &pd.Worker{ID: pd.WorkerID(id), Role: role, URL: "http://" + id}
		if role == pd.Prefill {
			w.BootstrapHost, w.BootstrapPort = id, 8998
		}
		ws = append(ws, w)
	}
	return ws
}

// pair is one worker of each role, four is two of each.
func pair() []*pd.Worker { return append(names(pd.Prefill, 1), names(pd.Decode, 1)...) }
func four() []*pd.Worker { return append(names(pd.Prefill, 2), names(pd.Decode, 2)...) }

// inBubble runs f in a bubble.
func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// newFleet starts to watch over workers that all are well, and lets them join
// unless some have a script of their own.
func newFleet(t *testing.T, opt health.Options, workers []*pd.Worker, scripts map[string]reply) *fleet {
	t.Helper()
	f := &fleet{
		t: t, start: time.Now(), ended: make(chan struct{}),
		replies: map[string]reply{}, asked: map[string][]time.Duration{}, probed: map[pd.WorkerID][]error{},
	}
	maps.Copy(f.replies, scripts)
	opt.Transport = f
	opt.Probed = func(w *pd.Worker, _ time.Duration, err error) { f.probed[w.ID] = append(f.probed[w.ID], err) }
	opt.Kept = func(w *pd.Worker, why string) { f.hear("kept %s: %s", w.ID, why) }
	opt.Unreached = func(w *pd.Worker, err error) { f.hear("unreached %s: %t", w.ID, err != nil) }
	opt.Bound = func(name string) { f.hear("bound %s", name) }
	opt.Panic = func(v any, stack []byte) { f.hear("panic %v %t", v, len(stack) > 0) }
	monitor := health.New(opt)
	set, err := pools.New(workers, pools.Options{
		Policies: pools.Share(picker{f}, picker{f}), Suspect: monitor.Suspect,
		Breakers: pools.Breakers{Failures: 1}, // so that one blame shows
	})
	require.NoError(t, err)
	f.set = set
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	go func() {
		defer close(f.ended)
		monitor.Run(ctx, set)
	}()
	t.Cleanup(func() {
		stop()
		<-f.ended
	})
	synctest.Wait()
	return f
}

// RoundTrip implements http.RoundTripper.
func (f *fleet) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked[req.URL.Host] = append(f.asked[req.URL.Host], time.Since(f.start))
	r := f.replies[req.URL.Host]
	f.at++
	f.max = max(f.max, f.at)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.at--
	}()
	if r == nil {
		r = ok
	}
	return r(req)
}

// picker picks whom the fleet wants, else the first.
type picker struct{ f *fleet }

func (p picker) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	for _, m := range members {
		if slices.Contains(p.f.want, m.Worker.ID) {
			return m
		}
	}
	return members[0]
}

func (f *fleet) hear(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = append(f.heard, fmt.Sprintf(format, args...))
}

// told is what the hooks have heard since it was last asked for.
func (f *fleet) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	heard := f.heard
	f.heard = nil
	return heard
}

// becomes changes how the engine at host answers.
func (f *fleet) becomes(host string, r reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replies[host] = r
}

// asks is how often host was asked since it was last asked for, and forgets it.
func (f *fleet) asks(host string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked[host]
	delete(f.asked, host)
	return asked
}

// pass lets time pass.
func (f *fleet) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fleet) state(id pd.WorkerID) pools.State { return f.set.Find(id).State() }

func (f *fleet) reason(id pd.WorkerID) string {
	for _, w := range f.set.Status().Workers {
		if w.ID == id {
			if w.State == pools.Ready || w.State == pools.Broken {
				return "" // what is said of one that is alive is the pools' own
			}
			return w.Reason
		}
	}
	return ""
}

// is asserts a worker's state and reason.
func (f *fleet) is(id pd.WorkerID, state pools.State, reason string) {
	f.t.Helper()
	assert.Equal(f.t, state, f.state(id), id)
	assert.Equal(f.t, reason, f.reason(id), id)
}

// until waits for a state, second by second, and returns how long that took.
func (f *fleet) until(id pd.WorkerID, state pools.State) time.Duration {
	f.t.Helper()
	began := time.Now()
	for f.state(id) != state {
		require.Less(f.t, time.Since(began), 2*time.Hour, "%s stays %s", id, f.state(id))
		f.pass(100 * time.Millisecond)
	}
	return time.Since(began)
}

// plan takes the leases of a request to the given workers.
func (f *fleet) plan(ids ...pd.WorkerID) *pd.Plan {
	f.t.Helper()
	f.want = ids
	plans, err := f.set.Plan(f.t.Context(), nil, 1, nil)
	require.NoError(f.t, err)
	return plans[0]
}

// tokens shows a sign of life of the given workers, then waits, n times.
func (f *fleet) tokens(n int, wait time.Duration, ids ...pd.WorkerID) {
	f.t.Helper()
	p := f.plan(ids...)
	for range n {
		p.Prefill.Progress()
		p.Decode.Progress()
		f.pass(wait)
	}
	p.End(pd.Left, pd.Left)
}

// waits asserts the waits between probes that took no time, give or take a
// tenth.
func waits(t *testing.T, asked []time.Duration, want ...time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, len(asked), len(want)+1, "%v", asked)
	for i, w := range want {
		assert.InDelta(t, w.Seconds(), (asked[i+1] - asked[i]).Seconds(), w.Seconds()/10+0.001, "wait %d of %v", i, asked)
	}
}

func seconds(s ...float64) []time.Duration {
	out := make([]time.Duration, len(s))
	for i, x := range s {
		out[i] = time.Duration(x * float64(time.Second))
	}
	return out
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }

// closing counts how often it is closed.
type closing struct {
	io.Reader
	n *atomic.Int64
}

func (c closing) Close() error {
	c.n.Add(1)
	return nil
}

func body(b io.ReadCloser) reply {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: b}, nil
	}
}

func broken() io.ReadCloser {
	return io.NopCloser(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF)))
}
