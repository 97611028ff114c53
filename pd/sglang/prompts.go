package sglang

import (
	"context"
	"sync"

	"github.com/tandem-pd/tandem/pd"
)

// prompts is prefill's share of the answer, filled by prefill's leg while
// decode's waits for it.
type prompts struct {
	mu      sync.Mutex
	data    *PromptData
	ended   bool          // nothing more will come
	changed chan struct{} // closed and replaced at every change
}

func newPrompts() *prompts {
	return &prompts{data: new(PromptData), changed: make(chan struct{})}
}

func (p *prompts) update(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// addEvent takes one event of prefill's stream.
func (p *prompts) addEvent(ep pd.Endpoint, data []byte) (err error) {
	p.update(func() { _, err = p.data.AddEvent(ep, data) })
	return err
}

// setBody takes prefill's whole answer.
func (p *prompts) setBody(ep pd.Endpoint, body []byte) error {
	data, err := ReadPrompt(ep, body)
	if err == nil {
		p.update(func() { p.data = data })
	}
	return err
}

// end says that nothing more will come. It may be called on nil.
func (p *prompts) end() {
	if p != nil {
		p.update(func() { p.ended = true })
	}
}

// wait returns when prefill's data of an item is in, of all items with index
// -1. It is false when prefill has ended without it, or ctx has.
func (p *prompts) wait(ctx context.Context, index int) bool {
	for {
		p.mu.Lock()
		ended, changed := p.ended, p.changed
		has := index >= 0 && p.data.Has(index)
		p.mu.Unlock()
		if has || (ended && index < 0) {
			return true
		}
		if ended {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// complete reports whether the data of every item is in, and, with late, what
// comes near the end of a stream.
func (p *prompts) complete(items int, late bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if late && p.data.experts == nil {
		return false
	}
	for i := range items {
		if !p.data.Has(i) {
			return false
		}
	}
	return true
}

func (p *prompts) body(ep pd.Endpoint, decode []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data.Body(ep, decode)
}

func (p *prompts) event(ep pd.Endpoint, event []byte) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.data.Event(ep, event)
}
