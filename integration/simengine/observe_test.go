package simengine

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched keeps what an engine shows its observer.
type watched struct {
	mu   sync.Mutex
	seen []Record
}

func (w *watched) observe(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, r)
}

func (w *watched) all() []Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Record(nil), w.seen...)
}

func TestTheObserverSeesARequestAsItComesAndWhenItIsFreed(t *testing.T) {
	var w watched
	p := newPair(t, func(_, d *Config) { d.Observe, d.KeepRecords = w.observe, -1 })
	_, answer := p.both("/generate", p.routed(7, object{"text": "a"}))
	require.Equal(t, http.StatusOK, answer.status)
	require.Eventually(t, func() bool { return len(w.all()) == 2 }, 10*time.Second, time.Millisecond, "it is shown a little after it is idle")
	seen := w.all()
	for _, r := range seen {
		assert.Equal(t, []Room{"7"}, r.Rooms)
		assert.Contains(t, string(r.Body), `"text":"a"`)
	}
	assert.Zero(t, seen[0].Freed)
	assert.NotZero(t, seen[1].Freed)
	assert.Equal(t, "finished", seen[1].End)
	assert.Empty(t, p.decode.Records(), "none is kept")
}

func TestABatchIsFreedWithItsLastItem(t *testing.T) {
	var w watched
	p := newPair(t, func(_, d *Config) { d.Observe = w.observe })
	call := p.start(t.Context(), p.decode, "/generate", p.routed(7, object{"text": []string{"a", "b"}, "rid": "r"}))
	abort := func(rid string, waiting int) {
		require.NoError(t, p.decode.WaitFor(t.Context(), func([]Record) bool { return p.decode.Loads().Transfer == waiting }))
		require.Equal(t, http.StatusOK, p.post(t.Context(), p.decode, "/abort_request", object{"rid": rid}).status)
	}
	abort("r_0", 2)
	require.Equal(t, http.StatusInternalServerError, (<-call).status, "the first item that fails is the answer")
	assert.Len(t, w.all(), 1, "the other item is still in service")
	abort("r_1", 1)
	require.Eventually(t, func() bool { return len(w.all()) == 2 }, 10*time.Second, time.Millisecond, "it is shown when the last item is out")
	seen := w.all()
	assert.True(t, seen[1].Ended.Before(seen[1].Freed))
}
