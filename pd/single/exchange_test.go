package single_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

const (
	oddBody = " {\"n\" : 3,\"text\":\"\\u0061\", \"zzz\":[1, 2],\"text\":\"b\",\"sampling_params\":{\"n\":4}} \n"
	done    = "data: [DONE]\n\n"
)

func chunk(text, reason string) string {
	if reason == "" {
		reason = "null"
	}
	return `data: {"choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":` + reason + `}]}` + "\n\n"
}

func TestTheBodyGoesOutAsItCame(t *testing.T) {
	f := func(name string, ep pd.Endpoint, method, target, body string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, answers(200, "application/json", `{ "ok" : 1 }`))
			req := request(t, ep, target, body)
			req.Method = method
			resp, answer, err := r.run(req)
			require.NoError(t, err)
			assert.Equal(t, `{ "ok" : 1 }`, answer)
			assert.EqualValues(t, len(answer), resp.Length)
			assert.Equal(t, "e", resp.Header.Get("X-Engine"))
			got := r.engines[0].got()
			require.Len(t, got, 1)
			want := target
			if target == "" {
				want = ep.Path()
			}
			assert.Equal(t, [3]string{method, want, body}, [3]string{got[0].method, got[0].target, got[0].body}, "nothing is put in")
			assert.Equal(t, []pd.Outcome{pd.Success}, r.ended())
		})
	}
	f("generate, with n and unknown fields", pd.Generate, "POST", "", oddBody)
	f("PUT", pd.Generate, "PUT", "", oddBody)
	f("chat", pd.Chat, "POST", "/v1/chat/completions?x=%20y", oddBody)
	f("completions", pd.Completions, "POST", "", oddBody)
	f("embeddings", pd.Other, "POST", "/v1/embeddings", `{"input":["a","b"]}`)
	f("a body that is no JSON", pd.Other, "POST", "/v1/audio/transcriptions", "--x\r\n\xff\x00--x--")
	f("no body", pd.Other, "GET", "/v1/responses/resp_1?a=b&a=c", "")
	f("an escaped path", pd.Other, "DELETE", "/v1/files/a%2Fb", "")
	f("a large body", pd.Other, "POST", "/v1/x", strings.Repeat("x", 1<<20))
}

func TestAStreamPassesByteForByte(t *testing.T) {
	f := func(name string, ep pd.Endpoint, target string, parts ...string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, streams(nil, parts...))
			resp, answer, err := r.run(request(t, ep, target, `{"stream":true}`))
			require.NoError(t, err)
			assert.True(t, resp.Stream)
			assert.Equal(t, strings.Join(parts, ""), answer)
		})
	}
	f("chat", pd.Chat, "", chunk("a", ""), chunk("b", `"stop"`), done)
	f("cut anywhere", pd.Chat, "", "data: {\"choices\":[]", "}\n\nda", "ta: [DO", "NE]\n\n")
	f("without [DONE]", pd.Chat, "", chunk("a", ""), chunk("b", `"stop"`))
	f("comments and CRLF", pd.Chat, "", ": ping\r\n\r\n", "data: {}\r\n\r\n", "data: [DONE]\r\n\r\n")
	f("named events of another API", pd.Other, "/v1/messages", "event: message_start\ndata: {}\n\n", "event: message_stop\ndata: {}\n\n")
	f("an error in the middle", pd.Chat, "", chunk("a", ""), `data: {"error":{"message":"no","code":500}}`+"\n\n", done)
	f("an abort from somewhere", pd.Generate, "", `data: {"text":"","meta_info":{"finish_reason":{"type":"abort","status_code":null}}}`+"\n\n", done)
	f("a large first event", pd.Chat, "", "data: {\"x\":\""+strings.Repeat("x", 200<<10)+"\"}\n\n", done)
}

