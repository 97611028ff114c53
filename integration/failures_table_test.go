package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// ending is how a failure ends: what the client is told, and what is said of
// each worker.
type ending struct {
	status          int
	says            string // in the answer's body, or its code
	prefill, decode pd.Outcome
}

// failure is one way in which the first pair of a stack fails.
type failure struct {
	name            string
	prefill, decode func(*simengine.Config)      // of the first pair
	call            func(call) call              // nil changes nothing
	breaks          func(s *stack, c call)       // nil where the engines fail by themselves
	after           func(t *testing.T, s *stack) // nil, or what else must come to be

	endings []ending // any of them, where it is a matter of who is faster
	retried bool     // on another pair, if there is one
}

// Texts of engines, as far as they matter.
const (
	words        = `{"object":"error","message":%q,"type":"500","param":null,"code":%d}`
	decodeFailed = "Decode transfer failed for request rank=0 decode_req.req.rid='a1' decode_req.req.bootstrap_room=77 " +
		"with exception KVTransferError(bootstrap_room=77): %s"
	tooLongInput = "Input length (2000 tokens) exceeds the maximum allowed length (1018 tokens)"
	noRoom       = "Invalid request: Disaggregated request received without bootstrap room id. req.rid='a1'"
	noWindow     = "The sliding window pool is too short for the request"
	noPriority   = "Using priority is disabled for this server"
	otherRoom    = "Metadata corruption detected - bootstrap_room mismatch"
)

// refuses has an engine answer every request so.
func refuses(e *simengine.Engine, status int, message string) {
	e.SetFault(always(simengine.Fault{Status: status, Body: fmt.Appendf(nil, words, message, status)}))
}

// refusesLate is refuses once the other engine has the request too.
func refusesLate(s *stack, e, other *simengine.Engine, status int, message string) {
	e.SetFault(onceAt(s.t.Context(), other, simengine.Fault{Status: status, Body: fmt.Appendf(nil, words, message, status)}))
}

// either is a refusal that both engines have the same reason for: the one that
// is dropped may or may not have spoken.
func either(status int, says string, o pd.Outcome) []ending {
	return []ending{{status, says, o, o}, {status, says, o, pd.Echo}, {status, says, pd.Echo, o}}
}

// scaled sets an engine's clock: at 0.1 its own words on a loss come too late to
// be heard beside the loss itself, at 0.003 its 300 s are 0.9 s.
func scaled(scale float64) func(*simengine.Config) {
	return func(c *simengine.Config) { c.TimeScale = scale }
}

// smallPool leaves no space for any prompt.
func smallPool(c *simengine.Config) { c.MaxTotalTokens = 4 }

// beyondContext is a call with a prompt that fills the context.
func beyondContext(c call) call {
	text := strings.Repeat("x", 1100)
	if c.path == chatPath {
		return c.with(object{"messages": []object{{"role": "user", "content": text}}})
	}
	return c.with(object{"text": text})
}

