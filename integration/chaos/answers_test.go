package chaos

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// forgedCall asks for "ab cd" in one or two samples.
func forgedCall(path string, stream bool, items int) *call {
	k := &call{path: path, stream: stream, manner: stays}
	for range items {
		k.want = append(k.want, simengine.Output{Text: "ab cd", Finish: "length"})
	}
	return k
}

func forgedAnswer(status int, body string) *answer {
	a := &answer{status: status, header: http.Header{"Content-Type": {"application/json"}}, body: []byte(body)}
	if len(body) > 5 && body[:5] == "data:" {
		a.header.Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	return a
}

const done = "data: [DONE]\n\n"

func TestAnswersAreJudged(t *testing.T) {
	f := func(name string, k *call, a *answer, want outcome) {
		t.Run(name, func(t *testing.T) {
			got := judge(k, a)
			assert.Equal(t, want, got.outcome, got.why)
		})
	}
	plain := func(items int) *call { return forgedCall(generatePath, false, items) }
	streamed := func(items int) *call { return forgedCall(generatePath, true, items) }
	chat := forgedCall(chatPath, true, 1)
	const (
		all   = `{"text":"ab cd","meta_info":{"finish_reason":{"type":"length"}}}`
		part  = `{"text":"ab","meta_info":{"finish_reason":null}}`
		abort = `{"text":"ab","meta_info":{"finish_reason":{"type":"abort"}}}`
		fail  = `{"error":{"message":"no"}}`
	)
	event := func(data string) string { return "data: " + data + "\n\n" }
	cut := func(body string) *answer {
		a := forgedAnswer(200, body)
		a.err = errors.New("cut")
		return a
	}

	f("a whole answer", plain(1), forgedAnswer(200, all), right)
	f("another text", plain(1), forgedAnswer(200, `{"text":"ab ce","meta_info":{"finish_reason":{"type":"length"}}}`), wrong)
	f("half a text", plain(1), forgedAnswer(200, `{"text":"ab","meta_info":{"finish_reason":{"type":"length"}}}`), wrong)
	f("another finish reason", plain(1), forgedAnswer(200, `{"text":"ab cd","meta_info":{"finish_reason":{"type":"stop"}}}`), wrong)
	f("no JSON", plain(1), forgedAnswer(200, "ab cd"), wrong)
	f("an answer cut short", plain(1), cut(all[:9]), broken)
	f("two samples", plain(2), forgedAnswer(200, "["+all+","+all+"]"), right)
	f("one of two samples", plain(2), forgedAnswer(200, "["+all+"]"), wrong)
	f("an error status", plain(1), forgedAnswer(502, fail), refused)
	f("good input refused as bad", plain(1), forgedAnswer(400, fail), wrong)
	f("another good status", plain(1), forgedAnswer(204, ""), wrong)
	f("no answer", plain(1), &answer{err: errors.New("EOF")}, unanswered)
	f("a client that left before", plain(1), &answer{err: errors.New("cancelled"), left: true}, left)

	f("a whole stream", streamed(1), forgedAnswer(200, event(part)+event(all)+done), right)
	f("a stream cut short", streamed(1), cut(event(part)), broken)
	f("a whole stream with a broken end", streamed(1), cut(event(part)+event(all)+done), broken)
	f("a stream that says that it failed", streamed(1), forgedAnswer(200, event(part)+event(fail)+done), broken)
	f("a stream whose finish reason says so", streamed(1),
		forgedAnswer(200, event(`{"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":500}}}`)+done), broken)
	f("a cut stream that ends well", streamed(1), forgedAnswer(200, event(part)), wrong)
	f("a cut stream that looks whole", streamed(1), forgedAnswer(200, event(part)+done), wrong)
	f("half an event before a good end", streamed(1), forgedAnswer(200, event(part)+"data: {"), wrong)
	f("an event after the last", streamed(1), forgedAnswer(200, event(all)+done+event(all)), wrong)
	f("two ends", streamed(1), forgedAnswer(200, event(all)+done+done), wrong)
	f("a text that goes back", streamed(1), forgedAnswer(200, event(all)+event(part)+event(all)+done), wrong)
	f("an index too many", streamed(1), forgedAnswer(200, event(`{"index":1,"text":"ab"}`)+event(all)+done), wrong)
	f("no event stream", streamed(1), forgedAnswer(200, all), wrong)
	f("a line that is no event", streamed(1), forgedAnswer(200, event(all)+"retry\n\n"+done), wrong)
	f("two streams in one", streamed(2),
		forgedAnswer(200, event(all)+event(`{"index":1,"text":"ab cd","meta_info":{"finish_reason":{"type":"length"}}}`)+done), right)
	f("one of two streams", streamed(2), forgedAnswer(200, event(all)+done), wrong)

	const delta = `{"choices":[{"index":0,"delta":{"content":"ab"}}]}`
	const last = `{"choices":[{"index":0,"delta":{"content":" cd"},"finish_reason":"length"}]}`
	f("deltas", chat, forgedAnswer(200, event(delta)+event(last)+done), right)
	f("a delta lost", chat, forgedAnswer(200, event(last)+done), wrong)
	f("a delta twice", chat, forgedAnswer(200, event(delta)+event(delta)+event(last)+done), wrong)
	f("a plain chat", forgedCall(chatPath, false, 1),
		forgedAnswer(200, `{"choices":[{"index":0,"message":{"content":"ab cd"},"finish_reason":"length"}]}`), right)

	f("an abort of one's own", &call{path: generatePath, manner: aborts, want: plain(1).want}, forgedAnswer(200, abort), aborted)
	f("an abort of somebody else's", plain(1), forgedAnswer(200, abort), wrong)
	gone := forgedAnswer(200, event(part)+"data: {")
	gone.left = true
	f("a client that left within a stream", streamed(1), gone, left)
	strange := forgedAnswer(200, event(`{"text":"xy"}`))
	strange.left = true
	f("what it had read is not right", streamed(1), strange, wrong)

	logprobs := plain(1)
	logprobs.prompts = []int{2}
	const spliced = `{"text":"ab cd","meta_info":{"completion_tokens":1,"finish_reason":{"type":"length"},"output_token_logprobs":[1],"input_token_logprobs":`
	f("prompt logprobs", logprobs, forgedAnswer(200, spliced+`[1,2]}}`), right)
	f("prompt logprobs missing", logprobs, forgedAnswer(200, spliced+`[]}}`), wrong)

	f("bad input refused", &call{manner: errs, unsent: true}, forgedAnswer(400, fail), right)
	f("bad input served", &call{manner: errs}, forgedAnswer(200, all), wrong)
	f("bad input that reached an engine in trouble", &call{manner: errs}, forgedAnswer(502, fail), refused)
	f("bad input that must not reach one", &call{manner: errs, unsent: true}, forgedAnswer(502, fail), wrong)
}

func TestCallsAreDecidedByTheirSeedAndOfAllSorts(t *testing.T) {
	newCaller := func() *caller { return &caller{name: "c1", dice: rand.New(rand.NewPCG(1, 1))} }
	a, b := newCaller(), newCaller()
	seen := map[manner]int{}
	paths := map[string]int{}
	ids := map[string]bool{}
	several, streams, own := 0, 0, 0
	for range 2000 {
		k := a.next()
		assert.Equal(t, k, b.next())
		seen[k.manner]++
		paths[k.path]++
		ids[k.id] = true
		if len(k.want) > 1 {
			several++
		}
		if k.stream {
			streams++
		}
		if k.rid != "" {
			own++
		}
	}
	for _, m := range []manner{stays, leavesEarly, leavesLate, readsSlowly, aborts, errs} {
		assert.Positive(t, seen[m], "%s", m)
	}
	assert.Len(t, paths, 3)
	assert.Len(t, ids, 2000)
	assert.Positive(t, several)
	assert.Positive(t, streams)
	assert.Positive(t, own)
}
