package pd

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd/sse"
)

// mergeStreams takes one event of each sample in turn.
func mergeStreams(t *testing.T, ep Endpoint, streams ...string) string {
	t.Helper()
	m := newStreamMerge(testMerging(ep, len(streams)))
	var out bytes.Buffer
	queues := make([][]string, len(streams))
	for j, stream := range streams {
		events := strings.SplitAfter(stream, "\n\n")
		queues[j] = events[:len(events)-1] // an empty text follows the last
	}
	for slices.ContainsFunc(queues, func(q []string) bool { return len(q) > 0 }) {
		for j := range queues {
			if len(queues[j]) == 0 {
				continue
			}
			event, _, err := m.take(j, []byte(queues[j][0]))
			require.NoError(t, err)
			out.Write(event)
			queues[j] = queues[j][1:]
		}
	}
	tail, err := m.tail()
	require.NoError(t, err)
	out.Write(tail)
	return out.String()
}

func TestStreamMergeOfRealStreams(t *testing.T) {
	for name, ep := range map[string]Endpoint{
		"generate_stream.sse": Generate, "generate_stream_batch.sse": Generate,
		"chat_stream.sse": Chat, "completions_stream.sse": Completions, "completions_batch_stream.sse": Completions,
	} {
		t.Run(name, func(t *testing.T) {
			stream := capture(t, name)
			golden(t, name, mergeStreams(t, ep, stream, another(stream)))
		})
	}
}

func TestStreamMergeHasTheShapeOfAnEnginesBatch(t *testing.T) {
	stream := capture(t, "generate_stream.sse")
	for event := range strings.SplitSeq(mergeStreams(t, Generate, stream, stream), "\n\n") {
		if event == "" || event == "data: [DONE]" {
			continue
		}
		var got map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &got))
		assert.Len(t, got, 4, "text, output_ids, meta_info and index")
		assert.Contains(t, []string{"0", "1"}, string(got["index"]))
	}
}

var sampleEvents = []struct {
	name  string
	ep    Endpoint
	event string // sample 1's of 2
	want  string // "" when it is held back
}{
	{"generate: an event of a single prompt gets an index", Generate, `data: {"text":"a"}` + "\n\n", `data: {"index":1,"text":"a"}` + "\n\n"},
	{"generate: an event of a batch is renumbered in its place", Generate, `data: {"text":"a","index":3}` + "\n\n", `data: {"text":"a","index":7}` + "\n\n"},
	{"generate: a null index counts as none", Generate, `data: {"index":null}` + "\n\n", `data: {"index":1}` + "\n\n"},
	{
		"generate: id, created and choices are nothing special", Generate,
		`data: {"id":"x","created":1,"choices":[{"index":0}]}` + "\n\n", `data: {"index":1,"id":"x","created":1,"choices":[{"index":0}]}` + "\n\n",
	},
	{"generate: an error passes as it came", Generate, `data: {"error": {"message":"no"}}` + "\n\n", `data: {"error": {"message":"no"}}` + "\n\n"},
	{"generate: null is no error", Generate, `data: {"error":null}` + "\n\n", `data: {"index":1,"error":null}` + "\n\n"},
	{
		"chat: id, created and index are rewritten, white space stays", Chat,
		`data: {"id":"x", "created" : 9,"choices":[ {"index":0,"delta":{"content":"\u0061 b"}} ]}` + "\n\n",
		`data: {"id":"call-1", "created" : 5,"choices":[ {"index":1,"delta":{"content":"\u0061 b"}} ]}` + "\n\n",
	},
	{
		"chat: several choices in one event", Chat,
		`data: {"choices":[{"index":1},{"index":0}]}` + "\n\n", `data: {"choices":[{"index":3},{"index":1}]}` + "\n\n",
	},
	{
		"chat: words within the text are text", Chat,
		`data: {"choices":[{"index":0,"delta":{"content":"\"index\":0,\"id\":\"x\""}}]}` + "\n\n",
		`data: {"choices":[{"index":1,"delta":{"content":"\"index\":0,\"id\":\"x\""}}]}` + "\n\n",
	},
	{
		"chat: usage that runs along passes", Chat,
		`data: {"choices":[{"index":0}],"usage":{"completion_tokens":1}}` + "\n\n", `data: {"choices":[{"index":1}],"usage":{"completion_tokens":1}}` + "\n\n",
	},
	{"chat: an event without choices passes", Chat, `data: {"id":"x","choices":[],"sglext":{}}` + "\n\n", `data: {"id":"call-1","choices":[],"sglext":{}}` + "\n\n"},
	{"chat: usage alone is held back", Chat, `data: {"choices":[],"usage":{"completion_tokens":1}}` + "\n\n", ""},
	{"chat: an error passes as it came", Chat, `data: {"error":{"object":"error","code":500},"id":"x"}` + "\n\n", `data: {"error":{"object":"error","code":500},"id":"x"}` + "\n\n"},
	{"chat: a flat error too", Chat, `data: {"object":"error","id":"x","choices":null}` + "\n\n", `data: {"object":"error","id":"x","choices":null}` + "\n\n"},
	{"the end is held back", Chat, "data: [DONE]\n\n", ""},
	{"a comment passes", Chat, ": ping\n\n", ": ping\n\n"},
	{"other lines and line ends stay", Generate, "event: x\r\nid: 4\r\ndata:{}\r\n\r\n", "event: x\r\nid: 4\r\ndata:{\"index\":1}\r\n\r\n"},
}

