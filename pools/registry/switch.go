package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// The errors of a switch of roles, besides [ErrUnknown], [ErrLeaving] and
// [*EngineRefusedError].
var (
	ErrBadSwitch     = errors.New("a worker of a pair can become a prefill or a decode worker, and no other")
	ErrBusySwitching = errors.New("the worker is switching its role")
	ErrTooSoon       = errors.New("the worker has switched its role just now")
	ErrLast          = errors.New("the worker is the last of its role to take work")
	// ErrStillBusy is that of a worker which has not finished its work in time. It
	// keeps its role.
	ErrStillBusy = errors.New("the worker still has work in flight, and keeps its role")
	// ErrUnreached is that of an engine which could not be told. It keeps its role.
	ErrUnreached = errors.New("the engine cannot be reached, and keeps its role")
	// ErrNoAnswer is that of an engine which has been told and of which nothing is
	// known since. It stays out until it says which role it has.
	ErrNoAnswer = errors.New("the engine was told, and gave no usable answer: it takes no work until it says which role it has")
)

// drainSwitch is how long a worker that switches may take to finish what it has,
// where nothing is said.
const drainSwitch = 10 * time.Minute

// idleEvery is how often a worker that switches is looked at for what it still
// has.
const idleEvery = 20 * time.Millisecond

// Switch is what an operator wants of a worker that is to have the other role.
type Switch struct {
	Role pd.Role // that it is to have: prefill or decode
	// DrainTimeout bounds how long the worker may take to finish what it has; then
	// it goes on in its old role. 10 minutes if 0.
	DrainTimeout time.Duration
	// Force switches the last worker of a role too.
	Force bool
	// Extra are fields that the engine is given beside the role, as they are.
	Extra map[string]json.RawMessage
}

// SwitchResult is what became of a switch.
type SwitchResult struct {
	OldRole, NewRole pd.Role // what it was, and what it was to be
	Message          string  // the engine's, or that there was nothing to do
	// Restored says that the worker goes on in its old role, beside an error.
	Restored bool
}

// tidyUp is how long an engine may still call itself busy when all that it was
// sent has ended here: it gives memory back, or answers a probe.
const tidyUp = 5 * time.Second

// move is a switch of a worker's role that is under way.
type move struct {
	to      Switch
	body    []byte // that the engine is sent
	since   time.Time
	told    bool          // the engine is being told
	drained []pd.WorkerID // for the switch: those that took no work before are not here
	result  SwitchResult
}

// step says how far the switch has come.
func (m *move) step(inFlight int64) string {
	if m.told {
		return fmt.Sprintf("its engine switches to %s", m.to.Role)
	}
	return fmt.Sprintf("it finishes what it has before it switches to %s: %d in flight", m.to.Role, inFlight)
}

// SwitchRole has a worker, with all ranks of its engine, take the other role: it
// is given nothing more, finishes what it has, its engine is told, and it joins
// the other pool once it is well and says that it has that role. It returns when
// the engine has answered; from the moment when that is told, the end of ctx does
// not matter any more.
//
// On an error before that the worker goes on as it was, and after it only where
// the engine says that it can. Otherwise it takes no work, its Job says why, and
// [Registry.Resume] has it take part again.
func (r *Registry) SwitchRole(ctx context.Context, id pd.WorkerID, to Switch) (result SwitchResult, err error) {
	e, result, err := r.beginSwitch(id, to)
	if e == nil {
		return result, err
	}
	message, failed := "", error(ErrNoAnswer) // where a panic passes by
	defer func() { result, err = r.endSwitch(e, message, failed) }()
	message, failed = r.switchIdle(ctx, e)
	return result, err
}

