package registry

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// switching is a fleet of two prefills and a decode, all of them on loopback; the
// switches are those of the first.
type switching struct {
	*fleet
	engine *engine
	id     pd.WorkerID
	specs  []Spec
}

const switchedAnswer = `{"success":true,"message":"done","old_role":"prefill","new_role":"decode"}`

func newSwitching(t *testing.T, opt Options) *switching {
	t.Helper()
	opt.Transport = transport(t)
	s := &switching{fleet: newFleet(t, opt), engine: newEngine("prefill")}
	s.engine.says(switchPath, 200, switchedAnswer)
	s.specs = []Spec{
		{URL: s.engine.serve(t), Role: pd.Prefill, Bootstrap: "9001", APIKey: "own"},
		{URL: newEngine("prefill").serve(t), Role: pd.Prefill},
		{URL: newEngine("decode").serve(t), Role: pd.Decode},
	}
	s.Apply("file", s.specs)
	for _, spec := range s.specs {
		s.ready(t, IDOf(spec.URL), spec.Role)
	}
	s.id = IDOf(s.specs[0].URL)
	return s
}

// job is what is still to be done for the worker that switches.
func (s *switching) job(t *testing.T) Job {
	t.Helper()
	if job := view(t, s.Registry, s.id).Job; job != nil {
		return *job
	}
	return Job{}
}

// leftOut is why the switch has left the worker out.
func (s *switching) leftOut(t *testing.T, state pools.State) string {
	t.Helper()
	v := view(t, s.Registry, s.id)
	require.NotNil(t, v.Job)
	assert.Equal(t, []any{JobSwitch, JobFailed, state}, []any{v.Job.Type, v.Job.Status, v.State})
	assert.Equal(t, v.Job.Message, v.Reason)
	assert.NotEmpty(t, v.Reason)
	return v.Reason
}

// takesWork reports whether the worker is given a request now.
func (s *switching) takesWork(t *testing.T) bool {
	p := plan(t, s.set)
	defer p.End(pd.Success, pd.Success)
	return p.Prefill.Worker.ID == s.id || p.Decode.Worker.ID == s.id
}

// idle is the state when all is over: nobody holds anything.
func (s *switching) idle(t *testing.T) {
	t.Helper()
	for _, m := range s.set.Members() {
		assert.Zero(t, m.InFlight(), m.Worker.URL)
	}
}

func TestAWorkerSwitchesItsRole(t *testing.T) {
	s := newSwitching(t, Options{})
	held := plan(t, s.set)
	require.Equal(t, s.id, held.Prefill.Worker.ID)
	gate := s.engine.waits(switchPath)
	type outcome struct {
		SwitchResult
		err error
	}
	ended := make(chan outcome, 1)
	ctx, leave := context.WithCancel(t.Context())
	go func() { // ended waits for it
		result, err := s.SwitchRole(ctx, s.id, Switch{Role: pd.Decode, Extra: map[string]json.RawMessage{
			"chunked_prefill_size": json.RawMessage(`4096`), "decode_cuda_graph_bs": json.RawMessage(`[1,2]`),
		}})
		ended <- outcome{result, err}
	}()
	soon(t, "it is drained", func() bool { return s.set.Find(s.id).State() == pools.Draining })
	assert.Equal(t, "it finishes what it has before it switches to decode: 1 in flight", s.job(t).Message)
	assert.False(t, s.takesWork(t), "others do")
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.ErrorIs(t, err, ErrBusySwitching)
	require.ErrorIs(t, s.Resume(s.id), ErrBusySwitching)
	require.ErrorIs(t, s.Drain(s.id), ErrBusySwitching)
	assert.Empty(t, s.engine.posted(), "it has work still")

	held.End(pd.Success, pd.Success)
	soon(t, "its engine is told", func() bool { return len(s.engine.posted()) == 1 })
	leave() // too late to matter
	priority := 1
	require.NoError(t, s.Update(s.id, Change{Priority: &priority}))
	s.Apply("file", s.specs)
	assert.Equal(t, []any{JobSwitch, JobProcessing, "its engine switches to decode"},
		[]any{s.job(t).Type, s.job(t).Status, s.job(t).Message})
	close(gate)
	got := <-ended
	require.NoError(t, got.err)
	assert.Equal(t, SwitchResult{OldRole: pd.Prefill, NewRole: pd.Decode, Message: "done"}, got.SwitchResult)
	assert.JSONEq(t, `{"new_role":"decode","chunked_prefill_size":4096,"decode_cuda_graph_bs":[1,2]}`, s.engine.posted()[0])
	assert.Equal(t, "Bearer own", s.engine.key(switchPath))

	v := view(t, s.Registry, s.id)
	assert.Equal(t, []any{"decode", pools.Starting, Facts{}, 1}, []any{v.Role, v.State, v.Facts, v.Worker.Priority})
	s.engine.is("decode")
	s.ready(t, s.id, pd.Decode)
	assert.Zero(t, s.set.Find(s.id).Worker.BootstrapPort)
	s.Apply("file", s.specs)
	assert.Equal(t, pd.Decode, s.set.Find(s.id).Worker.Role, "its source goes on saying prefill")
	for _, role := range []pd.Role{pd.Decode, pd.Prefill} {
		s.specs[0].Role, s.specs[0].Bootstrap = role, ""
		s.Apply("file", s.specs)
		assert.Equal(t, role, s.set.Find(s.id).Worker.Role, "its source says something else than before")
	}
	s.idle(t)
}