func TestWhatTheEngineCountsIsReported(t *testing.T) {
	f := func(name string, ep pd.Endpoint, body string, handle http.HandlerFunc, prompt, completion, cached, events int) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, handle)
			_, _, err := r.serve(ep, body)
			require.NoError(t, err)
			rep := r.report()
			assert.Equal(t, [4]int{prompt, completion, cached, events},
				[4]int{rep.PromptTokens, rep.CompletionTokens, rep.CachedTokens, rep.Events})
			assert.Equal(t, pd.Regular, rep.Legs[0].Role)
			assert.NotZero(t, rep.Legs[0].First)
		})
	}
	const usage = `"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}`
	f("plain chat", pd.Chat, `{}`, answers(200, "application/json", `{"choices":[],`+usage+`}`), 7, 3, 5, 0)
	f("streamed chat", pd.Chat, `{"stream":true}`, streams(nil, chunk("a", `"stop"`), "data: {"+usage+"}\n\n", done), 7, 3, 5, 2)
	item := `{"text":"a","meta_info":{"prompt_tokens":7,"completion_tokens":3,"cached_tokens":5,"finish_reason":{"type":"stop"}}}`
	f("plain generate", pd.Generate, `{"text":"a"}`, answers(200, "application/json", item), 7, 3, 5, 0)
	f("the prompt of several samples is counted once", pd.Generate, `{"text":"a","sampling_params":{"n":2}}`,
		answers(200, "application/json", "["+item+","+item+"]"), 7, 6, 5, 0)
	f("streamed samples", pd.Generate, `{"text":"a","stream":true,"sampling_params":{"n":2}}`,
		streams(nil, "data: "+item+"\n\n", "data: "+item+"\n\n", done), 7, 6, 5, 2)
	const response = `"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":5},"output_tokens":3,"total_tokens":10}`
	f("a plain response", pd.Other, `{"input":"a"}`, answers(200, "application/json", `{"object":"response",`+response+`}`), 7, 3, 5, 0)
	f("a streamed response", pd.Other, `{"input":"a","stream":true}`, streams(nil,
		`event: response.created`+"\n"+`data: {"type":"response.created","response":{"usage":null}}`+"\n\n",
		`event: response.completed`+"\n"+`data: {"type":"response.completed","response":{`+response+`}}`+"\n\n"), 7, 3, 5, 2)
	f("a plain message", pd.Other, `{"messages":[]}`, answers(200, "application/json",
		`{"type":"message","usage":{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":5}}`), 7, 3, 5, 0)
	f("a streamed message counts its prompt first and its text last", pd.Other, `{"messages":[],"stream":true}`, streams(nil,
		`event: message_start`+"\n"+`data: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":0,"cache_read_input_tokens":5}}}`+"\n\n",
		`event: message_delta`+"\n"+`data: {"type":"message_delta","delta":{},"usage":{"output_tokens":3}}`+"\n\n",
		`event: message_stop`+"\n"+`data: {"type":"message_stop"}`+"\n\n"), 7, 3, 5, 3)
	f("or all of it last", pd.Other, `{"messages":[],"stream":true}`, streams(nil,
		`data: {"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}`+"\n\n",
		`data: {"type":"message_delta","delta":{},"usage":{"input_tokens":2,"output_tokens":3,"cache_read_input_tokens":5}}`+"\n\n"), 7, 3, 5, 2)
	f("an answer that counts nothing", pd.Other, `x`, answers(200, "text/plain", "hello"), 0, 0, 0, 0)
}

func TestAClientThatLeavesFreesTheEngine(t *testing.T) {
	stream := streams(silent, chunk("a", ""))
	f := func(name, body string, handle http.HandlerFunc, commits bool, aborts ...string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, handle)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if commits {
				resp, err := r.orch.Serve(ctx, request(t, pd.Generate, "", body))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			} else {
				time.AfterFunc(50*time.Millisecond, cancel)
				_, err := r.orch.Serve(ctx, request(t, pd.Generate, "", body))
				assert.Equal(t, pd.Cancelled, pd.AsError(err).Kind)
			}
			r.engines[0].gone(t)
			assert.Equal(t, []pd.Outcome{pd.Left}, r.ended())
			r.dialect.Wait()
			assert.Subset(t, r.engines[0].aborted(), aborts)
			if aborts == nil {
				assert.Empty(t, r.engines[0].aborted(), "nothing was named, nothing can be told")
			}
			assert.Len(t, r.engines[0].got(), 1, "nothing is tried again")
		})
	}
	f("a stream", `{"stream":true}`, stream, true)
	f("a stream with a rid", `{"stream":true,"rid":"mine"}`, stream, true, "mine")
	f("a batch with a rid", `{"text":["a","b"],"stream":true,"rid":"mine"}`, stream, true, "mine_0", "mine_1")
	f("a batch with rids", `{"text":["a","b"],"stream":true,"rid":["x","y"]}`, stream, true, "x", "y")
	f("a plain answer under way", `{}`, begun, true)
	f("before the answer", `{}`, silent, false)
	f("before the answer, with a rid", `{"rid":"mine"}`, silent, false, "mine")
	f("before the first event", `{"stream":true}`, streams(silent, ": ping\n\n"), false)
}

