package discovery_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pools/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is what a source has said: lists and reports, in order.
type journal struct {
	mu      sync.Mutex
	lists   [][]registry.Spec
	reports []error
}

func (j *journal) apply(specs []registry.Spec) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lists = append(j.lists, specs)
}

func (j *journal) report(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.reports = append(j.reports, err)
}

// applied takes the URLs of the lists that were applied since it was asked last.
func (j *journal) applied() [][]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out [][]string
	for _, list := range j.lists {
		urls := []string{}
		for _, s := range list {
			urls = append(urls, s.URL)
		}
		out = append(out, urls)
	}
	j.lists = nil
	return out
}

// reported takes what was reported since it was asked last; "" is nil.
func (j *journal) reported() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, err := range j.reports {
		if err == nil {
			out = append(out, "")
			continue
		}
		out = append(out, err.Error())
	}
	j.reports = nil
	return out
}

// running runs a source until the test has ended, which must be in a bubble.
func running(t *testing.T, source registry.Source, j *journal) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, j.apply) }()
	synctest.Wait()
	return func() {
		cancel()
		assert.NoError(t, <-done, "Run returns when its context has ended")
	}
}
