package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	routers "github.com/tandem-pd/tandem/integration/stack"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// choosing gives each role a policy of its own.
func choosing(prefill, decode string) func(*pools.Options) {
	return func(o *pools.Options) {
		o.Policies = func(string) (p pools.Policies, err error) {
			if p.Prefill, err = policy.ByName(prefill); err != nil {
				return p, err
			}
			p.Decode, err = policy.ByName(decode)
			return p, err
		}
	}
}

// shares requires that each has its part of all, give or take so many points of a
// hundred.
func shares(t *testing.T, counts []int, points float64) {
	t.Helper()
	all := 0
	for _, n := range counts {
		all += n
	}
	require.Positive(t, all)
	for _, n := range counts {
		assert.InDelta(t, 100/float64(len(counts)), 100*float64(n)/float64(all), points, "%v", counts)
	}
}

// distinct is a prompt that nothing else begins like, of n bytes.
func distinct(i, n int) string { return fmt.Sprintf("%08d", i) + strings.Repeat(" word", (n-8)/5) }

// generating asks for tokens behind a prompt.
func generating(text string, tokens int) call { return generateCall(tokens).with(object{"text": text}) }

// ample is an engine with room for much at once, which takes its time: its own
// timers are the real ones.
func ample(c *simengine.Config) { c.ContextLength, c.MaxTotalTokens, c.TimeScale = 1<<20, 4<<20, 1 }

// only has nobody of the prefills but one take work while f runs.
func (s *stack) only(prefill int, f func()) {
	s.t.Helper()
	for i := range s.prefills {
		if i != prefill {
			require.True(s.t, s.set.Drain(s.workers[i].ID))
		}
	}
	f()
	for i := range s.prefills {
		s.set.Resume(s.workers[i].ID)
	}
}

// F67: what is sent is counted when it is decided, on every path: with all at once
// nobody has it all.
func TestF67AllAtOnceAreSpread(t *testing.T) {
	t.Parallel()
	f := func(name string, prompts int) {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, setup{
				prefills: 3, decodes: 2, policy: name, decode: ample,
				prefill: func(c *simengine.Config) { ample(c); c.Speed.PrefillDelay = time.Second },
			})
			together(300, 300, func(i int) {
				r := s.post(generating(distinct(i%prompts, 60), 1))
				assert.Equal(t, 200, r.status, r.body)
			})
			shares(t, counts(s, true), 5)
			assert.Equal(t, 404, s.do(http.MethodPost, "/foo/generate", `{"text":"a"}`).status)
			s.idle()
		})
	}
	f("power_of_two", 300)
	f("cache_aware", 1)
}

// F68: a prompt that nobody knows goes where there is nothing to do, however much
// is known of that one.
func TestF68AMissGoesToWhoIsIdle(t *testing.T) {
	t.Parallel()
	const waiting = 50
	s := newStack(t, setup{prefills: 2, policy: "cache_aware", prefill: ample, decode: ample})
	s.only(1, func() {
		for i := range 40 {
			s.ok(generating(distinct(1000+i, 1500), 1))
		}
	})
	slow := func(simengine.Record) *simengine.Fault { return &simengine.Fault{Delay: 4 * time.Second} }
	s.p.SetFault(slow)
	var pendings []*pending
	s.only(0, func() {
		for i := range waiting {
			pendings = append(pendings, s.start(generating(distinct(2000+i, 600), 1)))
		}
		s.eventually(func() bool { return s.inFlight("prefill-0") == waiting }, "they wait at prefill-0")
	})
	for i := range 20 {
		s.ok(generating(distinct(3000+i, 600), 1))
	}
	assert.GreaterOrEqual(t, len(generations(s.prefills[1]))-40, 18)
	for _, p := range pendings {
		assert.Equal(t, 200, p.wait(t).status)
	}
}

