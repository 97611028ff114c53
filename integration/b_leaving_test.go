package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// F17, a client that leaves between prefill's end and decode's begin, needs a
// dialect that runs its legs one after the other. SGLang's run at the same time,
// so there is no such window; its test belongs to the sequential dialect.

func TestF13AClientThatLeavesBeforeTheFirstChunkFreesBothEngines(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{
				prefills: 2, decodes: 2, orchestrator: retrying(5, nil),
				prefill: func(c *simengine.Config) { c.Speed.PrefillDelay = time.Minute },
			})
			call := s.start(c)
			s.eventually(func() bool { return s.d.Loads().Transfer == 1 }, "decode waits for the KV")
			s.eventually(func() bool { return s.p.Loads().Waiting == 1 }, "prefill computes")
			left := time.Now()
			call.leave()
			// Prefill may hear of it from decode first.
			p, d := over(t, s.p, 0, left), freed(t, s.d, 0, left)
			s.told(s.p, p.Rids[0])
			s.told(s.d, d.Rids[0])
			r := s.report(0)
			require.NotNil(t, r.Err)
			assert.Equal(t, "client_closed_request", r.Err.Code)
			assert.Zero(t, r.Commit)
			assert.Equal(t, 1, r.Attempts)
			for _, e := range []*simengine.Engine{s.prefills[1], s.decodes[1]} {
				assert.Empty(t, generations(e), "nobody goes on for nobody")
			}
		})
	}
}

// F14, where a retry could run beside the orphan: a client that leaves between
// two attempts is not waited for, and nothing more is sent.
func TestF14ACancelBetweenTwoAttemptsSendsNothingMore(t *testing.T) {
	t.Parallel()
	for _, c := range calls(4) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			waits := make(chan struct{})
			s := newStack(t, setup{prefills: 2, decodes: 2, orchestrator: func(o *pd.Orchestrator) {
				o.Retry = pd.Retry{MaxAttempts: 5, InitialBackoff: lasting}
				o.Hooks.Retry = func(*pd.Request, int, *pd.Error, time.Duration) { close(waits) }
			}})
			fault := outOfLuck()
			s.p.SetFault(onceAt(t.Context(), s.d, fault))
			call := s.start(c)
			within(t, waits, "the wait for another attempt")
			left := time.Now()
			call.leave()
			r := s.report(0)
			assert.Less(t, time.Since(left), soon)
			require.NotNil(t, r.Err)
			assert.Equal(t, "client_closed_request", r.Err.Code)
			assert.Equal(t, 1, r.Attempts)
			s.idle()
			over(t, s.d, 0, left)
			for _, e := range []*simengine.Engine{s.prefills[1], s.decodes[1]} {
				assert.Empty(t, generations(e), "%s", e.ID())
			}
		})
	}
}

func TestF14CancelsBeforeTheFirstOutputLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{orchestrator: retrying(5, nil), decode: func(c *simengine.Config) {
		c.MaxTotalTokens = 100
		c.Speed.TokenInterval = 200 * time.Millisecond // the holder outlasts the test
	}})
	holder := s.start(generateCall(80).streamed()) // its KV leaves no space for others
	s.eventually(func() bool { return s.d.Loads().Running == 1 }, "the KV is taken")
	var waiting []*pending
	for range 10 {
		waiting = append(waiting, s.start(generateCall(30).streamed()))
	}
	s.eventually(func() bool { return s.d.Loads().Prealloc == 10 }, "ten requests wait for KV space")
	s.eventually(func() bool { return s.p.Loads().Bootstrap == 10 }, "at prefill too")
	left := time.Now()
	for _, w := range waiting {
		w.leave()
	}
	for i := 1; i <= 10; i++ {
		p, d := over(t, s.p, i, left), freed(t, s.d, i, left)
		assert.Len(t, p.Rids[0], 32, "a rid of the router's")
		assert.Len(t, d.Rids[0], 32)
		s.told(s.p, p.Rids[0])
		s.told(s.d, d.Rids[0])
	}
	left = time.Now()
	holder.leave()
	freed(t, s.d, 0, left)
	// Nothing is left that it would have to wait for: decode's tokens take 0.6 s
	// here, and the rest must fit into soon.
	begin := time.Now()
	s.ok(generateCall(4))
	assert.Less(t, time.Since(begin), 600*time.Millisecond+soon)
}

// F16: the report suffixes a client's rid; here the client's own is kept, and an
// abort by it is sent only when it would reach no other live request: engines
// match rids by prefix.
func TestF16ARidThatOthersStartWithIsNotAborted(t *testing.T) {
	t.Parallel()
	slow := func(c *simengine.Config) { c.Speed.TokenInterval = 20 * time.Millisecond }
	f := func(name, leaver, stayer string, told bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: slow})
			leaving := s.listen(generateCall(500).with(object{"rid": leaver}).streamed())
			staying := s.start(generateCall(150).with(object{"rid": stayer}).streamed())
			leaving.next()
			arrived(t, s.d, 2)
			left := time.Now()
			leaving.leave()
			freed(t, s.d, 0, left)
			r := staying.wait(t)
			require.NoError(t, r.err)
			assert.Equal(t, 200, r.status)
			assert.Len(t, r.events(), 151)
			assert.True(t, generations(s.d)[1].AbortedAt.IsZero())
			if told {
				s.told(s.d, leaver)
			} else {
				assert.Empty(t, aborts(s.d), "the socket alone is closed")
			}
		})
	}
	f("a prefix of another's", "a", "ab", false)
	f("equal but for the end", "ab", "aa", true)
	f("longer than another's", "ab", "a", true)
}
