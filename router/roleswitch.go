package router

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// switchBody is what a client asks of the router with /pd_role_switch. What else
// its body has is for the engine.
type switchBody struct {
	ID           pd.WorkerID `json:"worker_id"`
	URL          string      `json:"worker_url"`
	Role         string      `json:"new_role"`
	DrainTimeout *float64    `json:"drain_timeout_secs"`
	Force        bool        `json:"force"`
}

// ours reports whether a member of the body is one of switchBody's.
func ours(name string) bool {
	switch name {
	case "worker_id", "worker_url", "new_role", "drain_timeout_secs", "force":
		return true
	}
	return false
}

// switched is the answer of /pd_role_switch, by the engine's own keys.
type switched struct {
	Success bool        `json:"success"`
	Message string      `json:"message"`
	Code    string      `json:"code,omitempty"`
	Old     string      `json:"old_role,omitempty"`
	New     string      `json:"new_role,omitempty"`
	ID      pd.WorkerID `json:"worker_id,omitempty"`
	// Safe is whether the engine says that it can go on as it was, and Restored
	// whether it does.
	Safe     *bool `json:"safe_to_restore,omitempty"`
	Restored bool  `json:"restored,omitempty"`
}

// switchRole has a worker take the other role of a pair: it is drained, its engine
// is told, and it joins the other pool. The answer comes when that is over. An
// engine that refuses is put back where it says that it can go on.
func (a *App) switchRole(v *visit) error {
	id, to, err := a.switchAsked(v)
	if err != nil {
		return v.notSwitched(pd.AsError(err), switched{ID: id})
	}
	if err := v.begin(); err != nil {
		return err
	}
	before := a.found(id)
	if len(before) == 0 {
		return v.notSwitched(unknownWorker(), switched{ID: id})
	}
	worker := before[0].Worker
	result, err := a.cfg.Fleet.Registry.SwitchRole(v.ctx, id, to)
	out := switched{
		Old: worker.Role.String(), New: to.Role.String(), ID: engineID(worker), Restored: result.Restored,
		Message: addressMask(worker, enginesOf(a.cfg.Workers()))(result.Message),
	}
	switch {
	case err == nil:
		out.Success = true
		return v.document(http.StatusOK, out)
	case v.ctx.Err() != nil:
		return pd.ErrCancelled(pd.StageRequest)
	}
	refused, ok := errors.AsType[*registry.EngineRefusedError](err)
	if ok {
		out.Safe = refused.SafeToRestore
		masked := addressMask(worker, enginesOf(a.cfg.Workers()))(refused.Message)
		return v.notSwitched(&pd.Error{Status: http.StatusBadRequest, Code: "ENGINE_REFUSED", Message: masked}, out)
	}
	return v.notSwitched(switchError(err), out)
}

// notSwitched answers with an error in the place of a role's switch.
func (v *visit) notSwitched(e *pd.Error, out switched) error {
	out.Success, out.Message, out.Code = false, e.Message, e.Code
	return v.document(e.Status, out)
}

// switchAsked is the worker and the switch that a client asks for.
func (a *App) switchAsked(v *visit) (id pd.WorkerID, to registry.Switch, err error) {
	var body switchBody
	extra, err := v.object(&body, func(name string) bool { return !ours(name) })
	if err != nil {
		return "", to, err
	}
	role, known := pd.ParseRole(body.Role)
	switch {
	case !known || role == pd.Regular:
		return body.ID, to, badRequest("new_role: want prefill or decode")
	case (body.ID == "") == (body.URL == ""):
		return body.ID, to, badRequest("want either worker_id or worker_url")
	}
	to = registry.Switch{Role: role, Force: body.Force, Extra: make(map[string]json.RawMessage, len(extra))}
	for name, value := range extra {
		to.Extra[name] = json.RawMessage(value)
	}
	if body.DrainTimeout != nil {
		if !(*body.DrainTimeout > 0 && *body.DrainTimeout <= drainTimeoutMax.Seconds()) {
			return body.ID, to, badRequest("drain_timeout_secs: want a number of seconds, more than 0 and at most a day")
		}
		to.DrainTimeout = max(1, time.Duration(*body.DrainTimeout*float64(time.Second)))
	}
	if body.URL == "" {
		return body.ID, to, nil
	}
	u, err := registry.ParseURL(body.URL)
	if err != nil {
		return "", to, badRequest("worker_url: " + err.Error())
	}
	for _, w := range a.cfg.Fleet.Registry.Status().Workers {
		if w.Worker.URL == u {
			return engineID(w.Worker), to, nil
		}
	}
	return "", to, unknownWorker()
}

// switchError is the answer to a switch that the registry refuses, or that fails
// on the way to the engine.
func switchError(err error) *pd.Error {
	e := changeError(err)
	switch {
	case errors.Is(err, registry.ErrTooSoon):
		e.Status, e.Code = http.StatusConflict, "SWITCHED_JUST_NOW"
	case errors.Is(err, registry.ErrLast):
		e.Status, e.Code = http.StatusConflict, "LAST_OF_ITS_ROLE"
	case errors.Is(err, registry.ErrStillBusy):
		e.Status, e.Code = http.StatusConflict, "WORKER_BUSY"
	case errors.Is(err, registry.ErrUnreached):
		e.Status, e.Code = http.StatusBadGateway, "ENGINE_UNREACHABLE"
	case errors.Is(err, registry.ErrNoAnswer):
		e.Status, e.Code = http.StatusBadGateway, "ENGINE_NO_ANSWER"
	}
	return e
}
