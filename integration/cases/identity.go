package cases

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// identity are the cases of the names of a call, which pair its two legs.
func identity() []Case {
	table := []Case{
		{"keeps a client's rid", func(t *testing.T, b Backend) {
			rid := NewRid()
			answer := generated(t, b, Body{"input_ids": Tokens(70, 9), "sampling_params": Greedy(2), "rid": rid})
			assert.Equal(t, rid, answer.Meta.ID)
		}},
		{"keeps a client's rid on every event of a stream", func(t *testing.T, b Backend) {
			rid := NewRid()
			for _, event := range generatedStream(t, b, Body{"input_ids": Tokens(71, 9), "sampling_params": Greedy(4), "rid": rid}) {
				assert.Equal(t, rid, event.Meta.ID)
			}
		}},
		{"keeps a client's rid of a chat as its id", func(t *testing.T, b Backend) {
			rid := NewRid()
			var answer Completion
			Post(t, b.Router+chatPath, Say("Hello", 2).With(Body{"rid": rid})).Into(t, &answer)
			assert.Equal(t, rid, answer.ID)
		}},
		{"keeps the rids of a batch", func(t *testing.T, b Backend) {
			ids := []string{NewRid(), NewRid()}
			answers := generatedBatch(t, b, Body{
				"input_ids": [][]int{Tokens(72, 9), Tokens(73, 4)}, "sampling_params": Greedy(2), "rid": ids,
			})
			require.Len(t, answers, 2)
			assert.Equal(t, ids, []string{answers[0].Meta.ID, answers[1].Meta.ID})
		}},
		{"makes a rid in place of an empty one", func(t *testing.T, b Backend) {
			for _, rid := range []any{nil, ""} {
				answer := generated(t, b, Body{"input_ids": Tokens(74, 9), "sampling_params": Greedy(2), "rid": rid})
				assert.NotEmpty(t, answer.Meta.ID)
			}
		}},
		{"takes a rid again when its call has ended", func(t *testing.T, b Backend) {
			body := Body{"input_ids": Tokens(75, 9), "sampling_params": Greedy(2), "rid": NewRid()}
			requireLength(t, generated(t, b, body), 9, 2)
			requireLength(t, generated(t, b, body), 9, 2)
		}},
		{"returns the request id that the client sent", func(t *testing.T, b Backend) {
			answer := Post(t, b.Router+chatPath, Say("Hello", 2), "X-Request-Id", "a-request-of-mine")
			assert.Equal(t, "a-request-of-mine", answer.Header.Get("X-Request-Id"))
		}},
		{"returns a request id of its own when the client sent none", func(t *testing.T, b Backend) {
			assert.NotEmpty(t, Post(t, b.Router+chatPath, Say("Hello", 2)).Header.Get("X-Request-Id"))
		}},
		{"ignores headers that would name another room or rid", func(t *testing.T, b Backend) {
			answer := Post(
				t, b.Router+"/generate", Body{"input_ids": Tokens(76, 9), "sampling_params": Greedy(2)},
				"x-override-bootstrap-room", "0", "x-override-bootstrap-host", "127.0.0.9", "x-override-rid", "not-this-one",
			)
			var decoded Generated
			answer.Into(t, &decoded)
			requireLength(t, decoded, 9, 2)
			assert.NotEqual(t, "not-this-one", decoded.Meta.ID)
		}},
		{"ignores a bootstrap field that is given twice", func(t *testing.T, b Backend) {
			answer := Post(t, b.Router+"/generate", `{"bootstrap_room":0,"text":"Hello",`+
				`"sampling_params":{"max_new_tokens":2,"temperature":0},"bootstrap_\u0072oom":-1}`)
			var decoded Generated
			answer.Into(t, &decoded)
			assert.NotEmpty(t, decoded.OutputIDs)
		}},
	}
	for _, given := range []struct {
		what   string
		fields Body
	}{
		{"a room of zero, which would hang decode", Body{"bootstrap_room": 0}},
		{"a negative room, which would end prefill", Body{"bootstrap_room": -1}},
		{"a room that is not a number", Body{"bootstrap_room": "one"}},
		{"a list of rooms for one prompt", Body{"bootstrap_room": []int{5, 6}}},
		{"a bootstrap server that is not there", Body{"bootstrap_host": "127.0.0.9", "bootstrap_port": 1, "bootstrap_room": 5}},
		{"a bootstrap server of null, which would end decode", Body{"bootstrap_host": nil, "bootstrap_port": nil, "bootstrap_room": nil}},
	} {
		table = append(table, Case{"does not pass on " + given.what, func(t *testing.T, b Backend) {
			answer := generated(t, b, Body{"input_ids": Tokens(77, 9), "sampling_params": Greedy(2)}.With(given.fields))
			requireLength(t, answer, 9, 2)
			var said Completion
			Post(t, b.Router+chatPath, Say("Hello", 2).With(given.fields)).Into(t, &said)
			requireUsage(t, said.Usage, 2)
		}})
	}
	return table
}
