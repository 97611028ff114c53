package legs

import (
	"runtime/debug"
	"sync"
)

// Group runs goroutines that somebody waits for, and keeps a panic in one of
// them from ending the process. The zero value is ready.
type Group struct {
	// Panic is told what was recovered; nil drops it.
	Panic func(value any, stack []byte)

	wg sync.WaitGroup
}

// Go runs f. When f panics, undo runs in its place; it may be nil.
func (g *Group) Go(f, undo func()) {
	g.wg.Go(func() {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if g.Panic != nil {
				g.Panic(v, debug.Stack())
			}
			if undo != nil {
				undo()
			}
		}()
		f()
	})
}

// Wait returns when every goroutine has ended.
func (g *Group) Wait() { g.wg.Wait() }