// Closing may come from another goroutine while a read waits.
func TestCloseEndsAReadThatWaits(t *testing.T) {
	r := newRig(t, streams(silent, chunk("a", "")))
	resp, err := r.orch.Serve(t.Context(), request(t, pd.Chat, "", `{"stream":true}`))
	require.NoError(t, err)
	buf := make([]byte, 4096)
	_, err = resp.Body.Read(buf)
	require.NoError(t, err)
	read := make(chan error, 1)
	go func() {
		_, err := resp.Body.Read(buf)
		read <- err
	}()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, resp.Body.Close())
	select {
	case err := <-read:
		assert.Equal(t, pd.Cancelled, pd.AsError(err).Kind)
	case <-time.After(patience):
		require.FailNow(t, "the read goes on")
	}
	require.NoError(t, resp.Body.Close(), "twice is once")
}

func TestDeadlines(t *testing.T) {
	const short = 150 * time.Millisecond
	f := func(name, body string, d pd.Deadlines, handle http.HandlerFunc, code, tail string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, handle)
			r.orch.Upstream.Deadlines = d
			_, answer, err := r.serve(pd.Chat, body)
			e := pd.AsError(err)
			assert.Equal(t, code, e.Code)
			assert.Equal(t, http.StatusGatewayTimeout, e.Status)
			assert.Contains(t, e.Message, "regular-0")
			assert.True(t, strings.HasSuffix(answer, tail), answer)
			r.engines[0].gone(t)
			assert.Equal(t, []pd.Outcome{pd.Fault}, r.ended(), "one attempt: it has had its time")
		})
	}
	f("a plain call", `{}`, pd.Deadlines{Request: short}, silent, "regular_timeout", "")
	f("a plain call under way", `{}`, pd.Deadlines{Request: short}, begun, "regular_timeout", `{"text"`)
	f("a stream's first event", `{"stream":true}`, pd.Deadlines{Request: short}, streams(silent), "regular_first_event_timeout", "")
	f("a stream's next event", `{"stream":true}`, pd.Deadlines{Idle: short}, streams(silent, chunk("a", "")), "regular_idle_timeout",
		`"code":"regular_idle_timeout"}}`+"\n\n")
	f("the rest of a plain answer to a call for a stream", `{"stream":true}`, pd.Deadlines{Idle: short}, begun, "regular_idle_timeout", `{"text"`)

	t.Run("a stream that goes on is never cut", func(t *testing.T) {
		r := newRig(t, streams(func(w http.ResponseWriter, r *http.Request) {
			for range 8 {
				time.Sleep(short / 3)
				streams(nil, chunk("b", ""))(w, r)
			}
			streams(nil, done)(w, r)
		}, chunk("a", "")))
		r.orch.Upstream.Deadlines = pd.Deadlines{Request: short, Idle: 10 * short}
		_, _, err := r.serve(pd.Chat, `{"stream":true}`)
		require.NoError(t, err)
	})
	t.Run("a stream that has said [DONE] is whole though its connection stays", func(t *testing.T) {
		r := newRig(t, streams(silent, chunk("a", ""), done))
		r.orch.Upstream.Deadlines = pd.Deadlines{Idle: short}
		_, answer, err := r.serve(pd.Chat, `{"stream":true}`)
		require.NoError(t, err)
		assert.Equal(t, chunk("a", "")+done, answer)
		assert.Equal(t, []pd.Outcome{pd.Success}, r.ended())
	})
}
