package discovery

import "sync"

// trouble is what is wrong with a source at present.
type trouble struct {
	mu   sync.Mutex
	err  error
	kind string // what makes err another one; empty while nothing is wrong
}

// set has err be what is wrong, nil for nothing, and passes it to report if its
// kind is another than before. Only the goroutine of Run calls it.
func (t *trouble) set(err error, kind string, report func(error)) {
	t.mu.Lock()
	another := kind != t.kind
	t.err, t.kind = err, kind
	t.mu.Unlock()
	if another && report != nil {
		report(err)
	}
}

func (t *trouble) get() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
