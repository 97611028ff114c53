package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// Headers that say where a request should go.
const (
	routingKey   = "X-SMG-Routing-Key"
	targetWorker = "X-SMG-Target-Worker"
)

// chosen are all eight policies, by what each of them keeps to. It holds for each
// role, on each endpoint and for each form of a prompt.
func chosen() []struct {
	policy   string
	prepare  func(b *bench) // once, nil for nothing
	keeps    string
	requires func(b *bench, f form)
} {
	return []struct {
		policy   string
		prepare  func(*bench)
		keeps    string
		requires func(*bench, form)
	}{
		{"random", nil, "anyone is taken, for one prompt and one key", (*bench).scatters},
		{"round_robin", nil, "each has its turn, for one prompt and one key", (*bench).takesTurns},
		{"power_of_two", nil, "a busy one gets nothing while others are idle", (*bench).sparesTheBusy},
		{"cache_aware", nil, "a tenant stays where its prefix is, behind any suffix; tenants spread", (*bench).keepsTenants},
		{"prefix_hash", nil, "a beginning stays with one; beginnings spread", (*bench).keepsTenants},
		{"consistent_hashing", nil, "a key stays with one, whatever the prompt; keys spread", (*bench).keepsKeys},
		{"manual", nil, "a key stays with one, whatever the prompt; keys spread", (*bench).keepsKeys},
		{"bucket", (*bench).seesLengths, "short ones have one, long ones the others", (*bench).partsLengths},
	}
}

// piece is a part of a prompt that is like no piece of another seed, from its first
// byte on.
type piece struct{ seed, bytes int }

func (p piece) text() string { return distinct(p.seed, p.bytes) }

// ids are as many bytes of token ids.
func (p piece) ids() []int {
	ids := make([]int, p.bytes/4)
	for i := range ids {
		ids[i] = 6 + (p.seed*101+i*37)%500
	}
	return ids
}

// form is where in a body a prompt is.
type form struct {
	name string
	call func(head, tail piece) call
}

// forms are all that a prompt may be, and all that makes up a conversation.
func forms() []form {
	says := func(role string, content any) object { return object{"role": role, "content": content} }
	chat := func(messages ...object) call { return chatCall(1).with(object{"messages": messages}) }
	part := func(text string) object { return object{"type": "text", "text": text} }
	return []form{
		{"generate, text", func(h, t piece) call { return generateCall(1).with(object{"text": h.text() + t.text()}) }},
		{"generate, token ids", func(h, t piece) call {
			c := generateCall(1).with(object{"input_ids": append(h.ids(), t.ids()...)})
			delete(c.body, "text")
			return c
		}},
		{"completions, text", func(h, t piece) call { return completionsCall(1).with(object{"prompt": h.text() + t.text()}) }},
		{"completions, token ids", func(h, t piece) call {
			return completionsCall(1).with(object{"prompt": append(h.ids(), t.ids()...)})
		}},
		{"chat, one turn behind a system's", func(h, t piece) call { return chat(says("system", h.text()), says("user", t.text())) }},
		{"chat, several turns", func(h, t piece) call {
			return chat(says("system", "Help."), says("user", h.text()), says("assistant", "Yes?"), says("user", t.text()))
		}},
		{"chat, parts of a turn", func(h, t piece) call {
			return chat(says("user", []object{part("Read: "), part(h.text())}), says("user", []object{part(t.text())}))
		}},
		{"chat, tools", func(h, t piece) call {
			tool := object{"type": "function", "function": object{"name": "f", "description": h.text()}}
			return chat(says("user", t.text())).with(object{"tools": []object{tool}})
		}},
	}
}

// bench is a stack with four workers of the role that a policy chooses among, and
// one of the other.
type bench struct {
	*stack
	t       *testing.T // of the case
	engines []*simengine.Engine
	ids     string // the workers' ids without their numbers
	seed    int    // the last that was used
}

func newBench(t *testing.T, name, role string) *bench {
	t.Helper()
	want := setup{prefills: 4, decodes: 1, prefill: ample, decode: ample}
	if role == "decode" {
		want.prefills, want.decodes = 1, 4
	}
	want.pools = func(o *pools.Options) {
		o.Policies = func(string) (p pools.Policies, err error) {
			p.Prefill, p.Decode = policy.Targeted(named(t, name), new(policy.RoundRobin))
			if role == "decode" {
				p.Prefill, p.Decode = policy.Targeted(new(policy.RoundRobin), named(t, name))
			}
			return p, nil
		}
	}
	s := newStack(t, want)
	b := &bench{stack: s, t: t, engines: s.prefills, ids: role + "-"}
	if role == "decode" {
		b.engines = s.decodes
	}
	return b
}

// named makes any of the policies.
func named(t *testing.T, name string) pools.Policy {
	t.Helper()
	if name == "manual" {
		p, err := policy.NewManual(t.Context(), policy.ManualOptions{})
		require.NoError(t, err)
		return p
	}
	p, err := policy.ByName(name)
	require.NoError(t, err)
	return p
}

