package integration

import (
	"testing"
	"time"

	"github.com/tandem-pd/tandem/integration/cases"
	"github.com/tandem-pd/tandem/integration/simengine"
)

// The cases that real engines have to pass, over simulated ones.
func TestCasesOverSimulatedEngines(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: func(c *simengine.Config) { c.Speed.TokenInterval = 2 * time.Millisecond }})
	cases.Run(t, cases.Backend{Router: s.url, Prefill: s.p.URL(), Decode: s.d.URL()}, cases.All())
}
