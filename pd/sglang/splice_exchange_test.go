package sglang_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

const (
	logprobs       = `{"text":"hi","return_logprob":true}`
	logprobsStream = `{"text":"hi","return_logprob":true,"stream":true}`
	logprobsBatch  = `{"text":["a","b"],"return_logprob":[false,true],"stream":true}`
	inputs         = `[[null,5,null],[-1.5,6,null]]`
)

// item is an answer or event of /generate with logprobs of the prompt.
func item(text, inputs, rest string) string {
	return `{"text":"` + text + `","meta_info":{"id":"x","input_token_logprobs":` + inputs + `,"output_token_logprobs":[[-0.1,1,null]],"finish_reason":null}` + rest + `}`
}

func event(payload string) string { return "data: " + payload + "\n\n" }

// gate holds a script back until the test opens it.
type gate struct {
	once sync.Once
	c    chan struct{}
}

func newGate(t *testing.T) *gate {
	g := &gate{c: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.c) }) }

func (g *gate) then(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-g.c:
			h(w, r)
		case <-r.Context().Done():
		}
	}
}

func TestPromptLogprobsArePrefills(t *testing.T) {
	t.Parallel()
	t.Run("a plain answer waits for prefill's", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, after(100*time.Millisecond, jsonAnswer(200, item("a", inputs, ""))), jsonAnswer(200, item("abc", "[]", "")))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, logprobs))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, item("abc", inputs, ""), string(body))
		assert.EqualValues(t, len(body), resp.Length)
		assert.Empty(t, resp.Header.Get("Content-Length"))
		require.NoError(t, resp.Body.Close())
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Success, pd.Success}, [2]pd.Outcome{p, d})
	})
	t.Run("every event of a stream has them", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, after(100*time.Millisecond, sends(nil, event(item("a", inputs, "")), done)),
			sends(nil, event(item("a", "[]", "")), event(item("ab", "[]", ""))+": ping\n\n"+done))
		_, body, err := r.serve(t.Context(), pd.Generate, logprobsStream)
		require.NoError(t, err)
		assert.Equal(t, event(item("a", inputs, ""))+event(item("ab", inputs, ""))+": ping\n\n"+done, body)
	})
	t.Run("a decode that ends long before prefill loses nothing", func(t *testing.T) {
		t.Parallel()
		first, second := event(item("a", "[]", `,"index":0`)), event(item("b", "[]", `,"index":1`))
		r := newRig(t,
			sends(after(2300*time.Millisecond, sends(nil, event(item("b", inputs, `,"index":1`)), done)), event(item("a", inputs, `,"index":0`))),
			answers(200, "text/event-stream", first+second+done)) // data and end in one read
		_, body, err := r.serve(t.Context(), pd.Generate, logprobsBatch)
		require.NoError(t, err)
		assert.Equal(t, event(item("a", inputs, `,"index":0`))+event(item("b", inputs, `,"index":1`))+done, body)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Success, pd.Success}, [2]pd.Outcome{p, d})
	})
}

func TestEventWaitsForItsOwnItemAlone(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	r := newRig(t,
		sends(g.then(sends(nil, event(item("a", "[1]", `,"index":0`)), done)), event(item("b", "[2]", `,"index":1`))),
		sends(nil, event(item("b", "[]", `,"index":1`)), event(item("a", "[]", `,"index":0`)), done))
	resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, logprobsBatch))
	require.NoError(t, err, "committed on item 1, though prefill has not answered item 0")
	defer resp.Body.Close()
	want := event(item("b", "[2]", `,"index":1`))
	got := make([]byte, len(want))
	_, err = io.ReadFull(resp.Body, got)
	require.NoError(t, err)
	assert.Equal(t, want, string(got))
	g.open()
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, event(item("a", "[1]", `,"index":0`))+done, string(rest))
}