// F68: decode is chosen by its load.
func TestF68DecodesShareWhatHasNoPrefix(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decodes: 5, pools: choosing("cache_aware", "power_of_two"), prefill: ample,
		decode: func(c *simengine.Config) { ample(c); c.Speed.TokenInterval = 5 * time.Millisecond },
	})
	together(512, 32, func(i int) {
		assert.Equal(t, 200, s.post(generating(distinct(i, 600), 8)).status)
	})
	shares(t, counts(s, false), 4)
}

// F70: among those with nothing to do it is not always the first.
func TestF70OneAtATimeEveryWorkerHasItsShare(t *testing.T) {
	t.Parallel()
	f := func(name string, n int, points float64) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 4, decodes: 4, policy: name, prefill: ample, decode: ample})
			for i := range n {
				s.ok(generating(distinct(i, 600), 1))
			}
			shares(t, counts(s, true), points)
			shares(t, counts(s, false), points)
		})
	}
	f("cache_aware", 400, 6)
	f("power_of_two", 200, 15) // by chance, which strays by three
}

// F71: one long prompt is more than three short ones.
func TestF71LoadIsWorkAndNotRequests(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"cache_aware", "power_of_two"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefills: 2, policy: name, prefill: ample, decode: ample})
			for _, e := range s.prefills {
				e.SetFault(func(r simengine.Record) *simengine.Fault {
					if strings.Contains(string(r.Body), "hold") {
						return &simengine.Fault{Delay: 3 * time.Second}
					}
					return nil
				})
			}
			var held []*pending
			s.only(0, func() {
				held = append(held, s.start(generating("hold "+distinct(0, 480_000), 1)))
				s.eventually(func() bool { return s.inFlight("prefill-0") == 1 }, "a long prompt is at prefill-0")
			})
			s.only(1, func() {
				for i := range 3 {
					held = append(held, s.start(generating("hold "+distinct(1+i, 400), 1)))
				}
				s.eventually(func() bool { return s.inFlight("prefill-1") == 3 }, "three short ones are at prefill-1")
			})
			for i := range 5 {
				s.ok(generating(distinct(10+i, 400), 1))
			}
			assert.Len(t, generations(s.prefills[1]), 3+5)
			for _, p := range held {
				assert.Equal(t, 200, p.wait(t).status)
			}
		})
	}
}

// F73: who is full says so, and is passed over at once. There is no other measure of
// it, and so none that could be late or overwritten. Only where all are full does
// the client hear of it.
func TestF73WhoIsFullIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decodes: 4, policy: "power_of_two", prefill: ample, decode: ample, orchestrator: retrying(9, nil),
	})
	full := always(simengine.Fault{Status: 503, Header: http.Header{"Retry-After": {"1"}}, Body: []byte(`{"message":"full"}`)})
	for _, d := range s.decodes[:3] {
		d.SetFault(full)
	}
	for range 100 {
		s.ok(generateCall(1))
	}
	n := counts(s, false)
	assert.Equal(t, 100, n[3])
	assert.Less(t, n[0]+n[1]+n[2], 50, "each is asked about once a second")
	s.decodes[3].SetFault(full)
	r := s.post(generateCall(1))
	assert.Equal(t, 503, r.status)
	assert.NotEmpty(t, r.header.Get("Retry-After"))
}

// F74: load is what this router has sent and has not seen the end of. No engine is
// asked for it, and so one that does not tell changes nothing.
func TestF74EnginesThatDoNotTellTheirLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 3, decodes: 3, policy: "power_of_two", health: watched, prefill: ample,
		decode: func(c *simengine.Config) { ample(c); c.Speed.TokenInterval = 5 * time.Millisecond },
	})
	telemetry := []string{"/metrics", "/v1/loads", "/get_load", "/get_loads"}
	for _, e := range s.engines() {
		for _, path := range telemetry {
			e.SetPathFault(path, &simengine.Fault{Hang: true})
		}
	}
	s.ready()
	together(300, 24, func(i int) {
		assert.Equal(t, 200, s.post(generating(distinct(i, 60), 8)).status)
	})
	shares(t, counts(s, true), 10)
	shares(t, counts(s, false), 10)
	for _, e := range s.engines() {
		for _, r := range e.Records() {
			assert.NotContains(t, telemetry, r.Path)
		}
	}
}