// failures are what can go wrong between two engines.
func failures() []failure {
	return []failure{
		{
			name: "prefill is dead before contact", decode: scaled(0.1),
			breaks:  func(s *stack, _ call) { s.kill(s.p) },
			endings: []ending{{503, "prefill_unavailable", pd.Unreachable, pd.Echo}}, retried: true,
		},
		{
			name:    "decode is dead before contact",
			breaks:  func(s *stack, _ call) { s.kill(s.d) },
			endings: []ending{{503, "decode_unavailable", pd.Echo, pd.Unreachable}}, retried: true,
		},
		{
			name: "prefill dies before it knows of decode", decode: scaled(0.1),
			breaks:  func(s *stack, _ call) { s.p.SetFault(always(simengine.Fault{Die: simengine.DieBeforeHandshake})) },
			endings: []ending{{502, "prefill_connection_lost", pd.Fault, pd.Echo}}, retried: true,
		},
		{
			// Of which prefill hears nothing: it would wait for 300 s.
			name:    "decode dies before it knows of prefill",
			breaks:  func(s *stack, _ call) { s.d.SetFault(always(simengine.Fault{Die: simengine.DieBeforeHandshake})) },
			endings: []ending{{502, "decode_connection_lost", pd.Echo, pd.Fault}}, retried: true,
		},
		{
			name: "prefill dies when it knows of decode", decode: scaled(0.1),
			breaks:  func(s *stack, _ call) { s.p.SetFault(always(simengine.Fault{Die: simengine.DieAfterHandshake})) },
			endings: []ending{{502, "prefill_connection_lost", pd.Fault, pd.Echo}}, retried: true,
		},
		{
			name:    "decode dies when it knows of prefill",
			prefill: func(c *simengine.Config) { c.Speed.TransferDelay = lasting },
			breaks:  func(s *stack, _ call) { s.d.SetFault(always(simengine.Fault{Die: simengine.DieAfterHandshake})) },
			endings: []ending{
				{502, "decode_connection_lost", pd.Echo, pd.Fault},
				// Where the process stands still for 50 ms, prefill's echo is all that it has heard.
				{500, "Decode instance could be dead", pd.PairFault, pd.Echo},
			}, retried: true,
		},
		{
			name:    "prefill refuses what decode accepts",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.p, s.d, 400, "no") },
			endings: []ending{{400, `"no"`, pd.ClientFlaw, pd.Echo}},
		},
		{
			name:    "decode refuses what prefill accepts",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.d, s.p, 400, "no") },
			endings: []ending{{400, `"no"`, pd.Echo, pd.ClientFlaw}},
		},
		{
			name: "prefill is never posted the room", decode: scaled(0.003),
			breaks:  func(s *stack, _ call) { s.p.SetFault(always(simengine.Fault{Hang: true})) },
			endings: []ending{{500, "timed out after 300.0s in KVPoll.WaitingForInput", pd.PairFault, pd.Echo}}, retried: true,
		},
		{
			// Or has no KV space for as long: it is too busy, and once is enough.
			name: "decode is never posted the room", prefill: scaled(0.003),
			breaks:  func(s *stack, _ call) { s.d.SetFault(always(simengine.Fault{Hang: true})) },
			endings: []ending{{500, "in KVPoll.Bootstrapping", pd.Overloaded, pd.Echo}},
		},
		{
			name:    "the KV is lost on its way",
			breaks:  func(s *stack, _ call) { s.p.SetFault(always(simengine.Fault{FailTransfer: true})) },
			endings: []ending{{500, "transfer failed for request", pd.PairFault, pd.Echo}}, retried: true,
		},
		{
			name: "decode cannot reach prefill's bootstrap server",
			breaks: func(s *stack, _ call) {
				s.eventually(func() bool { return s.set.Find("prefill-0").Reach() == pools.ReachUp }, "the server is known to answer")
				s.p.SetBootstrap(simengine.BootstrapDown)
			},
			endings: []ending{{500, "Decode handshake failed", pd.PairFault, pd.Echo}}, retried: true,
			after: func(t *testing.T, s *stack) {
				s.eventually(func() bool { return s.shown("prefill-0").State == pools.Broken }, "prefill is blamed, since the server is gone")
				assert.Equal(t, "closed", s.shown("decode-0").Breaker)
			},
		},
		{
			name: "decode has lost prefill, and prefill is silent",
			breaks: func(s *stack, _ call) {
				s.p.SetFault(always(simengine.Fault{Hang: true}))
				lost := fmt.Sprintf("Lost connection with prefill instance (bootstrap_addr: %s:%d)", s.p.Host(), s.p.BootstrapPort())
				refusesLate(s, s.d, s.p, 500, fmt.Sprintf(decodeFailed, lost))
			},
			endings: []ending{{500, "(bootstrap_addr: prefill-0)", pd.PairFault, pd.Echo}}, retried: true,
		},
		{
			name: "the prompt fills the context", call: beyondContext,
			endings: either(400, "longer than the model's context length", pd.ClientFlaw),
		},
		{
			name: "the prompt is larger than both KV pools", prefill: smallPool, decode: smallPool,
			endings: either(400, "exceeds the maximum number of tokens", pd.ClientFlaw),
		},
		{
			name: "the prompt is larger than prefill's KV pool", prefill: smallPool,
			endings: []ending{{400, "exceeds the maximum number of tokens", pd.ClientFlaw, pd.Echo}},
		},
		{
			name: "the prompt is larger than decode's KV pool", decode: smallPool,
			endings: []ending{{400, "exceeds the maximum number of tokens", pd.Echo, pd.ClientFlaw}},
		},
		{
			// Of decode's garbage, which may follow, the client sees nothing: see F04.
			name:    "prefill's scheduler rejects the length",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.p, s.d, 400, tooLongInput) },
			endings: []ending{{400, tooLongInput, pd.ClientFlaw, pd.Echo}},
		},
		{
			name: "decode's scheduler rejects the length",
			breaks: func(s *stack, c call) {
				if c.body["stream"] == nil {
					refusesLate(s, s.d, s.p, 400, tooLongInput)
					return
				}
				// It says so when it has the KV, and prefill is done.
				frame := fmt.Sprintf(`{"error":{"message":%q,"code":400}}`, tooLongInput)
				s.d.SetFault(always(simengine.Fault{ErrorAt: 1, ErrorEvent: frame}))
			},
			endings: []ending{{400, tooLongInput, pd.Echo, pd.ClientFlaw}, {400, tooLongInput, pd.Success, pd.ClientFlaw}},
		},
		{
			// It is always sent; an engine that lost it would say so.
			name: "both miss the room",
			breaks: func(s *stack, _ call) {
				refuses(s.p, 400, noRoom)
				refuses(s.d, 400, noRoom)
			},
			endings: either(400, "without bootstrap room id", pd.ClientFlaw),
		},
		{
			name:    "decode's window pool is short",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.d, s.p, 503, noWindow) },
			endings: []ending{{503, noWindow, pd.Echo, pd.Overloaded}}, retried: true,
		},
		{
			name: "both have no priorities",
			breaks: func(s *stack, _ call) {
				refuses(s.p, 503, noPriority)
				refuses(s.d, 503, noPriority)
			},
			endings: either(503, noPriority, pd.Overloaded), retried: true,
		},
		{
			// No two live requests share a room, but an engine may mix them up.
			name:    "prefill finds another's room in its metadata",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.p, s.d, 500, otherRoom) },
			endings: []ending{{500, otherRoom, pd.Fault, pd.Echo}}, retried: true,
		},
		{
			name:    "decode finds another's room in its metadata",
			breaks:  func(s *stack, _ call) { refusesLate(s, s.d, s.p, 500, otherRoom) },
			endings: []ending{{500, otherRoom, pd.Echo, pd.Fault}}, retried: true,
		},
	}
}

