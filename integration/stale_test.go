package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// hangup closes the connection that a request came on, without a byte.
func hangup(w http.ResponseWriter, reset bool) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if reset {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	_ = conn.Close()
}

// F49, to the point: the engine closes an idle connection just when the next
// request arrives on it. The tests of F49 have the process for themselves: what
// breaks later than 50 ms is no stale connection any more.
func TestF49AConnectionThatIsClosedWhenUsedAgainIsReplaced(t *testing.T) {
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for _, reset := range []bool{false, true} {
			for _, c := range []call{generateCall(2), chatCall(2).streamed()} {
				t.Run(fmt.Sprintf("%s, reset %t, %s", role, reset, c.name), func(t *testing.T) {
					answer := func(w http.ResponseWriter, _ *http.Request, got received) {
						if strings.Contains(got.body, `"stream":true`) {
							pieces(w, "data: {\"text\":\"a\"}\n\n", "data: [DONE]\n\n")
							return
						}
						w.Header().Set("Content-Type", "application/json")
						_, _ = io.WriteString(w, `{"text":"a"}`)
					}
					closing := func(w http.ResponseWriter, r *http.Request, got received) {
						if got.turn > 1 {
							hangup(w, reset)
							return
						}
						answer(w, r, got)
					}
					prefill, decode := answer, closing
					if role == pd.Prefill {
						prefill, decode = closing, answer
					}
					// As with engines, decode has its KV only once prefill has answered.
					var done rendezvous
					p := scripted(t, "prefill-0", pd.Prefill, func(w http.ResponseWriter, r *http.Request, got received) {
						prefill(w, r, got)
						if role == pd.Decode || got.turn == 1 {
							close(done.of(roomIn(t, got.body)))
						}
					})
					d := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, got received) {
						if role == pd.Prefill || got.turn == 1 {
							select {
							case <-done.of(roomIn(t, got.body)):
							case <-r.Context().Done():
								return
							}
						}
						decode(w, r, got)
					})
					s := newStack(t, setup{prefills: -1, decodes: -1, scripts: []*script{p, d}})
					failed := 0
					for range 6 {
						if s.post(c).status != http.StatusOK {
							failed++
						}
						s.idle()
					}
					assert.Equal(t, s.lateLosses(), failed)
					bad := p
					if role == pd.Decode {
						bad = d
					}
					answered := map[string]bool{}
					for _, got := range bad.requests() {
						if got.turn == 1 {
							room := roomIn(t, got.body)
							assert.False(t, answered[room], "room %s is executed twice", room)
							answered[room] = true
						}
					}
					assert.Len(t, answered, 6-failed)
					assert.Greater(t, len(bad.requests()), 6, "a connection was used again")
					faults := 0
					for _, outcomes := range s.outcomes(12) {
						for _, o := range outcomes {
							if o == pd.Fault {
								faults++
							}
						}
					}
					assert.Equal(t, failed, faults, "a stale connection is nobody's fault")
				})
			}
		}
	}
}

// rendezvous is where the two sides of a room meet.
type rendezvous struct{ rooms sync.Map }

func (r *rendezvous) of(room string) chan struct{} {
	c, _ := r.rooms.LoadOrStore(room, make(chan struct{}))
	return c.(chan struct{})
}

func roomIn(t *testing.T, body string) string {
	t.Helper()
	_, rest, ok := strings.Cut(body, `"bootstrap_room":`)
	assert.True(t, ok, "%.300s", body)
	return rest[:strings.IndexAny(rest, ",}")]
}

// F49 with engines that close idle connections by a clock: gaps about the time
// at which they do, and the router's own limit beyond or below it.
func TestF49IdleGapsCauseNoErrors(t *testing.T) {
	f := func(name string, engine, router time.Duration) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keepAlive := func(c *simengine.Config) { c.Timers.KeepAlive = engine }
			s := newStack(t, setup{
				prefill: keepAlive, decode: keepAlive,
				transport: func(tr *http.Transport) { tr.IdleConnTimeout = router },
			})
			var failed atomic.Int32
			var clients errgroup.Group
			for n := range 4 {
				clients.Go(func() error {
					for i := range 25 {
						c := calls(2)[(n+i)%6]
						resp, err := s.send(t.Context(), http.MethodPost, c.path, c.json())
						if err != nil {
							return err
						}
						if r := whole(resp); r.status != 200 || r.err != nil {
							failed.Add(1)
						}
						time.Sleep(engine - 4*time.Millisecond + time.Duration(i%9)*time.Millisecond)
					}
					return nil
				})
			}
			require.NoError(t, clients.Wait())
			s.idle()
			assert.Equal(t, s.lateLosses(), int(failed.Load()))
			for _, e := range s.engines() {
				rooms := map[simengine.Room]bool{}
				for _, rec := range generations(e) {
					assert.False(t, rooms[rec.Rooms[0]], "room %s comes twice", rec.Rooms[0])
					rooms[rec.Rooms[0]] = true
				}
			}
		})
	}
	f("the router keeps connections longer", 50*time.Millisecond, 10*time.Second)
	f("as in production, 3 s to 5 s", 50*time.Millisecond, 30*time.Millisecond)
}

// lateLosses counts requests that ended with a connection lost more than 50 ms
// after it was used again. There are some only where the machine stands still for
// so long, and then nobody can tell whether the body was executed.
func (s *stack) lateLosses() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.reports {
		if r.Err == nil || r.Err.Kind != pd.Lost {
			continue
		}
		for _, l := range r.Legs {
			if l.Worker == r.Err.Worker && l.Attempt == r.Attempts && l.End-l.Sent > 50*time.Millisecond {
				s.t.Logf("%s was lost after %s", l.Worker, l.End-l.Sent)
				n++
				break
			}
		}
	}
	return n
}

// A connection that breaks while the engine works is no stale one: the body may
// have been executed.
func TestALossAfterTheBodyIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s, d := scriptedPair(t, setup{}, func(w http.ResponseWriter, _ *http.Request, got received) {
		if got.turn > 1 {
			time.Sleep(200 * time.Millisecond)
			hangup(w, true)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"a"}`)
	})
	s.ok(generateCall(1))
	s.idle()
	r := s.post(generateCall(1))
	assert.Equal(t, 502, r.status)
	assert.Equal(t, "decode_connection_lost", r.header.Get("X-Tandem-Error"))
	assert.Len(t, d.requests(), 2)
}