// F77: a prefix stays with its prefill while decode is chosen by load.
func TestF77EachRoleHasItsOwnPolicy(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 4, decodes: 4, pools: choosing("cache_aware", "power_of_two"), prefill: ample,
		decode: func(c *simengine.Config) { ample(c); slowly(c) },
	})
	var decoding []*pending
	for i := range 100 {
		decoding = append(decoding, s.start(generating(longText("a system prompt")+distinct(i, 60), 100)))
		s.eventually(func() bool {
			n := 0
			for _, p := range s.prefills {
				n += p.Loads().Served
			}
			return n == i+1 && s.prefilling() == 0
		}, "prompt %d is computed", i)
	}
	for _, p := range decoding {
		assert.Equal(t, 200, p.wait(t).status)
	}
	assert.Equal(t, 100, slices.Max(counts(s, true)), "one has them all: %v", counts(s, true))
	shares(t, counts(s, false), 8)
}

// prefilling is what all prefills have in flight.
func (s *stack) prefilling() (n int64) {
	for _, w := range s.set.Status().Workers {
		if w.Worker.Role == pd.Prefill {
			n += w.InFlight
		}
	}
	return n
}

// F79: prefill is free when it has answered, however long decode goes on.
func TestF79PrefillIsFreeWhileDecodeStreams(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly})
	l := s.listen(generateCall(500).streamed())
	l.next()
	s.eventually(func() bool { return s.inFlight("prefill-0") == 0 }, "prefill has nothing in flight")
	for range 3 {
		l.next()
		assert.Zero(t, s.inFlight("prefill-0"))
		assert.EqualValues(t, 1, s.inFlight("decode-0"))
	}
	l.leave()
	s.idle()
}

// F80: an engine that has lost its cache keeps no prompt for what it had. Nobody
// says that it has: its answers do.
func TestF80WhatAnEngineHasLostIsForgotten(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 4, policy: "cache_aware", prefill: ample, decode: ample})
	ask := func(i int) { s.ok(generating(longText("a system prompt")+distinct(i, 60), 1)) }
	for i := range 10 {
		ask(i)
		s.idle() // what waits somewhere speaks against it
	}
	require.Equal(t, 10, slices.Max(counts(s, true)), "the prefix stays where it is")
	for i := range 30 {
		for _, e := range s.prefills {
			resp, err := s.client.Post(e.URL()+"/flush_cache", "application/json", nil)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		ask(10 + i)
		s.idle()
	}
	assert.Less(t, slices.Max(counts(s, true)), 30, "and not for ever: %v", counts(s, true))
}

// F80: a router that has just started sends prompts where those that have been
// running for long do.
func TestF80AFreshRouterAgreesWithAnOldOne(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefills: 4, policy: "prefix_hash", prefill: ample, decode: ample})
	homes := func(url string) map[int]string {
		var mu sync.Mutex
		homes := map[int]string{}
		together(100, 8, func(i int) {
			c := generating(distinct(i, 1500), 1)
			resp, err := s.client.Post(url+c.path, "application/json", strings.NewReader(c.json()))
			if !assert.NoError(t, err) {
				return
			}
			var answer struct {
				Meta struct {
					Sim struct{ Prefill string } `json:"sim"`
				} `json:"meta_info"`
			}
			if assert.NoError(t, json.Unmarshal([]byte(whole(resp).body), &answer)) {
				mu.Lock()
				defer mu.Unlock()
				homes[i] = answer.Meta.Sim.Prefill
			}
		})
		return homes
	}
	homes(s.url)
	old := homes(s.url)
	fresh, err := routers.Start(routers.Options{Workers: s.workers, Policy: "prefix_hash"})
	require.NoError(t, err)
	defer func() { assert.NoError(t, fresh.Close()) }()
	same := 0
	for i, home := range homes(fresh.URL) {
		assert.NotEmpty(t, home)
		if home == old[i] {
			same++
		}
	}
	assert.GreaterOrEqual(t, same, 80)
}
