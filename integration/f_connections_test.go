package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/router"
)

// F55, of calls to engines: that this process has no more descriptors is no
// worker's fault, nobody else could do better, and it is over when it is over.
// That the server outlives a full table is shown in router.
func TestF55WithoutDescriptorsNobodyIsBlamed(t *testing.T) {
	t.Parallel()
	f := func(name string, lacking func(s *stack, address string) bool) {
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
			t.Run(fmt.Sprintf("%s, %v", name, errno), func(t *testing.T) {
				t.Parallel()
				var none atomic.Pointer[stack] // nil while there are enough
				s := newStack(t, setup{
					prefills: 2, decodes: 2, orchestrator: retrying(5, nil),
					health: func(h *health.Options) { h.Interval = lasting },
					pools:  breaking(pools.Breakers{Failures: 1}),
					transport: func(tr *http.Transport) {
						dial := tr.DialContext
						tr.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
							if s := none.Load(); s != nil && lacking(s, address) {
								return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("socket", errno)}
							}
							return dial(ctx, network, address)
						}
					},
				})
				s.ready()
				none.Store(s)
				for _, c := range calls(4) {
					r := s.post(c)
					assert.Equal(t, 503, r.status)
					assert.Equal(t, "router_exhausted", r.header.Get("X-Tandem-Error"))
					assert.NotEmpty(t, r.header.Get("Retry-After"))
					assert.Equal(t, "application/json", r.header.Get("Content-Type"))
				}
				for i := range calls(4) {
					assert.Equal(t, 1, s.report(i).Attempts)
				}
				for id, outcomes := range s.outcomes(2 * len(calls(4))) {
					assert.Empty(t, slices.DeleteFunc(outcomes, func(o pd.Outcome) bool { return o == pd.Unused }), "%s", id)
					assert.Equal(t, pools.Ready, s.shown(id).State, "%s", id)
					assert.Equal(t, "closed", s.shown(id).Breaker, "%s", id)
				}
				assert.Equal(t, 200, s.readiness())
				none.Store(nil)
				for range 4 {
					s.ok(generateCall(2))
				}
			})
		}
	}
	f("for anybody", func(*stack, string) bool { return true })
	f("for decode, when prefill has been called", func(s *stack, address string) bool {
		return slices.ContainsFunc(s.decodes, func(d *simengine.Engine) bool { return strings.HasSuffix(d.URL(), "/"+address) })
	})
}

// logged is a log that may be written to from many goroutines.
type logged struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes.Write(p)
}

// logLine is what matters of a line.
type logLine struct {
	Level, Message string
	Status         int
	Broken         bool
}

// lines are those of a level.
func (l *logged) lines(t *testing.T, level string) (all []logLine) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range strings.Lines(l.bytes.String()) {
		var line logLine
		require.NoError(t, json.Unmarshal([]byte(text), &line), "%s", text)
		if line.Level == level {
			all = append(all, line)
		}
	}
	return all
}

// F56: the report wants one line for each at debug level; it is that of the
// access log, which every request has.
func TestF56AHundredCancelsAreNoErrors(t *testing.T) {
	t.Parallel()
	var log logged
	s := newStack(t, setup{
		prefills: 2, decodes: 2, orchestrator: retrying(5, nil), decode: slowly,
		router: func(c *router.Config) { c.Log = zerolog.New(&log) },
	})
	for _, d := range s.decodes {
		d.SetFault(func(r simengine.Record) *simengine.Fault {
			if strings.HasPrefix(r.Rids[0], "silent") {
				return &simengine.Fault{Hang: true}
			}
			return nil
		})
	}
	together(100, 8, func(i int) {
		c := []call{generateCall(500), chatCall(500)}[i/2%2].streamed()
		if i%2 == 0 { // in the middle of a stream
			l := s.listen(c)
			l.next()
			l.leave()
			return
		}
		rid := fmt.Sprintf("silent%03d", i)
		p := s.start(c.with(object{"rid": rid}))
		s.eventually(func() bool {
			return slices.ContainsFunc(append(generations(s.decodes[0]), generations(s.decodes[1])...),
				func(r simengine.Record) bool { return slices.Contains(r.Rids, rid) })
		}, "%s is on its way", rid)
		p.leave()
	})
	s.report(99)
	s.idle()
	s.mu.Lock()
	reports := slices.Clone(s.reports)
	s.mu.Unlock()
	require.Len(t, reports, 100, "one of each request")
	for _, r := range reports {
		require.NotNil(t, r.Err)
		assert.Equal(t, pd.Cancelled, r.Err.Kind)
		assert.Equal(t, 1, r.Attempts)
	}
	s.eventually(func() bool { return len(log.lines(t, "info")) >= 100 }, "the access log has them")
	left := 0
	for _, line := range log.lines(t, "info") {
		assert.Equal(t, "request", line.Message)
		if line.Status == 499 {
			left++
		} else {
			assert.True(t, line.Status == 200 && line.Broken, "%+v", line)
		}
	}
	assert.Len(t, log.lines(t, "info"), 100)
	assert.Equal(t, 50, left)
	for _, level := range []string{"warn", "error"} {
		assert.Empty(t, log.lines(t, level))
	}
	for _, w := range s.set.Status().Workers {
		assert.Equal(t, "closed", w.Breaker, "%s", w.ID)
		assert.Equal(t, pools.Ready, w.State, "%s", w.ID)
	}
	began := time.Now()
	s.ok(generateCall(2))
	assert.Less(t, time.Since(began), soon)
}
