package registry

// move is a switch of a worker's role that is under way.
type move struct{}