// another is a piece that was not before.
func (b *bench) another(size int) piece {
	b.seed++
	return piece{b.seed, size}
}

// got is how many requests each engine has had.
func (b *bench) got() (n []int) {
	for _, e := range b.engines {
		n = append(n, len(generations(e)))
	}
	return n
}

// serves makes a call that must succeed and says which of the engines had it. All
// are idle then.
func (b *bench) serves(c call, header ...string) (who int) {
	b.t.Helper()
	before := b.got()
	r := b.post(c, header...)
	require.Equal(b.t, http.StatusOK, r.status, "%.500s", r.body)
	b.eventually(func() bool { return b.free() }, "every lease is given back")
	who = -1
	for i, n := range b.got() {
		if n > before[i] {
			require.Equal(b.t, -1, who, "one has had it")
			who = i
		}
	}
	require.GreaterOrEqual(b.t, who, 0, "one has had it")
	return who
}

func (b *bench) free() bool {
	return !slices.ContainsFunc(b.set.Members(), func(m *pools.Member) bool { return m.InFlight() > 0 })
}

// several requires that there is more than one, among so many draws of four.
func (b *bench) several(homes []int) {
	b.t.Helper()
	assert.Greater(b.t, len(slices.Compact(slices.Sorted(slices.Values(homes)))), 1, "%v", homes)
}

// Sizes of pieces, in bytes.
const (
	short  = 60
	prefix = 1100 // more than any policy needs to know a beginning by
	suffix = 3000 // much more than the prefix
)

func (b *bench) scatters(f form) {
	c := f.call(b.another(short), b.another(short))
	var homes []int
	for range 12 {
		homes = append(homes, b.serves(c, routingKey, "one"))
	}
	b.several(homes)
}

func (b *bench) takesTurns(f form) {
	c := f.call(b.another(short), b.another(short))
	var homes []int
	for range 8 {
		homes = append(homes, b.serves(c, routingKey, "one"))
	}
	assert.Equal(b.t, homes[:4], homes[4:])
	assert.ElementsMatch(b.t, []int{0, 1, 2, 3}, homes[:4])
}

func (b *bench) sparesTheBusy(f form) {
	const busy = 2
	c := f.call(b.another(short), b.another(short))
	b.engines[busy].SetFault(func(r simengine.Record) *simengine.Fault {
		return &simengine.Fault{Hang: bytes.Contains(r.Body, []byte(`"held"`))}
	})
	before := b.got()[busy]
	var held []*pending
	for range 2 {
		held = append(held, b.start(c.with(object{"user": "held"}), targetWorker, fmt.Sprint(b.ids, busy)))
	}
	b.eventually(func() bool { return b.got()[busy] == before+2 }, "it is busy")
	for range 6 {
		r := b.post(c, routingKey, "one")
		require.Equal(b.t, http.StatusOK, r.status, r.body)
	}
	assert.Equal(b.t, before+2, b.got()[busy])
	for _, p := range held {
		p.leave()
		require.Error(b.t, p.wait(b.t).err)
	}
	b.idle()
}

func (b *bench) keepsTenants(f form) {
	var homes []int
	for range 6 {
		tenant := b.another(prefix)
		home := b.serves(f.call(tenant, b.another(suffix)))
		assert.Equal(b.t, home, b.serves(f.call(tenant, b.another(suffix))))
		homes = append(homes, home)
	}
	b.several(homes)
}

func (b *bench) keepsKeys(f form) {
	var homes []int
	key := func(i int) string { return fmt.Sprintf("%s %d", f.name, i) }
	for i := range 12 {
		homes = append(homes, b.serves(f.call(b.another(short), b.another(short)), routingKey, key(i)))
	}
	for i := range 4 {
		assert.Equal(b.t, homes[i], b.serves(f.call(b.another(short), b.another(short)), routingKey, key(i)))
	}
	b.several(homes)
}

// seesLengths has a policy see both kinds of length, of all forms.
func (b *bench) seesLengths() {
	for range 2 {
		for _, f := range forms() {
			for range 2 {
				b.serves(f.call(b.another(short), b.another(short)))
			}
			b.serves(f.call(b.another(suffix), b.another(short)))
		}
	}
}

func (b *bench) partsLengths(f form) {
	first := slices.IndexFunc(b.engines, func(e *simengine.Engine) bool {
		return !slices.ContainsFunc(b.engines, func(other *simengine.Engine) bool { return other.URL() < e.URL() })
	})
	for range 4 {
		assert.Equal(b.t, first, b.serves(f.call(b.another(short), b.another(short))), "a short one")
	}
	var homes []int
	for range 4 {
		homes = append(homes, b.serves(f.call(b.another(suffix), b.another(short))))
	}
	assert.NotContains(b.t, homes, first, "a long one")
}

