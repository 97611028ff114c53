package registry

import (
	"maps"
	"sync"
	"time"
)

// Trouble is what last went wrong with a source; what it said before goes on.
type Trouble struct {
	At  time.Time
	Err string
}

// troubles are those of the sources, by name: as many as there are sources.
type troubles struct {
	mu sync.Mutex
	of map[string]Trouble
}

// Trouble notes that something is wrong with a source, or with nil that it is well
// again. It never blocks, and may be called from any goroutine.
func (r *Registry) Trouble(source string, err error) {
	t := &r.troubles
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.of, source)
		return
	}
	if t.of == nil {
		t.of = make(map[string]Trouble)
	}
	t.of[source] = Trouble{time.Now(), err.Error()}
}

// Troubles are those of the sources, by name.
func (r *Registry) Troubles() map[string]Trouble {
	t := &r.troubles
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.of)
}