func TestAWorkerThatSwitchesBackHasWhatItHad(t *testing.T) {
	s := newSwitching(t, Options{SwitchEvery: time.Millisecond})
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.NoError(t, err)
	s.engine.is("decode")
	s.ready(t, s.id, pd.Decode)
	s.engine.says(switchPath, 200, `{"success":true}`)
	_, err = s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Prefill})
	require.NoError(t, err)
	s.engine.is("prefill")
	s.ready(t, s.id, pd.Prefill)
	assert.Equal(t, 9001, s.set.Find(s.id).Worker.BootstrapPort)
	assert.Nil(t, s.ids[s.id].change.role)
}

// An engine that has been switched is what it was launched as once it starts anew.
func TestASwitchedEngineThatStartsAnewIsWhatItSays(t *testing.T) {
	s := newSwitching(t, Options{})
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.NoError(t, err)
	s.engine.is("decode")
	s.ready(t, s.id, pd.Decode)
	s.engine.is("prefill")
	s.set.Find(s.id).Down("it has started anew")
	s.ready(t, s.id, pd.Prefill)
}

func TestWhoMayNotSwitch(t *testing.T) {
	s := newSwitching(t, Options{})
	f := func(id pd.WorkerID, to Switch, want error) {
		t.Helper()
		_, err := s.SwitchRole(t.Context(), id, to)
		require.ErrorIs(t, err, want)
	}
	decode := IDOf(s.specs[2].URL)
	f("nobody", Switch{Role: pd.Decode}, ErrUnknown)
	f(s.id, Switch{Role: pd.Regular}, ErrBadSwitch)
	f(s.id, Switch{Role: 9}, ErrBadSwitch)
	f(decode, Switch{Role: pd.Prefill}, ErrLast)
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode, Extra: map[string]json.RawMessage{"x": json.RawMessage(`{`)}})
	require.EqualError(t, err, "a field for the engine is no JSON")

	result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Prefill})
	require.NoError(t, err, "it has this role")
	assert.Equal(t, SwitchResult{OldRole: pd.Prefill, NewRole: pd.Prefill, Message: "the worker has this role already"}, result)
	assert.Empty(t, s.engine.posted())

	require.NoError(t, s.Drain(IDOf(s.specs[1].URL)))
	f(s.id, Switch{Role: pd.Decode}, ErrLast) // the other takes no work
	require.NoError(t, s.Resume(IDOf(s.specs[1].URL)))
	held := plan(t, s.set)
	require.NoError(t, s.Remove(s.id))
	f(s.id, Switch{Role: pd.Decode}, ErrLeaving)
	held.End(pd.Success, pd.Success)
	soon(t, "it has gone", func() bool { return s.set.Find(s.id) == nil })
	f(s.id, Switch{Role: pd.Decode}, ErrUnknown)
	assert.Empty(t, s.engine.posted())
}

func TestAWholeEngineHasNoRoleToSwitch(t *testing.T) {
	set, err := pools.New(nil, pools.Options{Regular: true, Policies: func(string) (pools.Policies, error) {
		return pools.Policies{Regular: first{}}, nil
	}})
	require.NoError(t, err)
	r := newRegistry(t, set, Options{})
	id, err := r.Add(Spec{URL: "http://r:1", Role: pd.Regular})
	require.NoError(t, err)
	_, err = r.SwitchRole(t.Context(), id, Switch{Role: pd.Decode})
	require.ErrorIs(t, err, ErrBadSwitch)
}

