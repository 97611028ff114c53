package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/router"
)

// F50: a stream of which nothing more comes ends with an error event that has a
// code of its own, and both engines are freed. One that makes progress is cut by
// no deadline: see TestAStreamOutlivesEveryDeadlineWhileItMakesProgress.
func TestF50AStreamThatFallsSilentIsEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []call{generateCall(4).streamed(), chatCall(4).streamed(), completionsCall(4).streamed()} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// Prefill is not done either, as of a batch: both legs are open.
			prefill := scripted(t, "prefill-0", pd.Prefill, func(_ http.ResponseWriter, r *http.Request, _ received) {
				<-r.Context().Done()
			})
			decode := scripted(t, "decode-0", pd.Decode, func(w http.ResponseWriter, r *http.Request, _ received) {
				pieces(w, "data: {\"text\":\"a\"}\n\n")
				<-r.Context().Done()
			})
			s := newStack(t, setup{
				prefills: -1, decodes: -1, scripts: []*script{prefill, decode},
				orchestrator: func(o *pd.Orchestrator) {
					o.Retry.MaxAttempts = 5
					o.Upstream.Deadlines.Idle = 300 * time.Millisecond
				},
			})
			r := s.post(c)
			assert.Equal(t, 200, r.status)
			assert.Error(t, r.err, "the end is broken")
			require.Len(t, r.events(), 2, "and there is no [DONE]")
			assert.Contains(t, r.events()[1], "the next event of decode worker decode-0")
			if c.path != generatePath { // whose code is the status
				assert.Contains(t, r.events()[1], `"code":"decode_idle_timeout"`)
			}
			assert.Equal(t, "decode_idle_timeout", s.report(0).Err.Code)
			assert.Equal(t, 1, s.report(0).Attempts)
			for _, worker := range []*script{prefill, decode} {
				s.eventually(func() bool { return worker.aborted() > 0 }, "%s is told", worker.worker.ID)
			}
			assert.Equal(t, map[pd.WorkerID][]pd.Outcome{"prefill-0": {pd.Echo}, "decode-0": {pd.Fault}}, s.outcomes(2))
		})
	}
}

// aborted is how often the script was told to abort something.
func (s *script) aborted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.aborts)
}

// F52: what SIGTERM does. The process's exit code is the command's to test.
func TestF52StreamsOutliveATermination(t *testing.T) {
	t.Parallel()
	s, _, release := twoDecodes(t, setup{router: func(c *router.Config) {
		c.Settle, c.Grace = 2*time.Second, patience
	}})
	streams := s.tenStreams()
	done := s.shutdown()
	s.eventually(func() bool { return s.readiness() == 503 }, "not ready any more")
	select {
	case <-done:
		assert.Fail(t, "it does not wait")
	case <-time.After(2200 * time.Millisecond): // the listener is closed
	}
	release()
	for i, l := range streams {
		r := l.rest()
		require.NoError(t, r.err, "stream %d", i)
		assert.Equal(t, []string{"[DONE]"}, r.events(), "stream %d", i)
	}
	ended := time.Now()
	report := within(t, done, "the shutdown")
	assert.Less(t, time.Since(ended), soon, "there is nothing left to wait for")
	assert.Zero(t, report.Requests)
	assert.Zero(t, report.Connections)
}

func TestF52StreamsThatOutlastTheGraceAreTold(t *testing.T) {
	t.Parallel()
	const grace = 300 * time.Millisecond
	s, decodes, _ := twoDecodes(t, setup{router: func(c *router.Config) { c.Settle, c.Grace = -1, grace }})
	streams := s.tenStreams()
	report := within(t, s.shutdown(), "the shutdown")
	assert.Equal(t, 10, report.Requests)
	assert.GreaterOrEqual(t, report.Elapsed, grace)
	for i, l := range streams {
		r := l.rest()
		assert.Error(t, r.err, "stream %d ends broken", i)
		require.Len(t, r.events(), 1, "and without [DONE]")
		assert.Contains(t, r.events()[0], "shutting down")
		if l.resp.Request.URL.Path != generatePath { // whose code is the status
			assert.Contains(t, r.events()[0], `"code":"shutting_down"`)
		}
	}
	for _, d := range decodes { // whose servers end only when their clients have left
		s.eventually(func() bool { return d.aborted() >= 5 }, "%s is told of each", d.worker.ID)
	}
	for id, outcomes := range s.outcomes(20) {
		assert.NotContains(t, outcomes, pd.Fault, "%s is not to blame", id)
	}
}
