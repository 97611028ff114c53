package simengine

import (
	"context"
	"errors"
	"net/http"
)

// errSwitch is the end of a role switch that Fault.FailSwitch breaks.
var errSwitch = errors.New("failure asked for by a test")

// switchRole is POST /pd_role_switch. What it refuses with safe_to_restore has
// left the engine as it was.
func (l *life) switchRole(_ context.Context, f fields) (int, anyMap) {
	text, err := f.text("new_role")
	want := Role(text)
	refuse := func(safe bool, message string) (int, anyMap) {
		return http.StatusBadRequest, anyMap{
			"success": false, "message": message, "safe_to_restore": safe,
			"old_role": l.role().mode(), "new_role": text,
		}
	}
	switch {
	case !l.cfg.RoleSwitch:
		return refuse(true, "Role switch is off: start the engine with --enable-pd-role-switch.")
	case err != nil || want != Prefill && want != Decode:
		return refuse(true, "new_role has to be prefill or decode.")
	case l.cfg.Role == Regular:
		return refuse(true, "The engine is not in prefill/decode mode.")
	case !l.switching.CompareAndSwap(false, true):
		return refuse(false, "A role switch is in progress.")
	}
	defer l.switching.Store(false)
	if l.roles.broken.Load() {
		return refuse(false, "The engine has to be restarted: a role switch has failed.")
	}
	old := l.role()
	if old == want {
		return http.StatusOK, switched("The engine is in the target role already.", old, want)
	}
	if !l.holdIdle() {
		return refuse(true, "The engine is not idle.")
	}
	defer l.roles.swap.open()
	if err := l.become(want); err != nil {
		l.roles.broken.Store(true)
		l.logf("role switch: %v", err)
		return refuse(false, "Role switch failed: "+err.Error())
	}
	return http.StatusOK, switched("Role switch succeeded.", old, want)
}

func switched(message string, old, now Role) anyMap {
	return anyMap{"success": true, "message": message, "old_role": string(old), "new_role": string(now)}
}

// holdIdle holds back what comes from now on; false if something is in service.
func (l *life) holdIdle() bool {
	l.roles.mu.Lock()
	defer l.roles.mu.Unlock()
	if l.roles.serving > 0 || !l.idle() {
		return false
	}
	l.roles.swap.shut()
	return true
}

// become takes its time and rebuilds an idle engine for a role. What decodes
// knew of a prefill they lose with its listeners; what a decode knows of prefills
// it keeps, for the day it is one again.
func (l *life) become(want Role) error {
	if !sleep(l.ctx, l.cfg.scaled(l.cfg.SwitchDelay)) {
		return errEnded
	}
	if f, ok := l.e.paths.Load(rolePath); ok && f.(*Fault).FailSwitch {
		return errSwitch
	}
	l.cache.flush()
	if f := l.front.Load(); f != nil {
		f.close()
	}
	if want == Prefill {
		if err := l.openFront(); err != nil {
			return err
		}
		f := l.front.Load()
		if err := f.listen(); err != nil {
			f.close()
			return err
		}
		f.register()
	}
	l.roles.mu.Lock()
	defer l.roles.mu.Unlock()
	l.roles.role = want
	return nil
}
