package simengine

import (
	"context"
	"io"
	"net/http"
)

// rolePath is where an engine is told to change its role.
const rolePath = "/pd_role_switch"

// controlFunc does what one of the administrative paths is for.
type controlFunc func(ctx context.Context, f fields) (status int, answer anyMap)

// controlOf is what a path of the engine's control does, nil if it is none.
func (l *life) controlOf(path string) controlFunc {
	switch path {
	case rolePath:
		return l.switchRole
	case "/pause_generation":
		return l.pauseGeneration
	case "/continue_generation":
		return l.continueGeneration
	case "/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_distributed":
		return l.updateWeights(path == "/update_weights_from_disk")
	case "/init_weights_update_group":
		return done("Succeeded to initialize the weights update group.")
	case "/release_memory_occupation":
		return done("Succeeded to release the memory.")
	case "/resume_memory_occupation":
		return done("Succeeded to resume the memory.")
	}
	return nil
}

// control serves a call of the engine's control, and records it.
func (l *life) control(serve controlFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			panic(http.ErrAbortHandler) // the client left within its body
		}
		rec := l.e.records.arrive(r, body, false)
		f := fields{}
		if len(body) > 0 {
			f, err = decodeFields(body)
		}
		if err != nil {
			rec.done(http.StatusBadRequest, "refused")
			writeJSON(w, http.StatusBadRequest, schemaError(endpoint(r.URL.Path), err))
			return
		}
		status, answer := serve(r.Context(), f)
		how := "finished"
		if status != http.StatusOK {
			how = "refused"
		}
		rec.done(status, how)
		writeJSON(w, status, mustJSON(answer))
	}
}

// done is a call that changes nothing here.
func done(message string) controlFunc {
	return func(context.Context, fields) (int, anyMap) {
		return http.StatusOK, anyMap{"success": true, "message": message}
	}
}

// pauseGeneration holds what comes from now on. What is in service is aborted;
// in the other modes it stops where it is.
func (l *life) pauseGeneration(ctx context.Context, f fields) (int, anyMap) {
	mode, err := f.text("mode")
	orString(&mode, "abort")
	if err != nil || mode != "abort" && mode != "retract" && mode != "in_place" {
		return http.StatusBadRequest, anyMap{"success": false, "message": "mode has to be abort, retract or in_place."}
	}
	l.roles.pause.shut()
	for mode == "abort" && l.roles.busy() {
		for _, it := range l.live.matching("", true) {
			if s := state(it.state.Load()); s != stateHeld && s != stateNone {
				it.abort()
			}
		}
		if !sleep(ctx, flushPoll) {
			break
		}
	}
	return http.StatusOK, anyMap{"success": true, "message": "Generation paused successfully.", "status": "ok"}
}

func (l *life) continueGeneration(context.Context, fields) (int, anyMap) {
	l.roles.pause.open()
	return http.StatusOK, anyMap{"success": true, "message": "Generation continued successfully.", "status": "ok"}
}

// updateWeights empties the prefix cache, which is of the old weights. The
// simulated model stays as it is.
func (l *life) updateWeights(fromDisk bool) controlFunc {
	return func(_ context.Context, f fields) (int, anyMap) {
		if path, err := f.text("model_path"); fromDisk && (err != nil || path == "") {
			return http.StatusBadRequest, anyMap{"success": false, "message": "model_path: Field required"}
		}
		l.cache.flush()
		answer := anyMap{"success": true, "message": "Succeeded to update model weights."}
		if fromDisk {
			answer["num_paused_requests"] = 0
		}
		return http.StatusOK, answer
	}
}
