package router

import (
	"runtime/debug"
	"time"
)

// access logs that a request has ended: never a body, never a header but the
// request id.
func (a *App) access(v *visit) {
	e := a.cfg.Log.Info().Str("id", v.id).Str("endpoint", v.name).Int("status", v.status).
		Int64("ms", time.Since(v.start).Milliseconds())
	if v.broken {
		e = e.Bool("broken", true)
	}
	e.Msg("request")
}

// panicked logs what was recovered. The value is left out: it may hold a piece
// of a body.
func (a *App) panicked(id string, value any) {
	e := a.cfg.Log.Error().Str("id", id).Bytes("stack", debug.Stack())
	if err, ok := value.(interface{ RuntimeError() }); ok {
		if err, ok := err.(error); ok {
			e = e.Err(err)
		}
	}
	e.Msg("panic")
}

// recovered is deferred in goroutines and callbacks.
func (a *App) recovered(id string) {
	if value := recover(); value != nil {
		a.panicked(id, value)
	}
}
