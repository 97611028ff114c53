package integration

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/router"
)

// shutdown begins what SIGTERM does.
func (s *stack) shutdown() <-chan router.Report {
	done := make(chan router.Report, 1)
	go func() { done <- s.app.Shutdown(context.Background(), false) }()
	return done
}

func TestShutdownLetsStreamsFinish(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly, router: func(c *router.Config) {
		c.Settle, c.Grace = 2*time.Second, patience
	}})
	l := s.listen(generateCall(200).streamed()) // of 4 s: it goes on after the settling time
	l.next()
	plain := s.start(generateCall(200))
	arrived(t, s.d, 2)
	done := s.shutdown()
	s.eventually(func() bool { return s.do(http.MethodGet, "/readiness", "").status == 503 }, "not ready any more")
	assert.Equal(t, 200, s.do(http.MethodGet, "/health", "").status, "and yet alive")
	s.ok(generateCall(2)) // accepted while balancers have not heard of it yet

	addr := strings.TrimPrefix(s.url, "http://")
	s.eventually(func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, "the listener is closed")
	rest := l.rest()
	require.NoError(t, rest.err)
	assert.Len(t, rest.events(), 200, "199 events and [DONE]")
	r := plain.wait(t)
	require.NoError(t, r.err)
	assert.Equal(t, 200, r.status)
	report := within(t, done, "the shutdown")
	assert.Zero(t, report.Requests)
	assert.Zero(t, report.Connections)
}

func TestShutdownEndsWhatOutlastsTheGrace(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly, router: func(c *router.Config) {
		c.Settle, c.Grace = -1, 100*time.Millisecond
	}})
	streams := []*listener{
		s.listen(generateCall(500).streamed()), s.listen(chatCall(500).streamed()),
		s.listen(sampled(completionsCall(500), 2, 1).streamed()),
	}
	for _, l := range streams {
		l.next()
	}
	waiting := s.start(generateCall(500))
	s.eventually(func() bool { return s.d.Loads().Running == 5 }, "all run")
	began := time.Now()
	report := within(t, s.shutdown(), "the shutdown")
	assert.Equal(t, 4, report.Requests)
	assert.GreaterOrEqual(t, report.Elapsed, 100*time.Millisecond)
	for _, l := range streams {
		r := l.rest()
		assert.Error(t, r.err, "the end is broken")
		events := r.events()
		require.NotEmpty(t, events)
		assert.Contains(t, events[len(events)-1], "shutting down")
		assert.NotContains(t, events, "[DONE]")
	}
	r := waiting.wait(t)
	assert.Equal(t, 503, r.status)
	assert.Equal(t, "shutting_down", r.header.Get("X-Tandem-Error"))
	assert.NotEmpty(t, r.header.Get("Retry-After"))
	for i := range 5 {
		freed(t, s.d, i, began.Add(100*time.Millisecond))
	}
}

func TestASecondSignalEndsTheGraceAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decode: slowly, router: func(c *router.Config) {
		c.Settle, c.Grace = time.Minute, time.Minute
	}})
	l := s.listen(generateCall(500).streamed())
	l.next()
	first := s.shutdown()
	s.eventually(func() bool { return s.do(http.MethodGet, "/readiness", "").status == 503 }, "it has begun")
	began := time.Now()
	second := within(t, s.shutdown(), "the second call")
	assert.Equal(t, second, within(t, first, "the first call"))
	assert.Equal(t, 1, second.Requests)
	assert.Contains(t, l.rest().body, "shutting down")
	freed(t, s.d, 0, began)
}
