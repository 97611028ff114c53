package simengine

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// become tells an engine to change its role.
func (p *pair) become(e *Engine, role string) reply {
	return p.post(p.t.Context(), e, rolePath, object{"new_role": role})
}

func TestAPairCanTradePlaces(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, d *Config) { a.RoleSwitch, d.RoleSwitch = true, true })
	p.meets()
	oldBootstrap := "http://" + p.prefill.current().front.Load().addr
	assert.Zero(t, p.decode.BootstrapPort())

	answer := p.become(p.decode, "prefill").object(t)
	assert.Equal(t, []any{true, "decode", "prefill"}, []any{answer["success"], answer["old_role"], answer["new_role"]})
	assert.NotEmpty(t, answer["message"])
	assert.Equal(t, http.StatusOK, p.become(p.prefill, "decode").status)
	require.Error(t, p.do(mustRequest(t, oldBootstrap+"/health")).err, "a decode has no bootstrap server")
	p.prefill, p.decode = p.decode, p.prefill
	assert.Equal(t, []Role{Prefill, Decode}, []Role{p.prefill.Role(), p.decode.Role()})
	assert.Positive(t, p.prefill.BootstrapPort())
	assert.Zero(t, p.decode.BootstrapPort())

	for e, launched := range map[*Engine]string{p.prefill: "decode", p.decode: "prefill"} {
		info := p.get(e, "/server_info").object(t)
		assert.Equal(t, launched, info["disaggregation_mode"], "the top level keeps the role of the start")
		live := info["internal_states"].([]any)[0].(object)["disaggregation_mode"]
		assert.Equal(t, string(e.Role()), live)
		if e == p.prefill {
			assert.Equal(t, float64(e.BootstrapPort()), info["disaggregation_bootstrap_port"])
		}
	}
	body := object{"text": "Hi", "sampling_params": object{"max_new_tokens": 8, "ignore_eos": true}}
	want := Expected(Tokenize("Hi"), Params{MaxNewTokens: 8, IgnoreEOS: true})
	for room := range 3 {
		pre, dec := p.both("/generate", p.routed(100+room, body))
		require.Equal(t, http.StatusOK, pre.status, "%s", pre.body)
		require.Equal(t, http.StatusOK, dec.status, "%s", dec.body)
		assert.Equal(t, want.Text, dec.object(t)["text"])
		assert.Equal(t, 0.0, pre.object(t)["meta_info"].(object)["finish_reason"].(object)["length"])
	}

	port := p.prefill.BootstrapPort()
	for _, role := range []string{"decode", "prefill"} {
		require.Equal(t, http.StatusOK, p.become(p.prefill, role).status)
	}
	assert.Equal(t, port, p.prefill.BootstrapPort(), "it comes back to the same place")
	require.NoError(t, p.prefill.Restart())
	assert.Equal(t, Decode, p.prefill.Role(), "a restart gives the role of the start")
	require.NoError(t, p.prefill.Fatal())
	require.NoError(t, p.decode.Fatal())
}

func TestRoleSwitchesThatAreRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, _ *Config) { a.RoleSwitch = true })
	whole := newWhole(t, func(c *Config) { c.RoleSwitch = true })
	f := func(name string, e *Engine, body any, words string, safe any) {
		t.Run(name, func(t *testing.T) {
			got := p.post(t.Context(), e, rolePath, body)
			require.Equal(t, http.StatusBadRequest, got.status)
			answer := got.object(t)
			assert.Equal(t, false, answer["success"])
			assert.Contains(t, answer["message"], words)
			assert.Equal(t, safe, answer["safe_to_restore"])
		})
	}
	f("without the flag", p.decode, object{"new_role": "prefill"}, "--enable-pd-role-switch", true)
	f("without a role", p.prefill, object{}, "new_role", true)
	f("to no role of a pair", p.prefill, object{"new_role": "regular"}, "new_role", true)
	f("to something else", p.prefill, object{"new_role": 7}, "new_role", true)
	f("of a whole engine", whole.e, object{"new_role": "decode"}, "not in prefill/decode mode", true)

	assert.Equal(t, http.StatusOK, p.become(p.prefill, "prefill").status, "the role it has is a success")

	waiting := p.start(t.Context(), p.prefill, "/generate", p.routed(1, object{"text": "a"}))
	p.until(p.prefill, func(l Loads) bool { return l.Bootstrap == 1 })
	f("while it is busy", p.prefill, object{"new_role": "decode"}, "not idle", true)
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.prefill, "/abort_request", object{"abort_all": true}).status)
	<-waiting
	p.idle(p.prefill)
	assert.Equal(t, Prefill, p.prefill.Role())
	assert.Equal(t, http.StatusOK, p.become(p.prefill, "decode").status)
}

