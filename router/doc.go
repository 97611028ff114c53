// Package router is Tandem's HTTP server: the engines' data, info and admin
// endpoints, and the admin API of the fleet, on one port.
//
// It owns the client's side of a request: reading its body once, having it wait
// for its turn when there are too many, knowing at any moment whether the client
// is still there, writing the answer as it comes, and the orderly end of all
// that at shutdown. cmd/tandem builds an [App] over something that serves a
// [pd.Request], which in production is a *pd.Orchestrator, and over the registry,
// which the admin API reads and changes.
//
// It never picks a worker for a generation, never retries one, never edits a
// body and never logs one. What fails on the way is a *pd.Error; errors.go is
// the one place that turns those into answers.
package router