// Whatever goes wrong between two engines, the client hears the engine whose
// failure it is, or nothing where another pair can do the work; the failure is
// charged to whom it belongs; and nobody goes on working for it.
func TestFailuresOfAPair(t *testing.T) {
	t.Parallel()
	for _, row := range failures() {
		for _, c := range []call{generateCall(4), generateCall(4).streamed(), chatCall(4).streamed()} {
			for _, attempts := range []int{1, 5} {
				t.Run(fmt.Sprintf("%s, %s, %d attempts", row.name, c.name, attempts), func(t *testing.T) {
					t.Parallel()
					row.test(t, c, attempts)
				})
			}
		}
	}
}

func (row failure) test(t *testing.T, c call, attempts int) {
	if row.call != nil {
		c = row.call(c)
	}
	pairs := 1
	if attempts > 1 {
		pairs = 2 // the second is healthy
	}
	s := newStack(t, setup{
		prefills: pairs, decodes: pairs, mayDie: true,
		prefill: ofFirst(row.prefill), decode: ofFirst(row.decode),
		health:       func(h *health.Options) { h.Interval = time.Minute },
		pools:        breaking(pools.Breakers{Failures: 1}), // so that a single fault shows
		orchestrator: retrying(attempts, nil),
	})
	s.ready()
	if row.breaks != nil {
		row.breaks(s, c)
	}
	r := s.post(c)
	answered := time.Now()

	made := 1
	if row.retried && attempts > 1 {
		made = 2
	}
	assert.Equal(t, made, s.report(0).Attempts)
	outcomes := s.outcomes(2 * made)
	prefill, decode := outcomes["prefill-0"], outcomes["decode-0"]
	require.Len(t, prefill, 1)
	require.Len(t, decode, 1)
	end, ok := row.ending(prefill[0], decode[0])
	assert.True(t, ok, "blame: prefill %s, decode %s", prefill[0], decode[0])
	if made > 1 {
		want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
		require.NoError(t, err)
		assert.Equal(t, want[0].Text, textOf(t, c.path, r)[0])
		assert.Equal(t, []pd.Outcome{pd.Success}, outcomes["prefill-1"])
		assert.Equal(t, []pd.Outcome{pd.Success}, outcomes["decode-1"])
	} else {
		assert.Equal(t, end.status, r.status)
		assert.Contains(t, r.body+r.header.Get("X-Tandem-Error"), end.says)
		assert.NoError(t, r.err)
		assert.Equal(t, "application/json", r.header.Get("Content-Type"), "no stream has begun")
	}
	s.idle()
	for _, e := range s.engines() {
		for i := range generations(e) {
			over(t, e, i, answered)
		}
	}
	if row.after != nil {
		row.after(t, s)
		return
	}
	for id, all := range outcomes {
		s.shownAsBlamed(id, all[0])
	}
}

// ending is the one that the blame belongs to.
func (row failure) ending(prefill, decode pd.Outcome) (ending, bool) {
	for _, e := range row.endings {
		if e.prefill == prefill && e.decode == decode {
			return e, true
		}
	}
	return row.endings[0], false
}

// ofFirst changes the first engine of a role alone.
func ofFirst(change func(*simengine.Config)) func(*simengine.Config) {
	return func(c *simengine.Config) {
		if change != nil && strings.HasSuffix(c.ID, "-0") {
			change(c)
		}
	}
}

// shownAsBlamed requires that a worker whose breaker opens on a single fault is
// out if, and only if, its one leg ended by its own failure.
func (s *stack) shownAsBlamed(id pd.WorkerID, o pd.Outcome) {
	s.t.Helper()
	w := s.shown(id)
	switch o {
	case pd.Fault:
		assert.Equal(s.t, pools.Broken, w.State, "%s", id)
		assert.Equal(s.t, "open", w.Breaker, "%s", id)
	case pd.Unreachable:
		assert.Equal(s.t, pools.Dead, w.State, "%s", id)
		assert.False(s.t, w.Healthy, "%s", id)
	case pd.Overloaded: // busy, for a second
		assert.Contains(s.t, []pools.State{pools.Busy, pools.Ready}, w.State, "%s", id)
		assert.Equal(s.t, "closed", w.Breaker, "%s", id)
	default:
		assert.Equal(s.t, pools.Ready, w.State, "%s: %s", id, o)
		assert.Equal(s.t, "closed", w.Breaker, "%s: %s", id, o)
	}
}
