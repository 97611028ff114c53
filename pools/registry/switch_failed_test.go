package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

func TestAWorkerWhoseTimeToDrainIsOverKeepsItsRole(t *testing.T) {
	s := newSwitching(t, Options{})
	held := plan(t, s.set)
	result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode, DrainTimeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrStillBusy)
	assert.True(t, result.Restored)
	assert.True(t, s.takesWork(t))
	assert.Equal(t, Job{}, s.job(t))
	assert.Empty(t, s.engine.posted())
	held.End(pd.Success, pd.Success)
	s.idle(t)
}

func TestACallerThatLeavesBeforeTheEngineIsToldHasChangedNothing(t *testing.T) {
	s := newSwitching(t, Options{})
	held := plan(t, s.set)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	result, err := s.SwitchRole(ctx, s.id, Switch{Role: pd.Decode})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, "the switch was given up before the engine was told: context deadline exceeded", err.Error())
	assert.True(t, result.Restored)
	assert.True(t, s.takesWork(t))
	held.End(pd.Success, pd.Success)
	s.idle(t)

	cancel()
	_, err = s.SwitchRole(ctx, s.id, Switch{Role: pd.Decode})
	require.Error(t, err)
	assert.Empty(t, s.engine.posted())
	assert.True(t, s.takesWork(t))
}

func TestAWorkerThatWasDrainedBeforeIsDrainedStillWhenASwitchFails(t *testing.T) {
	s := newSwitching(t, Options{})
	require.NoError(t, s.Drain(s.id))
	s.engine.says(switchPath, 400, `{"success":false,"message":"off","safe_to_restore":true}`)
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.Error(t, err)
	assert.Equal(t, pools.Draining, s.set.Find(s.id).State())
	assert.Equal(t, "drained by an operator", view(t, s.Registry, s.id).Reason)
}

func TestAWorkerGoesBackWhereItsEngineSaysThatItCan(t *testing.T) {
	s := newSwitching(t, Options{})
	s.engine.says(switchPath, 400, `{"success":false,"message":"no memory","safe_to_restore":true}`)
	result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.EqualError(t, err, "the engine answered with status 400: no memory")
	refused, ok := errors.AsType[*EngineRefusedError](err)
	require.True(t, ok)
	assert.Equal(t, []any{400, true}, []any{refused.Status, *refused.SafeToRestore})
	assert.True(t, result.Restored)
	assert.True(t, s.takesWork(t))
	assert.Equal(t, Job{}, s.job(t))
}

func TestAWorkerStaysOutWhereItsEngineDoesNotSayThatItCanGoBack(t *testing.T) {
	s := newSwitching(t, Options{})
	for _, a := range []answer{
		{400, `{"success":false,"message":"rebuild failed","safe_to_restore":false}`},
		{400, `{"success":false,"message":"rebuild failed"}`},
		{200, `{"success":false,"message":"rebuild failed"}`},
		{500, `oops`},
		{404, `{"success":false,"safe_to_restore":false}`},
	} {
		s.engine.says(switchPath, a.status, a.text)
		result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		_, refused := errors.AsType[*EngineRefusedError](err)
		require.True(t, refused, a.text)
		assert.False(t, result.Restored, a.text)
		assert.False(t, s.takesWork(t), a.text)
		s.Apply("file", s.specs)
		assert.Contains(t, s.leftOut(t, pools.Draining), "does not say that it can go on", a.text)
		require.NoError(t, s.Resume(s.id))
		assert.True(t, s.takesWork(t), a.text)
		assert.Equal(t, Job{}, s.job(t))
	}
}

func TestAWorkerThatIsLeftOutCanBeDeletedOrSwitchedAgain(t *testing.T) {
	s := newSwitching(t, Options{})
	fail := func(text string) {
		t.Helper()
		s.engine.says(switchPath, 400, text)
		_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		require.Error(t, err)
	}
	fail(`{"success":false}`)
	fail(`{"success":false}`)
	s.leftOut(t, pools.Draining)
	fail(`{"success":false,"safe_to_restore":true}`)
	assert.True(t, s.takesWork(t), "now it says that it can")

	fail(`{"success":false}`)
	s.engine.says(switchPath, 200, `{"success":true,"new_role":"prefill"}`)
	result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Prefill})
	require.NoError(t, err)
	assert.Equal(t, pd.Prefill, result.OldRole)
	s.ready(t, s.id, pd.Prefill)

	s.engine.says(switchPath, 200, `{"success":false}`)
	s.ids[s.id].switched = time.Time{}
	_, err = s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.Error(t, err)
	require.NoError(t, s.Remove(s.id))
	assert.Nil(t, s.set.Find(s.id))
}

// What became of an order that nobody answered the engine itself must say.
func TestAWorkerOfWhichNothingIsKnownJoinsAsWhatItSays(t *testing.T) {
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		s := newSwitching(t, Options{})
		s.engine.says("/server_info", 503, "")
		s.engine.breaks(switchPath, true)
		result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		require.ErrorIs(t, err, ErrNoAnswer)
		assert.False(t, result.Restored)
		s.leftOut(t, pools.Starting)
		assert.False(t, s.takesWork(t))
		s.Apply("file", s.specs)

		s.engine.says("/server_info", 200, `{}`)
		soon(t, "it does not say", func() bool { return view(t, s.Registry, s.id).Refused != "" })
		s.leftOut(t, pools.Starting)
		s.engine.is(role.String())
		s.ready(t, s.id, role)
		assert.Equal(t, Job{}, s.job(t))
		s.idle(t)
	}
}