func TestTheLastOfARoleSwitchesByForce(t *testing.T) {
	s := newSwitching(t, Options{})
	require.NoError(t, s.Remove(IDOf(s.specs[1].URL)))
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.ErrorIs(t, err, ErrLast)
	assert.Equal(t, pools.Ready, s.set.Find(s.id).State())
	_, err = s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode, Force: true})
	require.NoError(t, err)
}

func TestAWorkerDoesNotSwitchToAndFro(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine("prefill")
		e.says(switchPath, 200, `{"success":true}`)
		set := newSet(t)
		r := newRegistry(t, set, Options{Transport: inMemory{e}})
		r.Apply("file", pair())
		_, err := r.SwitchRole(t.Context(), prefillID, Switch{Role: pd.Decode, Force: true})
		require.NoError(t, err)
		time.Sleep(9 * time.Second)
		_, err = r.SwitchRole(t.Context(), prefillID, Switch{Role: pd.Prefill, Force: true})
		require.ErrorIs(t, err, ErrTooSoon)
		time.Sleep(time.Second)
		_, err = r.SwitchRole(t.Context(), prefillID, Switch{Role: pd.Prefill, Force: true})
		require.NoError(t, err)
	})
}

func TestTheRanksOfAnEngineSwitchTogether(t *testing.T) {
	e := newEngine("decode")
	e.says(switchPath, 200, `{"success":true}`)
	set := newSet(t)
	r := newRegistry(t, set, Options{Ranks: true, Transport: inMemory{e}})
	r.Apply("file", pair())
	require.NoError(t, r.learn(decodeID, Facts{Mode: "decode", DPSize: 4}))
	allUp(set)
	_, err := r.SwitchRole(t.Context(), ranks(decodeID, 4)[3], Switch{Role: pd.Prefill})
	require.ErrorIs(t, err, ErrLast, "the ranks of an engine are no others")
	_, err = r.SwitchRole(t.Context(), ranks(decodeID, 4)[3], Switch{Role: pd.Prefill, Force: true})
	require.NoError(t, err)
	assert.Len(t, e.posted(), 1)
	assert.Equal(t, map[pd.WorkerID]pools.State{prefillID: pools.Ready, decodeID: pools.Starting}, states(set))
	require.NoError(t, r.learn(decodeID, Facts{Mode: "prefill", live: true, DPSize: 4}))
	for _, id := range ranks(decodeID, 4) {
		assert.Equal(t, pd.Prefill, set.Find(id).Worker.Role)
	}
}

func TestNoRequestFailsWhileAWorkerSwitches(t *testing.T) {
	s := newSwitching(t, Options{})
	var held []*pd.Plan
	for range 5 {
		held = append(held, plan(t, s.set))
	}
	done := make(chan error, 1)
	go func() { // done waits for it
		_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		done <- err
	}()
	soon(t, "it is drained", func() bool { return s.set.Find(s.id).State() == pools.Draining })
	for len(held) > 0 {
		assert.False(t, s.takesWork(t))
		held[0].End(pd.Success, pd.Success)
		held = held[1:]
	}
	for over := false; !over; {
		select {
		case err := <-done:
			require.NoError(t, err)
			over = true
		default:
			plan(t, s.set).End(pd.Success, pd.Success)
		}
	}
	s.engine.is("decode")
	soon(t, "it serves as a decode", func() bool {
		s.monitor.Suspect()
		plan(t, s.set).End(pd.Success, pd.Success)
		return s.set.Find(s.id).State() == pools.Ready
	})
	s.idle(t)
}

func TestTwoSwitchesDoNotEmptyAPool(t *testing.T) {
	s := newSwitching(t, Options{})
	gate := s.engine.waits(switchPath)
	done := make(chan error, 1)
	go func() { // done waits for it
		_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		done <- err
	}()
	soon(t, "its engine is told", func() bool { return len(s.engine.posted()) == 1 })
	_, err := s.SwitchRole(t.Context(), IDOf(s.specs[1].URL), Switch{Role: pd.Decode})
	require.ErrorIs(t, err, ErrLast)
	close(gate)
	require.NoError(t, <-done)
}

// What has ended here the engine may still be tidying up.
func TestAnEngineThatIsNotYetIdleIsAskedAgain(t *testing.T) {
	s := newSwitching(t, Options{})
	s.engine.says(switchPath, 400, `{"success":false,"message":"Engine is not idle","safe_to_restore":true}`)
	idle := time.AfterFunc(100*time.Millisecond, func() { s.engine.says(switchPath, 200, switchedAnswer) })
	defer idle.Stop()
	result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.NoError(t, err)
	assert.Equal(t, pd.Decode, result.NewRole)
	assert.Greater(t, len(s.engine.posted()), 1)
}
