package simengine

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wholeBodies has a good body for each endpoint that only whole engines serve.
var wholeBodies = map[string]string{
	"/v1/responses":  `{"model":"tiny","input":"hello","max_output_tokens":5}`,
	"/v1/messages":   `{"model":"tiny","max_tokens":5,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`,
	"/v1/embeddings": `{"model":"tiny","input":["hello","you"]}`,
	"/v1/rerank":     `{"model":"tiny","query":"hello","documents":["you","they","we"]}`,
	"/v1/classify":   `{"model":"tiny","input":"hello"}`,
	"/v1/score":      `{"model":"tiny","query":"hello","items":["you","they"],"label_token_ids":[5,6]}`,
}

func TestAWholeEngineServesWhatAPairDoesNot(t *testing.T) {
	w := newWhole(t, nil)
	for path, body := range wholeBodies {
		t.Run(path, func(t *testing.T) {
			first := w.call(path, []byte(body))
			require.Equal(t, http.StatusOK, first.status, "%s", first.body)
			assert.Contains(t, string(first.body), `"sim":{"engine":"whole"}`)
			again := w.call(path, []byte(body))
			assert.Equal(t, http.StatusOK, again.status)
			w.idle(w.e)
			recs := w.e.Records()
			last := recs[len(recs)-1]
			assert.Equal(t, path, last.Path)
			assert.JSONEq(t, body, string(last.Body))
			assert.Equal(t, "finished", last.End)
			assert.False(t, last.Freed.IsZero())
		})
	}
	require.NoError(t, w.e.Wait(t.Context(), 2*len(wholeBodies)), "they count as generation requests do")
	for _, path := range []string{"/v1/audio/speech", "/v1/responses/x/cancel", "/v1/embeddings/x"} {
		assert.Equal(t, http.StatusNotFound, w.call(path, object{}).status, path)
	}
}

func TestHalfAnEngineRefusesWhatOnlyAWholeOneDoes(t *testing.T) {
	p := newPair(t, nil)
	for path, body := range wholeBodies {
		words := "does not appear to be an embedding model"
		if path == "/v1/responses" || path == "/v1/messages" || path == "/v1/score" {
			words = "Disaggregated request received without bootstrap room id"
		}
		for _, e := range []*Engine{p.prefill, p.decode} {
			got := p.post(t.Context(), e, path, []byte(body))
			assert.Equal(t, http.StatusBadRequest, got.status, path)
			assert.Contains(t, string(got.body), words, path)
		}
	}
}

func TestTheAnswersOfAWholeEngine(t *testing.T) {
	w := newWhole(t, nil)
	answer := func(path string) object { return w.call(path, []byte(wholeBodies[path])).object(t) }

	embeddings := answer("/v1/embeddings")["data"].([]any)
	require.Len(t, embeddings, 2)
	assert.Len(t, embeddings[1].(object)["embedding"], embeddingSize)
	assert.Equal(t, 1.0, embeddings[1].(object)["index"])
	assert.Equal(t, embeddings, answer("/v1/embeddings")["data"], "they are the same each time")

	var ranked []object
	require.NoError(t, json.Unmarshal(w.call("/v1/rerank", []byte(wholeBodies["/v1/rerank"])).body, &ranked))
	require.Len(t, ranked, 3)
	assert.GreaterOrEqual(t, ranked[0]["score"], ranked[1]["score"])
	assert.GreaterOrEqual(t, ranked[1]["score"], ranked[2]["score"])

	class := answer("/v1/classify")["data"].([]any)[0].(object)
	assert.Len(t, class["probs"], labelCount)
	scores := answer("/v1/score")["scores"].([]any)
	require.Len(t, scores, 2)
	assert.Len(t, scores[0], 2)

	long := object{"model": "tiny", "input": strings.Repeat("a", 40)}
	w.call("/v1/embeddings", long)
	usage := w.call("/v1/embeddings", long).object(t)["usage"].(object)
	assert.Equal(t, 32.0, usage["prompt_tokens_details"].(object)["cached_tokens"])
	assert.Equal(t, 40.0, usage["prompt_tokens"])
}

func TestBadBodiesOfTheWholeEndpoints(t *testing.T) {
	w := newWhole(t, nil)
	f := func(path, body, words string) {
		t.Helper()
		got := w.call(path, []byte(body))
		assert.Equal(t, http.StatusBadRequest, got.status, "%s %s", path, body)
		assert.Contains(t, string(got.body), words)
	}
	f("/v1/responses", `{}`, "Field required")
	f("/v1/responses", `{"input":"a","store":"perhaps"}`, "valid boolean")
	f("/v1/responses", `{"input":[]}`, "Messages cannot be empty")
	f("/v1/messages", `{}`, "Field required")
	f("/v1/messages", `{"messages":[{"role":"user","content":"a"}],"max_tokens":"few"}`, "valid integer")
	f("/v1/embeddings", `{}`, "Field required")
	f("/v1/embeddings", `{"input":[]}`, "Input cannot be empty")
	f("/v1/embeddings", `{"input":{}}`, "valid string")
	f("/v1/rerank", `{"query":"a"}`, "Field required")
	f("/v1/rerank", `{"query":"a","documents":[]}`, "documents cannot be empty")
	f("/v1/rerank", `{"query":"a","documents":"b"}`, "valid list")
	f("/v1/score", `{"query":"a","items":["b"]}`, "Field required")
	f("/v1/score", `{"query":"a","items":["b"],"label_token_ids":5}`, "valid list")
	f("/v1/score", `{"model":7}`, "valid string")
	f("/v1/classify", `nope`, "JSON")
}

