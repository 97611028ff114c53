package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/pd"
)

// The errors of a switch of roles, besides [ErrUnknown] and [ErrLeaving].
var (
	ErrBadSwitch     = errors.New("a worker of a pair can become a prefill or a decode, and no other")
	ErrBusySwitching = errors.New("the worker is switching its role already")
	ErrTooSoon       = errors.New("the worker has switched its role just now")
	ErrLast          = errors.New("the worker is the last of its role to take work")
	ErrStillBusy     = errors.New("the worker still has work in flight, and keeps its role")
)

// Switch is what an operator wants of a worker that is to have the other role.
type Switch struct {
	Role pd.Role // that it is to have: prefill or decode
	// DrainTimeout bounds how long the worker may take to finish what it has; then
	// it goes on in its old role. 10 minutes if 0.
	DrainTimeout time.Duration
	// Force switches the last worker of a role too.
	Force bool
	// Extra goes to the engine beside the role, see [SwitchFields].
	Extra map[string]json.RawMessage
}

// SwitchResult is what became of a switch.
type SwitchResult struct {
	OldRole, NewRole pd.Role
	Message          string // the engine's, empty where it was not asked
	// Restored says that the worker goes on in its old role, beside an error.
	Restored bool
}

// EngineRefusedError is an engine's answer that its role has not changed.
type EngineRefusedError struct {
	Status  int
	Message string
	// SafeToRestore is whether the engine says that it can go on as it was; nil where
	// it says nothing.
	SafeToRestore *bool
}

// Error is the engine's message.
func (e *EngineRefusedError) Error() string {
	return fmt.Sprintf("the engine answered with status %d: %s", e.Status, e.Message)
}

// SwitchRole has a worker, or all ranks of its engine, take the other role.
func (r *Registry) SwitchRole(_ context.Context, id pd.WorkerID, to Switch) (SwitchResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID(id)
	if e == nil {
		return SwitchResult{}, ErrUnknown
	}
	role := e.spec().Role
	return SwitchResult{OldRole: role, NewRole: to.Role}, ErrBadSwitch
}

// move is a switch of a worker's role that is under way.
type move struct{}