func TestEventOfASample(t *testing.T) {
	for _, f := range sampleEvents {
		t.Run(f.name, func(t *testing.T) {
			m := newStreamMerge(testMerging(f.ep, 2))
			_, _, err := m.take(0, []byte(`data: {"created":5,"choices":[]}`+"\n\n"))
			require.NoError(t, err)
			got, _, err := m.take(1, []byte(f.event))
			require.NoError(t, err)
			assert.Equal(t, f.want, string(got))
		})
	}
}

func TestMergedStreamKeepsNothingOfAnEventsMemory(t *testing.T) {
	const usage = `data: {"choices":[],"created":1,"usage":{"completion_tokens":1}}` + "\n\n"
	for _, event := range []string{
		`data: {"choices":[{"index":0}],"created":1}` + "\n\n", `data: {"error":"no"}` + "\n\n", ": ping\n\n", usage,
	} {
		clean, spoiled := newStreamMerge(testMerging(Chat, 1)), newStreamMerge(testMerging(Chat, 1))
		want, _, err := clean.take(0, []byte(event))
		require.NoError(t, err)
		raw := []byte(event)
		got, _, err := spoiled.take(0, raw)
		require.NoError(t, err)
		copy(raw, bytes.Repeat([]byte("x"), len(raw))) // as the next event would
		assert.Equal(t, string(want), string(got))
		later := []byte(`data: {"choices":[],"created":9}` + "\n\n")
		want, _, err = clean.take(0, later)
		require.NoError(t, err)
		got, _, err = spoiled.take(0, later)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got))
		wantTail, err := clean.tail()
		require.NoError(t, err)
		gotTail, err := spoiled.tail()
		require.NoError(t, err)
		assert.Equal(t, string(wantTail), string(gotTail))
	}
}

func TestEventThatCannotBeGivenToASampleIsRefused(t *testing.T) {
	for name, f := range map[string]struct {
		ep    Endpoint
		event string
	}{
		"several data lines":             {Generate, "data: {\ndata: }\n\n"},
		"a text":                         {Generate, "data: hello\n\n"},
		"an empty payload":               {Generate, "data:\n\n"},
		"an end with a space":            {Generate, "data: [DONE] \n\n"},
		"an index that is no number":     {Generate, `data: {"index":"0"}` + "\n\n"},
		"a negative index":               {Generate, `data: {"index":-1}` + "\n\n"},
		"an index that is too large":     {Generate, `data: {"index":9223372036854775807}` + "\n\n"},
		"a choice's index of wrong type": {Chat, `data: {"choices":[{"index":null}]}` + "\n\n"},
		"a choice that is no object":     {Chat, `data: {"choices":[0]}` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := newStreamMerge(testMerging(f.ep, 2)).take(0, []byte(f.event))
			assert.Error(t, err)
		})
	}
}

