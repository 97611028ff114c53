package cases

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// loadPoll is how often an engine is asked for its load.
	loadPoll = 20 * time.Millisecond
	// idleWithin is how soon nothing may be left of a call that has ended.
	idleWithin = 5 * time.Second
)

// Load is what an engine has to do, by its own count.
type Load struct {
	Running int // requests that it generates for
	Waiting int // requests that wait for their other half, for KV or for room
}

// Total is the number of requests that an engine has.
func (l Load) Total() int { return l.Running + l.Waiting }

// LoadOf asks an engine for its load.
func LoadOf(t *testing.T, engine string) Load {
	t.Helper()
	var report struct {
		Loads []struct {
			Running int `json:"num_running_reqs"`
			Waiting int `json:"num_waiting_reqs"`
			Queues  struct {
				Bootstrap int `json:"prefill_bootstrap_queue_reqs"`
				Inflight  int `json:"prefill_inflight_queue_reqs"`
				Prealloc  int `json:"decode_prealloc_queue_reqs"`
				Transfer  int `json:"decode_transfer_queue_reqs"`
				Retracted int `json:"decode_retracted_queue_reqs"`
			} `json:"disaggregation"`
		} `json:"loads"`
	}
	Get(t, engine+"/v1/loads").Into(t, &report)
	require.NotEmpty(t, report.Loads)
	var load Load
	for _, rank := range report.Loads {
		q := rank.Queues
		load.Running += rank.Running
		// The count of waiting requests holds most of the queues already.
		load.Waiting += max(rank.Waiting, q.Bootstrap+q.Inflight+q.Prealloc+q.Transfer+q.Retracted)
	}
	return load
}

// Await waits until an engine's load is as wanted, and fails after a time. An
// engine may have a probe of its health to answer at any moment.
func Await(t *testing.T, engine string, within time.Duration, wanted func(Load) bool) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(loadPoll) {
		load := LoadOf(t, engine)
		if wanted(load) {
			return
		}
		require.True(t, time.Now().Before(end), "%s still has %+v after %s", engine, load, within)
	}
}

// RequireIdle waits until neither engine has a request, and fails after a time.
func RequireIdle(t *testing.T, b Backend, within time.Duration) {
	t.Helper()
	for _, engine := range []string{b.Prefill, b.Decode} {
		Await(t, engine, within, func(l Load) bool { return l.Total() == 0 })
	}
}
