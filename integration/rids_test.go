package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
)

// abortRequest is a client's POST /abort_request.
func (s *stack) abortRequest(fields object) reply {
	s.t.Helper()
	return s.post(call{"", "/abort_request", fields})
}

// slowly makes a decode of which a call for some hundred tokens is not done soon.
func slowly(c *simengine.Config) { c.Speed.TokenInterval = 20 * time.Millisecond }

func TestAClientsRidIsKept(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	f := func(name string, c call, want ...string) {
		t.Run(name, func(t *testing.T) {
			before := len(generations(s.p))
			r := s.ok(c)
			for _, e := range s.engines() {
				assert.Equal(t, want, generations(e)[before].Rids)
			}
			if c.path == generatePath {
				for i, item := range items(t, r.body) {
					assert.Equal(t, want[i], item.Meta.ID)
				}
			}
		})
	}
	one, batch := generateCall(2), generateCall(2).with(object{"text": []string{"a", "b"}})
	f("one", one.with(object{"rid": "mine"}), "mine")
	f("one of n = 1", sampled(one, 1, 1).with(object{"rid": "mine-2"}), "mine-2")
	f("odd characters", one.with(object{"rid": "m\"\u00e9/\u20ac"}), "m\"\u00e9/\u20ac")
	f("a list for a batch", batch.with(object{"rid": []string{"x", "y"}}), "x", "y")
	// These are the names that an engine makes of one rid.
	f("one for a batch", batch.with(object{"rid": "b"}), "b_0", "b_1")
	f("chat", chatCall(2).with(object{"rid": "c"}), "c")
	f("completions", completionsCall(2).with(object{"rid": "d"}), "d")
}

func TestWithoutARidEachExchangeGetsOneOfTheRouters(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	seen := map[string]bool{}
	for _, rid := range []any{nil, "", "absent"} {
		for _, c := range calls(2) {
			if rid != "absent" {
				c = c.with(object{"rid": rid})
			}
			before := len(generations(s.p))
			s.ok(c)
			got := generations(s.p)[before].Rids
			assert.Equal(t, got, generations(s.d)[before].Rids)
			require.Len(t, got, 1)
			assert.Len(t, got[0], 32)
			assert.False(t, seen[got[0]])
			seen[got[0]] = true
		}
	}
}

func TestRidsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{})
	for _, c := range []call{
		generateCall(1).with(object{"rid": 7}), generateCall(1).with(object{"rid": []string{"a"}}),
		generateCall(1).with(object{"text": []string{"a", "b"}, "rid": []string{"a"}}),
		generateCall(1).with(object{"text": []string{"a", "b"}, "rid": []any{"a", ""}}),
	} {
		r := s.post(c)
		assert.Equal(t, 400, r.status, r.body)
	}
	assert.Empty(t, s.p.Records())
}

// A second request of the same rid is refused by the engines; the first one is
// none the worse for it.
func TestADuplicateRidIsRefusedAndHurtsNobody(t *testing.T) {
	t.Parallel()
	for _, c := range calls(150) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: slowly})
			c := c.with(object{"rid": "same"})
			first := s.start(c)
			s.eventually(func() bool { return s.d.Loads().Running == 1 }, "the first one runs")
			second := s.post(c)
			assert.Equal(t, 400, second.status)
			assert.Contains(t, second.body, "Duplicate request ID detected: same")
			r := first.wait(t)
			require.NoError(t, r.err)
			assert.Equal(t, 200, r.status)
			want, err := simengine.ExpectedFor(c.path, []byte(c.json()))
			require.NoError(t, err)
			assert.Equal(t, want[0].Text, textOf(t, c.path, r)[0])
		})
	}
}

func TestAnAbortRequestReachesWhatRuns(t *testing.T) {
	t.Parallel()
	for _, c := range calls(500) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: slowly})
			running := s.start(c.with(object{"rid": "run"}))
			s.eventually(func() bool { return s.d.Loads().Running == 1 }, "it runs")
			asked := time.Now()
			assert.Equal(t, 200, s.abortRequest(object{"rid": "run"}).status)
			freed(t, s.d, 0, asked)
			r := running.wait(t)
			require.NoError(t, r.err, "the engine ends it well")
			assert.Equal(t, 200, r.status)
			assert.Contains(t, r.body, `abort`)
			for _, outcomes := range s.outcomes(2) {
				assert.NotContains(t, fmt.Sprint(outcomes), "fault", "nobody is blamed")
			}
		})
	}
}