// What a policy is chosen for, it does: for prefills as for decodes, and wherever
// the prompt is.
func TestPoliciesByEndpointAndRole(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"prefill", "decode"} {
		for _, c := range chosen() {
			t.Run(role+": "+c.policy+": "+c.keeps, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, c.policy, role)
				if c.prepare != nil {
					c.prepare(b)
				}
				for _, f := range forms() {
					t.Run(f.name, func(t *testing.T) {
						of := *b
						of.t = t
						c.requires(&of, f)
						b.seed = of.seed
					})
				}
			})
		}
	}
}

// both is who of each role served a call.
func (s *stack) both(c call, header ...string) string {
	s.t.Helper()
	before := append(counts(s, true), counts(s, false)...)
	r := s.post(c, header...)
	require.Equal(s.t, http.StatusOK, r.status, "%.500s", r.body)
	var who []string
	for i, n := range append(counts(s, true), counts(s, false)...) {
		if n > before[i] {
			who = append(who, string(s.workers[i].ID))
		}
	}
	return strings.Join(who, ",")
}

// newKeyed is a stack of four and four with one policy for both roles, which the
// header that names a worker comes before.
func newKeyed(t *testing.T, name string, n int) *stack {
	t.Helper()
	return newStack(t, setup{prefills: n, decodes: n, prefill: ample, decode: ample, pools: func(o *pools.Options) {
		o.Policies = func(string) (p pools.Policies, err error) {
			p.Prefill, p.Decode = policy.Targeted(named(t, name), named(t, name))
			return p, nil
		}
	}})
}

// What a session is: the key of the header, else the address of the client, else
// the cookie. Whose requests are authorised alike have nothing in common.
func TestWhatKeepsASessionTogether(t *testing.T) {
	t.Parallel()
	const forwarded, cookie, authorization = "X-Forwarded-For", "Cookie", "Authorization"
	for _, name := range []string{"consistent_hashing", "manual"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newKeyed(t, name, 4)
			i := 0
			f := func(what string, together bool, headers func(i int) []string) {
				t.Helper()
				seen := map[string]bool{}
				for range 14 {
					i++
					seen[s.both(generating(distinct(i, short), 1), headers(i)...)] = true
					s.idle()
				}
				if together {
					assert.Len(t, seen, 1, what)
				} else {
					assert.Greater(t, len(seen), 1, what)
				}
			}
			fresh := func(i int) string { return fmt.Sprint("fresh-", i) }
			f("one key, from everywhere", true, func(i int) []string {
				return []string{routingKey, "one", forwarded, fresh(i), cookie, fresh(i), authorization, fresh(i)}
			})
			f("one client behind any proxies", true, func(i int) []string {
				return []string{forwarded, "10.0.0.7, " + fresh(i), cookie, fresh(i), authorization, fresh(i)}
			})
			f("one cookie", true, func(i int) []string { return []string{cookie, "session=7", authorization, fresh(i)} })
			f("keys of one client", false, func(i int) []string {
				return []string{routingKey, fresh(i), forwarded, "10.0.0.7", cookie, "session=7"}
			})
			f("clients with one cookie", false, func(i int) []string { return []string{forwarded, fresh(i), cookie, "session=7"} })
			f("one that authorises all", false, func(int) []string { return []string{authorization, "Bearer all-of-them"} })
		})
	}
}

// A worker that is named is taken, whatever the policy would: by its id, or of both
// roles by an index in the order of their URLs.
func TestAWorkerIsNamedInAnyForm(t *testing.T) {
	t.Parallel()
	s := newKeyed(t, "cache_aware", 3)
	byURL := func(engines []*simengine.Engine) (ids []string) {
		sorted := slices.SortedFunc(slices.Values(engines), func(a, b *simengine.Engine) int { return strings.Compare(a.URL(), b.URL()) })
		for _, e := range sorted {
			ids = append(ids, e.ID())
		}
		return ids
	}
	prefills, decodes := byURL(s.prefills), byURL(s.decodes)
	for i, f := range forms() {
		t.Run(f.name, func(t *testing.T) {
			c := f.call(piece{i, short}, piece{i, short})
			s.both(c) // whoever has it cached
			for n := range 3 {
				id := fmt.Sprint("prefill-", n)
				assert.True(t, strings.HasPrefix(s.both(c, targetWorker, id), id+","), id)
				id = fmt.Sprint("decode-", n)
				assert.True(t, strings.HasSuffix(s.both(c, targetWorker, id), ","+id), id)
				pair := fmt.Sprintf("prefill-%d,decode-%d", n, (n+1)%3)
				assert.Equal(t, pair, s.both(c, targetWorker, pair))
				assert.Equal(t, prefills[n]+","+decodes[n], s.both(c, targetWorker, fmt.Sprint(n)), "index %d", n)
			}
			sent := append(counts(s, true), counts(s, false)...)
			for _, nobody := range []string{"3", "-1", "prefill-9", "prefill-0,prefill-1"} {
				assert.Equal(t, http.StatusServiceUnavailable, s.post(c, targetWorker, nobody).status, nobody)
			}
			assert.Equal(t, sent, append(counts(s, true), counts(s, false)...), "nothing is sent elsewhere")
		})
	}
}