func TestPrefillThatCannotBeSpliced(t *testing.T) {
	t.Parallel()
	f := func(name, body string, prefill, decode http.HandlerFunc, status int, kind pd.Kind, before string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, nil)
			r.prefill.handle, r.decode.handle = together(prefill, decode)
			_, got, err := r.serve(t.Context(), pd.Generate, body)
			e := asError(t, err)
			assert.Equal(t, status, e.Status)
			assert.Equal(t, kind, e.Kind)
			rest, ok := strings.CutPrefix(got, before)
			assert.True(t, ok, got)
			assert.Equal(t, before != "", strings.HasPrefix(rest, `data: {"error":{`), rest)
			assert.NotContains(t, got, "[DONE]")
			r.ended()
		})
	}
	item0 := event(item("a", "[1]", `,"index":0`))
	f("no answer for decode's first event", logprobsStream, sends(nil, done), sends(silent, event(item("a", "[]", ""))), 502, pd.Broken, "")
	f("no answer for a later item", logprobsBatch, sends(nil, item0, done), sends(silent, event(item("a", "[]", `,"index":0`)), event(item("b", "[]", `,"index":1`))), 502, pd.Broken, item0)
	f("a refusal while decode's answer waits", logprobs, after(50*time.Millisecond, jsonAnswer(400, tooLong)), jsonAnswer(200, decodeOK), 400, pd.Refused, "")
	f("a refusal while decode's first event waits", logprobsStream, after(50*time.Millisecond, jsonAnswer(400, tooLong)), sends(silent, event(item("a", "[]", ""))), 400, pd.Refused, "")
	f("a refusal while a later item waits", logprobsBatch, sends(after(time.Second, sends(nil, event(`{"error":{"message":"no","code":422}}`))), item0),
		sends(silent, event(item("a", "[]", `,"index":0`)), event(item("b", "[]", `,"index":1`))), 422, pd.Refused, item0)
	f("a loss while a later item waits", logprobsBatch, sends(after(time.Second, reset), item0),
		sends(silent, event(item("a", "[]", `,"index":0`)), event(item("b", "[]", `,"index":1`))), 502, pd.Lost, item0)
	f("a body that is not JSON", logprobs, jsonAnswer(200, `{"text":`), silent, 502, pd.Broken, "")
	f("an event that is not JSON", logprobsStream, sends(silent, "data: {\"text\n\n"), silent, 502, pd.Broken, "")
	f("decode's body is not JSON", logprobs, jsonAnswer(200, item("a", inputs, "")), jsonAnswer(200, `{"text":`), 502, pd.Broken, "")
}

func TestDecodeThatWaitsForPrefillIsToldWhenPrefillHasNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil)
	r.prefill.handle, r.decode.handle = together(sends(nil, done), sends(silent, event(item("a", "[]", ""))))
	_, _, err := r.serve(t.Context(), pd.Generate, logprobsStream)
	require.Error(t, err)
	r.decode.wasClosed(t)
	r.decode.wasTold(t, r.decode.body(0)["rid"]) // it would generate on, for nobody
}

func TestLargeEvents(t *testing.T) {
	t.Parallel()
	long := "[" + strings.Repeat("[-1.25,7,null],", 20000) + "[-1.25,8,null]]" // some 300 KiB, many reads
	for name, read := range map[string]func(io.Reader) io.Reader{
		"into a large buffer": func(r io.Reader) io.Reader { return r },
		"into a small one":    func(r io.Reader) io.Reader { return &smallReads{r} },
	} {
		t.Run("spliced "+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, sends(nil, event(item("a", long, "")), done), sends(nil, event(item("a", "[]", "")), event(item("ab", long, "")), done))
			resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, logprobsStream))
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(read(resp.Body))
			require.NoError(t, err)
			assert.True(t, string(body) == event(item("a", long, ""))+event(item("ab", long, ""))+done)
		})
	}
	t.Run("a lost prefill hurts nobody once it is spliced", func(t *testing.T) {
		t.Parallel()
		committed := make(chan struct{})
		then := func(h http.HandlerFunc) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { <-committed; h(w, r) }
		}
		r := newRig(t, sends(then(reset), event(item("a", long, ""))),
			sends(then(after(300*time.Millisecond, sends(nil, event(item("ab", "[]", "")), done))), event(item("a", "[]", ""))))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, logprobsStream))
		close(committed)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.True(t, string(body) == event(item("a", long, ""))+event(item("ab", long, ""))+done)
		p, d := r.ended()
		assert.Equal(t, [2]pd.Outcome{pd.Fault, pd.Success}, [2]pd.Outcome{p, d})
	})
	t.Run("a lost prefill hurts nobody once so much has come", func(t *testing.T) {
		t.Parallel()
		big := event(item(strings.Repeat("x", 100<<10), "[]", ""))
		r := newRig(t, after(400*time.Millisecond, reset), sends(after(800*time.Millisecond, sends(nil, event2, done)), big))
		_, body, err := r.serve(t.Context(), pd.Generate, hiStream)
		require.NoError(t, err)
		assert.True(t, body == big+event2+done)
	})
	t.Run("one that is on its way out is finished before the error", func(t *testing.T) {
		t.Parallel()
		g := newGate(t)
		refuse := event(`{"error":{"message":"no","code":422}}`)
		r := newRig(t, sends(g.then(sends(nil, refuse)), event(item("a", long, `,"index":0`))), sends(silent, event(item("a", "[]", `,"index":0`))))
		resp, err := r.orch.Serve(t.Context(), r.request(pd.Generate, logprobsBatch))
		require.NoError(t, err)
		defer resp.Body.Close()
		half := make([]byte, 1000)
		_, err = io.ReadFull(resp.Body, half)
		require.NoError(t, err)
		g.open()
		r.decode.wasClosed(t)
		rest, err := io.ReadAll(resp.Body)
		assert.Equal(t, 422, asError(t, err).Status)
		assert.True(t, string(half)+string(rest) == event(item("a", long, `,"index":0`))+event(`{"error":{"message":"no","code":422}}`))
	})
}