func TestAnAbortRequestReachesWhatWaits(t *testing.T) {
	t.Parallel()
	for _, c := range calls(10) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, decodes: 2, prefill: func(c *simengine.Config) { c.Speed.PrefillDelay = time.Minute }})
			waiting := s.start(c.with(object{"rid": "wait"}))
			s.eventually(func() bool { return s.d.Loads().Transfer == 1 && s.p.Loads().Waiting == 1 }, "both wait")
			asked := time.Now()
			assert.Equal(t, 200, s.abortRequest(object{"rid": "wait"}).status)
			over(t, s.p, 0, asked)
			over(t, s.d, 0, asked)
			r := waiting.wait(t)
			assert.GreaterOrEqual(t, r.status, 500, "%s", r.body)
			for id, outcomes := range s.outcomes(2) {
				assert.Equal(t, "[cancelled]", fmt.Sprint(outcomes), "%s is not blamed", id)
			}
			assert.Empty(t, aborts(s.prefills[1]), "only who holds the rid is asked")
			assert.Empty(t, aborts(s.decodes[1]))
			assert.Len(t, generations(s.p), 1, "and nothing is tried again")
		})
	}
}

// Here both engines answer 500 in the very words of a lost peer, so the router
// has to remember that it was asked.
func TestAnAbortRequestReachesWhatWaitsForKVSpace(t *testing.T) {
	t.Parallel()
	for _, c := range calls(500) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{
				decode:       func(c *simengine.Config) { c.MaxTotalTokens = 1000; slowly(c) },
				orchestrator: func(o *pd.Orchestrator) { o.Retry.MaxAttempts = 3 },
			})
			holder := s.start(generateCall(950).streamed())
			s.eventually(func() bool { return s.d.Loads().Running == 1 }, "the KV space is taken")
			waiting := s.start(c.with(object{"rid": "wait"}))
			s.eventually(func() bool { return s.d.Loads().Prealloc == 1 && s.p.Loads().Bootstrap == 1 }, "both wait")
			asked := time.Now()
			assert.Equal(t, 200, s.abortRequest(object{"rid": "wait"}).status)
			over(t, s.p, 1, asked)
			over(t, s.d, 1, asked)
			r := waiting.wait(t)
			assert.GreaterOrEqual(t, r.status, 500, "%s", r.body)
			holder.leave()
			s.idle()
			s.outcomes(4)
			for _, leg := range s.legs {
				if leg.Rid != "wait" {
					continue
				}
				assert.Equal(t, pd.Left, leg.Outcome, "%s is not blamed", leg.Worker)
				assert.Equal(t, 1, leg.Attempt, "nothing is tried again")
			}
		})
	}
}

func TestAnAbortRequestReachesEverySample(t *testing.T) {
	t.Parallel()
	for _, c := range []call{generateCall(500), chatCall(500), completionsCall(500).streamed()} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{decode: slowly})
			running := s.start(sampled(c, 3, 1).with(object{"rid": "call"}))
			s.eventually(func() bool { return s.d.Loads().Running == 3 }, "all samples run")
			for _, rec := range generations(s.d) {
				assert.NotEqual(t, "call", rec.Rids[0], "samples have rids of the router's")
			}
			asked := time.Now()
			assert.Equal(t, 200, s.abortRequest(object{"rid": "call"}).status)
			for i := range 3 {
				freed(t, s.d, i, asked)
			}
			r := running.wait(t)
			assert.Equal(t, 200, r.status)
			assert.Equal(t, 3, strings.Count(strings.ReplaceAll(r.body, `"type":"abort"`, `"finish_reason":"abort"`), `"finish_reason":"abort"`))
		})
	}
}

func TestAnAbortRequestForAnUnknownRidGoesToAll(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 3, decode: slowly})
	bystander := s.start(generateCall(10))
	assert.Equal(t, 200, s.abortRequest(object{"rid": "nobody"}).status)
	for _, e := range s.engines() {
		require.Len(t, aborts(e), 1, e.ID())
		assert.Equal(t, `{"rid":"nobody"}`, aborts(e)[0])
	}
	assert.Equal(t, 200, bystander.wait(t).status)
}

func TestAbortAllReachesAll(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 2, decodes: 2, decode: slowly})
	var running []*pending
	for _, c := range []call{generateCall(500), chatCall(500).streamed(), completionsCall(500), generateCall(500).streamed()} {
		running = append(running, s.start(c))
	}
	s.eventually(func() bool { return s.decodes[0].Loads().Running+s.decodes[1].Loads().Running == 4 }, "all run")
	asked := time.Now()
	assert.Equal(t, 200, s.abortRequest(object{"abort_all": true}).status)
	for _, r := range running {
		assert.Equal(t, 200, r.wait(t).status)
	}
	for _, d := range s.decodes {
		for i := range generations(d) {
			freed(t, d, i, asked)
		}
	}
}

func TestAnAbortRequestThatNamesNothingIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly})
	running := s.start(generateCall(20))
	arrived(t, s.d, 1)
	for _, body := range []string{``, `{}`, `{"rid":""}`, `{"rid":null}`, `{"rid":7}`, `[]`, `{bad`, `{"abort_all":false}`} {
		r := s.do(http.MethodPost, "/abort_request", body)
		assert.Equal(t, 400, r.status, body)
	}
	assert.Empty(t, aborts(s.d), "an empty rid would be the front of every other")
	assert.Equal(t, 200, running.wait(t).status)
}
