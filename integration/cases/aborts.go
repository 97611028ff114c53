package cases

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// long is more tokens than an engine makes before an abort reaches it.
const long = 800

// abort posts /abort_request for a rid.
func abort(t *testing.T, b Backend, rid string) Answer {
	t.Helper()
	return Post(t, b.Router+"/abort_request", Body{"rid": rid})
}

// abortedStream streams n answers from /generate, aborts a rid when each has
// shown an event, and returns all the events.
func abortedStream(t *testing.T, b Backend, body Body, n int, rid string) []Generated {
	t.Helper()
	response, err := (&http.Client{Timeout: callTimeout}).Do(NewRequest(t, t.Context(), b.Router+"/generate", body.With(stream)))
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var events []Generated
	shown := map[int]bool{}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var event Generated
		require.NoError(t, json.Unmarshal([]byte(data), &event), "%.500s", data)
		events = append(events, event)
		i := 0
		if event.Index != nil {
			i = *event.Index
		}
		if !shown[i] {
			if shown[i] = true; len(shown) == n {
				assert.Equal(t, http.StatusOK, abort(t, b, rid).Status)
			}
		}
	}
	require.NoError(t, lines.Err())
	return events
}

// aborts are the cases of /abort_request.
func aborts() []Case {
	return []Case{
		{"aborts a stream by the client's rid", func(t *testing.T, b Backend) {
			rid := NewRid()
			events := abortedStream(t, b, Body{"input_ids": Tokens(80, 9), "sampling_params": Greedy(long), "rid": rid}, 1, rid)
			end := last(t, events, 1)[0]
			assert.Equal(t, "abort", end.Meta.Finish.Type)
			assert.Less(t, len(end.OutputIDs), long)
			RequireIdle(t, b, idleWithin)
		}},
		{"aborts one prompt of a batch and lets the others go on", func(t *testing.T, b Backend) {
			ids := []string{NewRid(), NewRid()}
			body := Body{"input_ids": [][]int{Tokens(81, 9), Tokens(82, 4)}, "sampling_params": []Body{Greedy(long), Greedy(200)}, "rid": ids}
			ends := last(t, abortedStream(t, b, body, 2, ids[0]), 2)
			assert.Equal(t, "abort", ends[0].Meta.Finish.Type)
			requireLength(t, ends[1], 4, 200)
			RequireIdle(t, b, idleWithin)
		}},
		{"aborts every sample of a call by the client's rid", func(t *testing.T, b Backend) {
			rid := NewRid()
			body := Body{"input_ids": Tokens(83, 9), "sampling_params": greedyTwice(long), "rid": rid}
			for _, end := range last(t, abortedStream(t, b, body, 2, rid), 2) {
				assert.Equal(t, "abort", end.Meta.Finish.Type)
			}
			RequireIdle(t, b, idleWithin)
		}},
		{"aborts a plain call, which answers what it has", func(t *testing.T, b Backend) {
			rid := NewRid()
			body := Body{"input_ids": Tokens(84, 9), "sampling_params": Greedy(long), "rid": rid}
			pending := Begin(NewRequest(t, t.Context(), b.Router+"/generate", body))
			Await(t, b.Decode, callTimeout, func(l Load) bool { return l.Running > 0 })
			assert.Equal(t, http.StatusOK, abort(t, b, rid).Status)
			var answer Generated
			pending.Answer(t).Into(t, &answer)
			require.NotNil(t, answer.Meta.Finish)
			assert.Equal(t, "abort", answer.Meta.Finish.Type)
			RequireIdle(t, b, idleWithin)
		}},
		{"answers an abort of a rid that nobody has", func(t *testing.T, b Backend) {
			assert.Equal(t, http.StatusOK, abort(t, b, NewRid()).Status)
		}},
		{"refuses an abort that names no rid, which would end every call", func(t *testing.T, b Backend) {
			requireOwnError(t, abort(t, b, ""), http.StatusBadRequest)
		}},
	}
}