// beginSwitch has a worker take no new work. The entry is nil where there is
// nothing to switch, and then the rest is the answer.
func (r *Registry) beginSwitch(id pd.WorkerID, to Switch) (*entry, SwitchResult, error) {
	body, err := switchBody(to)
	if err != nil {
		return nil, SwitchResult{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID(id)
	if e == nil || !e.stays() && len(e.members) == 0 {
		return nil, SwitchResult{}, ErrUnknown
	}
	if !e.stays() {
		return nil, SwitchResult{}, ErrLeaving
	}
	result := SwitchResult{OldRole: e.spec().Role, NewRole: to.Role}
	if err := r.maySwitch(e, to); err != nil {
		return nil, result, err
	}
	if result.OldRole == to.Role && e.held.text == "" {
		result.Message = "the worker has this role already"
		return nil, result, nil
	}
	e.move = &move{to: to, body: body, since: time.Now(), result: result}
	for _, w := range e.members {
		if m := r.set.Find(w.ID); m != nil && m.State() != pools.Draining {
			e.move.drained = append(e.move.drained, w.ID)
			r.set.Drain(w.ID)
		}
	}
	return e, result, nil
}

// maySwitch says why an entry may not switch its role.
func (r *Registry) maySwitch(e *entry, to Switch) error {
	spec := e.spec()
	switch {
	case spec.Role == pd.Regular:
		return ErrBadSwitch
	case e.move != nil:
		return ErrBusySwitching
	case spec.Role == to.Role && e.held.text == "":
		return nil
	case len(e.members) == 0:
		return fmt.Errorf("the worker does not take part: %s", e.failed.text)
	case !e.switched.IsZero() && time.Since(e.switched) < r.opt.SwitchEvery:
		return ErrTooSoon
	case !to.Force && r.isLast(e):
		return ErrLast
	default:
		return nil
	}
}

// isLast reports whether no other worker of the entry's role and model takes work.
func (r *Registry) isLast(e *entry) bool {
	mine := e.members[0]
	return !slices.ContainsFunc(r.set.Members(), func(m *pools.Member) bool {
		w := m.Worker
		if w.Role != mine.Role || w.URL == mine.URL || w.Model != mine.Model && w.Model != "" && mine.Model != "" {
			return false
		}
		state := m.State()
		return state == pools.Ready || state == pools.Busy
	})
}

// switchIdle has the engine of an entry switch once it has nothing in flight. The
// message is the engine's.
func (r *Registry) switchIdle(ctx context.Context, e *entry) (message string, err error) {
	w, err := r.awaitIdle(ctx, e)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.opt.SwitchTimeout)
	defer cancel()
	for until := time.Now().Add(tidyUp); ; time.Sleep(idleEvery) {
		message, err = tellRole(ctx, r.opt.Transport, w, e.move.to.Role, e.move.body)
		refused, _ := errors.AsType[*EngineRefusedError](err)
		if refused == nil || !refused.busy() || time.Now().After(until) {
			return message, err
		}
	}
}

// awaitIdle waits until an entry that switches has nothing in flight, and gives
// its engine, which is to be told now.
func (r *Registry) awaitIdle(ctx context.Context, e *entry) (*pd.Worker, error) {
	limit := e.move.to.DrainTimeout
	if limit == 0 {
		limit = drainSwitch
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrStillBusy)
	defer cancel()
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		if w, err := r.idle(ctx, e); w != nil || err != nil {
			return w, err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// idle is the engine of an entry that switches, nil while it has work in flight.
func (r *Registry) idle(ctx context.Context, e *entry) (*pd.Worker, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !e.stays():
		return nil, ErrLeaving
	case ctx.Err() != nil:
		if err := context.Cause(ctx); errors.Is(err, ErrStillBusy) {
			return nil, err
		}
		return nil, fmt.Errorf("the switch was given up before the engine was told: %w", context.Cause(ctx))
	case !r.drained(e):
		return nil, nil
	}
	e.move.told = true
	return e.members[0], nil
}

// endSwitch draws the conclusions of a switch.
func (r *Registry) endSwitch(e *entry, message string, err error) (SwitchResult, error) {
	r.mu.Lock()
	defer r.unlock()
	m := e.move
	e.move = nil
	m.result.Message = message
	refused, _ := errors.AsType[*EngineRefusedError](err)
	switch {
	case !e.stays():
		if err == nil {
			err = ErrLeaving // whatever its role is
		}
	case err == nil:
		r.joinAs(e, m.to.Role)
	case !m.told, errors.Is(err, ErrUnreached), refused != nil && refused.restores():
		r.restore(e, m, refused != nil)
	case refused != nil && refused.took():
		e.held.is("its engine did not switch its role, and does not say that it can go on: " + err.Error())
	default:
		r.lose(e, err)
	}
	r.keep(e)
	r.save()
	return m.result, err
}

// restore has an entry go on as it was before m. What a switch before had left out
// comes back only where its engine says that it can.
func (r *Registry) restore(e *entry, m *move, safe bool) {
	if safe && e.held.text != "" {
		e.held, e.lost = reason{}, false
		m.drained = nil
		for _, w := range e.members {
			m.drained = append(m.drained, w.ID)
		}
	}
	m.result.Restored = e.held.text == ""
	for _, id := range m.drained {
		if !e.drained {
			r.set.Resume(id)
		}
	}
}

// joinAs has an entry whose engine has switched begin anew.
func (r *Registry) joinAs(e *entry, role pd.Role) {
	r.takeOutMembers(e)
	e.become(role)
	e.known = known{since: e.since, switched: time.Now()}
}

// lose leaves an entry out whose role is not known any more. Where its engine is
// asked for its facts, these decide.
func (r *Registry) lose(e *entry, err error) {
	e.held.is(err.Error())
	if e.lost = e.met && !e.spec().Unchecked; e.lost {
		r.takeOutMembers(e)
		e.facts, e.met = Facts{}, false
	}
}