func TestEndOfAMergedStream(t *testing.T) {
	const (
		done   = "data: [DONE]\n\n"
		usage3 = `data: {"id":"x","created":5,"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}` + "\n\n"
		usage4 = `data: {"id":"y","created":6,"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4,"total_tokens":5}}` + "\n\n"
		merged = `data: {"id":"call-1","created":5,"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":7,"total_tokens":8}}` + "\n\n"
		only4  = `data: {"id":"call-1","created":6,"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4,"total_tokens":5}}` + "\n\n"
		first  = `data: {"created":5,"choices":[]}` + "\n\n"
	)
	for _, f := range []struct {
		name    string
		streams []string
		want    string
	}{
		{"one usage event and one [DONE]", []string{first + usage3 + done, usage4 + done}, first + merged + done},
		{"no usage", []string{done, done}, done},
		{"usage of one sample alone", []string{done, usage4 + done}, only4 + done},
		{"a sample without [DONE]", []string{first + usage3, usage4 + done}, first + merged},
		{"no sample says anything", []string{": a\n\n", ": b\n\n"}, ": a\n\n: b\n\n"},
	} {
		t.Run(f.name, func(t *testing.T) {
			assert.Equal(t, f.want, mergeStreams(t, Chat, f.streams...))
		})
	}
}

// FuzzSampleEvent cuts a stream into events, merges each and compares: framing
// and payload must be what they were, but for the members that are rewritten.
func FuzzSampleEvent(f *testing.F) {
	for _, e := range sampleEvents {
		f.Add(uint8(e.ep), []byte(e.event))
	}
	for _, name := range []string{"generate_stream_batch.sse", "generate_stream.sse"} {
		f.Add(uint8(Generate), []byte(capture(f, name)))
	}
	for _, name := range []string{"chat_stream.sse", "completions_batch_stream.sse", "completions_stream.sse"} {
		f.Add(uint8(Chat), []byte(capture(f, name)))
	}
	f.Fuzz(func(t *testing.T, ep uint8, stream []byte) {
		m := newStreamMerge(testMerging(Endpoint(ep%3), 3))
		var framer sse.Framer
		_ = framer.Push(stream, func(event []byte) error {
			before := bytes.Clone(event)
			got, _, err := m.take(2, event)
			require.Equal(t, before, event)
			if err != nil || got == nil {
				return nil
			}
			requireSameEvent(t, before, got)
			return nil
		})
		tail, err := m.tail()
		if tail = bytes.TrimSuffix(tail, []byte(doneEvent)); err == nil && len(tail) > 0 {
			require.True(t, json.Valid(sse.Data(tail)), "%q", tail)
		}
	})
}

func requireSameEvent(t *testing.T, before, after []byte) {
	t.Helper()
	data := sse.Data(before)
	if data == nil {
		require.Equal(t, before, after)
		return
	}
	require.True(t, json.Valid(sse.Data(after)), "%q", after)
	start, end, _ := sse.DataSpan(before)
	newStart, newEnd, one := sse.DataSpan(after)
	require.True(t, one)
	require.Equal(t, before[:start], after[:newStart])
	require.Equal(t, before[end:], after[newEnd:])
	require.Equal(t, plainEvent(t, data), plainEvent(t, sse.Data(after)))
}

// plainEvent is a payload less what a merge may rewrite.
func plainEvent(t *testing.T, payload []byte) any {
	t.Helper()
	event := without([]any{decode(t, payload)}, "index", "id", "created")[0].(map[string]any)
	if choices, ok := event["choices"].([]any); ok {
		for i, choice := range choices {
			if _, ok := choice.(map[string]any); ok {
				choices[i] = without([]any{choice}, "index")[0]
			}
		}
	}
	return event
}