func TestAnAnswerThatDoesNotSayWhatItIsIsNone(t *testing.T) {
	f := func(status int, text string) {
		t.Helper()
		_, err := judge(pd.Decode, status, []byte(text))
		assert.ErrorIs(t, err, ErrNoAnswer, text)
	}
	f(200, ``)
	f(200, `{}`)
	f(200, `<html>`)
	f(202, `{"success":true,"new_role":"prefill"}`)
	f(200, `{"success":true`)

	message, err := judge(pd.Decode, 200, fmt.Appendf(nil, `{"success":true,"message":"%0600d"}`, 0))
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("%0512d…", 0), message)
	message, err = judge(pd.Decode, 200, []byte(`{"success":true,"message":7}`))
	require.NoError(t, err)
	assert.Empty(t, message)
	_, err = judge(pd.Decode, 502, nil)
	assert.EqualError(t, err, "the engine answered with status 502")
}

// An engine that knows of no such order has not switched: once it says its role it
// goes on.
func TestAnEngineThatCannotSwitchIsAskedWhatItIs(t *testing.T) {
	for _, status := range []int{401, 403, 404, 405, 501} {
		assert.False(t, (&EngineRefusedError{Status: status}).took())
	}
	for _, status := range []int{401, 404} {
		s := newSwitching(t, Options{})
		s.engine.says(switchPath, status, "")
		result, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		require.EqualError(t, err, fmt.Sprintf("the engine answered with status %d", status))
		assert.False(t, result.Restored)
		s.ready(t, s.id, pd.Prefill)
	}
}

func TestAnEngineThatCannotBeReachedKeepsItsRole(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{Transport: transport(t)})
	specs := pair()
	specs[0].URL = "http://127.0.0.1:1"
	r.Apply("file", specs)
	allUp(set)
	result, err := r.SwitchRole(t.Context(), IDOf(specs[0].URL), Switch{Role: pd.Decode, Force: true})
	require.ErrorIs(t, err, ErrUnreached)
	assert.True(t, result.Restored)
	assert.Equal(t, pools.Ready, set.Find(IDOf(specs[0].URL)).State())
}

// Nobody would ask it: it takes part again when an operator says so.
func TestAWorkerThatNobodyLooksAtStaysOutWhenNothingIsKnownOfIt(t *testing.T) {
	e := newEngine("prefill")
	e.breaks(switchPath, true)
	set, err := pools.New(nil, pools.Options{Policies: pools.Share(first{}, first{})})
	require.NoError(t, err)
	r := newRegistry(t, set, Options{Transport: transport(t)})
	id, err := r.Add(Spec{URL: e.serve(t), Role: pd.Prefill})
	require.NoError(t, err)
	_, err = r.SwitchRole(t.Context(), id, Switch{Role: pd.Decode, Force: true})
	require.ErrorIs(t, err, ErrNoAnswer)
	assert.Equal(t, pools.Draining, set.Find(id).State())
	require.NoError(t, r.Resume(id))
	assert.Equal(t, pools.Ready, set.Find(id).State())
}

func TestAnEngineThatTakesTooLongIsOneThatDoesNotAnswer(t *testing.T) {
	s := newSwitching(t, Options{SwitchTimeout: 50 * time.Millisecond})
	gate := s.engine.waits(switchPath)
	_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
	require.ErrorIs(t, err, ErrNoAnswer)
	close(gate)
	s.ready(t, s.id, pd.Prefill)
}

func TestAWorkerThatIsDeletedWhileItSwitchesGoes(t *testing.T) {
	s := newSwitching(t, Options{})
	held := plan(t, s.set)
	ended := make(chan error, 1)
	go func() { // ended waits for it
		_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		ended <- err
	}()
	soon(t, "it is drained", func() bool { return s.set.Find(s.id).State() == pools.Draining })
	require.NoError(t, s.Remove(s.id))
	require.ErrorIs(t, <-ended, ErrLeaving)
	assert.Empty(t, s.engine.posted())
	assert.True(t, view(t, s.Registry, s.id).Leaving)
	held.End(pd.Success, pd.Success)
	soon(t, "it has gone", func() bool { return s.set.Find(s.id) == nil })
}

func TestAWorkerThatIsDeletedWhileItsEngineSwitchesGoes(t *testing.T) {
	s := newSwitching(t, Options{})
	gate := s.engine.waits(switchPath)
	ended := make(chan error, 1)
	go func() { // ended waits for it
		_, err := s.SwitchRole(t.Context(), s.id, Switch{Role: pd.Decode})
		ended <- err
	}()
	soon(t, "its engine is told", func() bool { return len(s.engine.posted()) == 1 })
	require.NoError(t, s.Remove(s.id))
	_, err := s.Add(s.specs[0])
	require.ErrorIs(t, err, ErrLeaving, "it has not gone yet")
	close(gate)
	require.ErrorIs(t, <-ended, ErrLeaving)
	assert.Nil(t, s.set.Find(s.id))
	_, err = s.Add(s.specs[0])
	require.NoError(t, err)
}

// panics is a transport with a mistake in it.
type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a mistake") }

func TestAPanicLeavesNoWorkerBehind(t *testing.T) {
	set := newSet(t)
	r := newRegistry(t, set, Options{Transport: panics{}})
	r.Apply("file", pair())
	assert.PanicsWithValue(t, "a mistake", func() {
		_, _ = r.SwitchRole(t.Context(), prefillID, Switch{Role: pd.Decode, Force: true})
	})
	assert.Equal(t, pools.Draining, set.Find(prefillID).State())
	require.NoError(t, r.Resume(prefillID))
}