// smallReads reads at most 1000 bytes at a time.
type smallReads struct{ r io.Reader }

func (s *smallReads) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 1000)]) }

func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 150<<10)
	f := func(name, body string, prefill, decode http.HandlerFunc, commits bool, stage pd.Stage) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, nil)
			r.prefill.handle, r.decode.handle = together(prefill, decode)
			r.dialect.MaxEvent = 100 << 10
			bounds := make(chan string, 10)
			r.orch.Hooks.Bound = func(name string) { bounds <- name }
			_, got, err := r.serve(t.Context(), pd.Generate, body)
			e := asError(t, err)
			assert.Equal(t, pd.Broken, e.Kind)
			assert.Equal(t, stage, e.Stage)
			assert.Equal(t, commits, got != "")
			assert.NotContains(t, got, "xxxx")
			r.ended()
			assert.Equal(t, "event", <-bounds)
			if body == logprobsStream {
				loser := map[pd.Stage]*engine{pd.StagePrefill: r.prefill, pd.StageDecode: r.decode}[stage]
				loser.wasClosed(t)
				loser.wasTold(t, loser.body(0)["rid"]) // it would go on
			}
		})
	}
	ok := event(item("a", inputs, ""))
	f("decode's first event, longer than what is held back", logprobsStream, sends(nil, ok, done), sends(silent, event(item(big, "[]", ""))), true, pd.StageDecode)
	f("a later event of decode", logprobsStream, sends(nil, ok, done), sends(silent, event(item("a", "[]", "")), event(item(big, "[]", ""))), true, pd.StageDecode)
	f("prefill's event", logprobsStream, sends(silent, event(item(big, "[]", ""))), silent, false, pd.StagePrefill)
	f("decode's answer", logprobs, jsonAnswer(200, item("a", inputs, "")), jsonAnswer(200, item(big, "[]", "")), false, pd.StageDecode)
}

// The routed experts of a /v1 stream come in one event near its end, on both
// legs: decode's waits for prefill's.
func TestRoutedExpertsOfStreams(t *testing.T) {
	t.Parallel()
	rows := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	chunk := event(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`)
	sglext := func(text string) string {
		return event(`{"choices":[],"sglext":{"routed_experts":"` + rows(text) + `"}}`)
	}
	const body = `{"messages":[],"stream":true,"return_routed_experts":true}`
	t.Run("decode's event waits for prefill's", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(after(150*time.Millisecond, sends(nil, sglext("PROM"), done)), chunk), sends(nil, chunk, sglext("....ANSW"), done))
		_, got, err := r.serve(t.Context(), pd.Chat, body)
		require.NoError(t, err)
		assert.Equal(t, chunk+sglext("PROMANSW")+done, got)
	})
	t.Run("a prefill that is lost before it ends the stream", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(after(time.Second, reset), chunk), sends(after(2*time.Second, sends(nil, sglext("....ANSW"), done)), chunk))
		_, got, err := r.serve(t.Context(), pd.Chat, body)
		assert.Equal(t, pd.Lost, asError(t, err).Kind)
		assert.True(t, strings.HasPrefix(got, chunk+`data: {"error":{`), got)
		assert.NotContains(t, got, "ANSW")
	})
	t.Run("a prefill that is lost after it hurts nobody", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sends(after(time.Second, reset), chunk, sglext("PROM")), sends(after(2*time.Second, sends(nil, sglext("....ANSW"), done)), chunk))
		_, got, err := r.serve(t.Context(), pd.Chat, body)
		require.NoError(t, err)
		assert.Equal(t, chunk+sglext("PROMANSW")+done, got)
	})
}

func TestSplicedBatchOfSamples(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, "["+item("a", "[1]", "")+","+item("b", "[2]", "")+"]"), jsonAnswer(200, "["+item("a1", "[]", "")+","+item("b1", "[]", "")+"]"))
	_, got, err := r.serve(t.Context(), pd.Generate, `{"text":["a","b"],"return_logprob":true,"sampling_params":{"n":2}}`)
	require.NoError(t, err)
	for _, want := range []string{`[1]`, `[2]`} {
		assert.Equal(t, 2, strings.Count(got, `"input_token_logprobs":`+want), "each sample is spliced before the merge: %s", got)
	}
	for range 2 {
		r.ended()
	}
}