// namedEvents are the names and the data of a stream.
func namedEvents(t *testing.T, body []byte) (names []string, data []object) {
	t.Helper()
	for block := range bytes.SplitSeq(bytes.TrimSuffix(body, []byte("\n\n")), []byte("\n\n")) {
		first, second, ok := bytes.Cut(block, []byte("\n"))
		require.True(t, ok, "%s", block)
		name, ok := bytes.CutPrefix(first, []byte("event: "))
		require.True(t, ok, "%s", block)
		text, ok := bytes.CutPrefix(second, []byte("data: "))
		require.True(t, ok, "%s", block)
		event := decodeObject(t, text)
		assert.Equal(t, string(name), event["type"])
		names, data = append(names, string(name)), append(data, event)
	}
	return names, data
}

func TestAResponseStreamsNamedEventsAndCanBeReadAgain(t *testing.T) {
	w := newWhole(t, nil)
	body := object{"input": "hello", "max_output_tokens": 3, "ignore_eos": true, "stream": true}
	names, data := namedEvents(t, w.call("/v1/responses", body).body)
	assert.Equal(t, []string{
		"response.created", "response.output_item.added", "response.content_part.added",
		"response.output_text.delta", "response.output_text.delta", "response.output_text.delta",
		"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
	}, names)
	var text strings.Builder
	for i, event := range data {
		assert.Equal(t, float64(i), event["sequence_number"])
		if names[i] == "response.output_text.delta" {
			text.WriteString(event["delta"].(string))
		}
	}
	want := Expected(Tokenize("hello"), Params{MaxNewTokens: 3, IgnoreEOS: true})
	assert.Equal(t, want.Text, text.String())
	whole := data[len(data)-1]["response"].(object)
	assert.Equal(t, 3.0, whole["usage"].(object)["output_tokens"])

	path := "/v1/responses/" + whole["id"].(string)
	assert.Equal(t, whole, w.get(w.e, path).object(t))
	remove, err := http.NewRequest(http.MethodDelete, w.e.URL()+path, nil)
	require.NoError(t, err)
	assert.Equal(t, true, w.do(remove).object(t)["deleted"])
	assert.Equal(t, http.StatusNotFound, w.get(w.e, path).status)
	assert.Empty(t, w.e.current().stored.order)

	body["store"], body["stream"] = false, false
	unstored := w.call("/v1/responses", body).object(t)
	assert.Equal(t, http.StatusNotFound, w.get(w.e, "/v1/responses/"+unstored["id"].(string)).status)
}

func TestTheOldestStoredResponseIsForgotten(t *testing.T) {
	var s storedResponses
	for i := range maxStored + 1 {
		s.put(strconv.Itoa(i), []byte("{}"))
	}
	_, ok := s.get(strconv.Itoa(0))
	assert.False(t, ok)
	_, ok = s.get(strconv.Itoa(maxStored))
	assert.True(t, ok)
	assert.Len(t, s.m, maxStored)
}

func TestAMessageStreamsNamedEvents(t *testing.T) {
	w := newWhole(t, nil)
	names, data := namedEvents(t, w.call("/v1/messages", object{
		"max_tokens": 2, "ignore_eos": true, "stream": true, "messages": []object{{"role": "user", "content": "hello"}},
	}).body)
	assert.Equal(t, []string{
		"message_start", "content_block_start", "content_block_delta", "content_block_delta",
		"content_block_stop", "message_delta", "message_stop",
	}, names)
	assert.Equal(t, "whole", data[0]["message"].(object)["sim"].(object)["engine"])
	assert.Equal(t, "max_tokens", data[5]["delta"].(object)["stop_reason"])

	f := func(body object, reason string, sequence any) {
		t.Helper()
		body["messages"] = []object{{"role": "user", "content": "hello"}}
		got := w.call("/v1/messages", body).object(t)
		assert.Equal(t, reason, got["stop_reason"])
		assert.Equal(t, sequence, got["stop_sequence"])
	}
	f(object{"max_tokens": 3, "ignore_eos": true}, "max_tokens", nil)
	f(object{"max_tokens": 900, "ignore_eos": true, "stop_sequences": []string{"a"}}, "stop_sequence", "a")
	f(object{"max_tokens": 900, "stop_token_ids": []int{firstWord, firstWord + 1, firstWord + 2, firstWord + 3}}, "end_turn", nil)
}

func TestFaultsAndAbortsOfNamedStreams(t *testing.T) {
	w := newWhole(t, func(c *Config) { c.Speed.TokenInterval, c.MaxTotalTokens = 20*time.Millisecond, 500 })
	body := object{"input": "hello", "rid": "r", "max_output_tokens": 400, "ignore_eos": true, "stream": true}
	call := w.start(t.Context(), w.e, "/v1/responses", body)
	w.until(w.e, func(l Loads) bool { return l.Running == 1 })
	require.Equal(t, http.StatusOK, w.call("/abort_request", object{"rid": "r"}).status)
	names, data := namedEvents(t, (<-call).body)
	assert.Equal(t, "response.completed", names[len(names)-1])
	assert.Equal(t, "cancelled", data[len(data)-1]["response"].(object)["status"])

	names, _ = namedEvents(t, w.call("/v1/messages", object{
		"stream": true, "max_tokens": 2, "messages": []object{{"role": "user", "content": strings.Repeat("a", 600)}},
	}).body)
	assert.Equal(t, []string{"error"}, names)

	w.e.SetFault(func(Record) *Fault { return &Fault{Status: http.StatusServiceUnavailable, Body: []byte("busy")} })
	assert.Equal(t, http.StatusServiceUnavailable, w.call("/v1/embeddings", object{"input": "a"}).status)
	w.e.SetFault(func(Record) *Fault { return &Fault{CutAfter: 2} })
	assert.Error(t, w.call("/v1/responses", body).err)
}