func TestWhatComesWhileTheRoleChangesIsHeld(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(a, d *Config) {
		d.RoleSwitch, d.SwitchDelay, d.TimeScale = true, 2*time.Second, 1
		a.TimeScale = 1
	})
	changed := make(chan reply, 1)
	go func() { changed <- p.become(p.decode, "prefill") }()
	require.Eventually(t, p.decode.current().roles.swap.closed, patience, time.Millisecond)

	again := p.become(p.decode, "prefill")
	assert.Equal(t, http.StatusBadRequest, again.status)
	assert.Contains(t, string(again.body), "in progress")
	assert.Equal(t, false, again.object(t)["safe_to_restore"])
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.do(mustRequest(t, p.decode.URL()+"/health").WithContext(ctx)).err, context.DeadlineExceeded)

	held := p.start(t.Context(), p.decode, "/generate", object{"text": "a", "bootstrap_host": fakeHost, "bootstrap_room": 0, "rid": "kept"})
	left := p.start(t.Context(), p.decode, "/generate", object{"text": "a", "bootstrap_host": fakeHost, "bootstrap_room": 0, "rid": "left"})
	p.until(p.decode, func(l Loads) bool { return l.Held == 2 && l.Waiting == 2 })
	require.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/abort_request", object{"rid": "left"}).status)
	assert.Contains(t, string((<-left).body), "Abort in waiting queue")

	got := <-changed
	require.Equal(t, http.StatusOK, got.status)
	assert.GreaterOrEqual(t, got.took, 2*time.Second)
	answer := (<-held).object(t)
	assert.Equal(t, 1.0, answer["meta_info"].(object)["completion_tokens"], "it is a prefill that serves it")
	assert.Equal(t, http.StatusOK, p.get(p.decode, "/health").status)
}

func TestARoleSwitchThatFailsBreaksTheEngine(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(_, d *Config) { d.RoleSwitch = true })
	p.decode.SetPathFault(rolePath, &Fault{FailSwitch: true})
	for _, words := range []string{"failure asked for by a test", "has to be restarted"} {
		got := p.become(p.decode, "prefill")
		require.Equal(t, http.StatusBadRequest, got.status)
		assert.Contains(t, string(got.body), words)
		assert.Equal(t, false, got.object(t)["safe_to_restore"])
		p.decode.SetPathFault(rolePath, nil)
	}
	assert.Equal(t, http.StatusServiceUnavailable, p.get(p.decode, "/health").status)
	assert.Equal(t, http.StatusServiceUnavailable, p.post(t.Context(), p.decode, "/generate", p.routed(1, object{"text": "a"})).status)

	require.NoError(t, p.decode.Restart())
	assert.Equal(t, http.StatusOK, p.get(p.decode, "/health").status)
	p.meets()
	assert.Equal(t, http.StatusOK, p.become(p.decode, "prefill").status)
}

func TestAnEngineThatCannotListenAsAPrefillIsBroken(t *testing.T) {
	t.Parallel()
	p := newPair(t, func(_, d *Config) { d.RoleSwitch = true })
	p.decode.current().bootstrapAddr = p.prefill.current().front.Load().addr // taken
	got := p.become(p.decode, "prefill")
	assert.Equal(t, http.StatusBadRequest, got.status)
	assert.Equal(t, false, got.object(t)["safe_to_restore"])
	assert.Equal(t, Decode, p.decode.Role())
	assert.Equal(t, http.StatusServiceUnavailable, p.get(p.decode, "/health").status)
}
