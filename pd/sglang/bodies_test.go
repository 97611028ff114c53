package sglang_test

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

func TestWhatKillsOrCorruptsEnginesIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, silent, silent)
	for _, tt := range []struct {
		ep          pd.Endpoint
		body, param string
	}{
		{pd.Generate, `{"text":"a","top_logprobs_num":129}`, "top_logprobs_num"},
		{pd.Generate, `{"text":["a","b"],"top_logprobs_num":[1,129]}`, "top_logprobs_num"},
		{pd.Generate, `{"text":"a","top_logprobs_num":"5"}`, "top_logprobs_num"},
		{pd.Generate, `{"text":"a","top_logprobs_num":1,"top_logprobs_num":200}`, "top_logprobs_num"},
		{pd.Generate, `{"text":"a","top_logprobs_num":1e3}`, "top_logprobs_num"},
		{pd.Completions, `{"prompt":"a","logprobs":129}`, "logprobs"},
		{pd.Completions, `{"prompt":"a","logprobs":true}`, "logprobs"},
		{pd.Chat, `{"messages":[],"top_logprobs":129}`, "top_logprobs"},
		{pd.Chat, `{"messages":[],"top_logprobs":9223372036854775808}`, "top_logprobs"},
		{pd.Generate, `{"text":"a","session_params":{"id":"x"}}`, "session_params"},
		{pd.Generate, `{"text":"a","session_id":"x"}`, "session_id"},
		{pd.Chat, `{"messages":[],"session_id":"x"}`, "session_id"},
		{pd.Generate, `{"text":[]}`, "text"},
		{pd.Generate, `{"text":"a","return_logprob":"true"}`, "return_logprob"},
		{pd.Generate, `{"text":"a","return_logprob":1}`, "return_logprob"},
		{pd.Generate, `{"text":["a"],"return_logprob":[1]}`, "return_logprob"},
		{pd.Generate, `{"text":"a","return_routed_experts":"yes"}`, "return_routed_experts"},
		{pd.Completions, `{"prompt":"a","echo":"yes"}`, "echo"},
		{pd.Chat, `{"messages":[],"n":129}`, "n"},
		{pd.Chat, `{"messages":[],"n":"2"}`, "n"},
		{pd.Generate, `{"text":"a","stream":"true"}`, "stream"},
	} {
		req, err := pd.NewRequest(tt.ep, []byte(tt.body))
		if err == nil {
			_, err = r.orch.Serve(t.Context(), req)
		}
		e := asError(t, err)
		assert.Equal(t, 400, e.Status, tt.body)
		assert.Equal(t, pd.Invalid, e.Kind, tt.body)
		assert.Equal(t, tt.param, e.Param, tt.body)
	}
	assert.Zero(t, r.prefill.calls()+r.decode.calls(), "nothing is dispatched on a 400")
	assert.Empty(t, r.outcomes)
}

func TestWhatEnginesCanDoIsNotRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ep   pd.Endpoint
		body string
	}{
		{pd.Generate, `{"text":"a","top_logprobs_num":128}`},
		{pd.Generate, `{"text":"a","top_logprobs_num":null,"session_params":null}`},
		{pd.Generate, `{"text":["a","b"],"top_logprobs_num":[null,128]}`},
		{pd.Generate, `{"text":"a","top_logprobs_num":500,"top_logprobs_num":5}`},
		{pd.Completions, `{"prompt":"a","logprobs":128,"top_logprobs_num":500}`},
		{pd.Chat, `{"messages":[],"logprobs":true,"top_logprobs":128}`},
		{pd.Chat, `{"messages":[{"session_id":"data of the client's"}]}`},
	} {
		req, err := pd.NewRequest(tt.ep, []byte(tt.body))
		require.NoError(t, err)
		r := newRig(t, nil, nil)
		_, err = r.dialect.Samples(req)
		assert.NoError(t, err, tt.body)
	}
}

var (
	anyRoom = regexp.MustCompile(`"bootstrap_room":(\d{5,}|\[[\d,]+\])`)
	anyRid  = regexp.MustCompile(`"[0-9a-f]{32}"`)
	anyNum  = regexp.MustCompile(`\d+`)
)

// blank writes R for every room and "#" for every rid of ours.
func blank(body string) string {
	body = anyRoom.ReplaceAllStringFunc(body, func(s string) string { return anyNum.ReplaceAllString(s, "R") })
	return anyRid.ReplaceAllString(body, `"#"`)
}

func TestBodiesOfBothLegs(t *testing.T) {
	t.Parallel()
	const (
		host = `"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":R`
		two  = `"bootstrap_host":["10.0.0.5","10.0.0.5"],"bootstrap_port":[8998,8998],"bootstrap_room":[R,R]`
		one  = `"bootstrap_host":["10.0.0.5"],"bootstrap_port":[8998],"bootstrap_room":[R]`
	)
	f := func(name string, ep pd.Endpoint, body, want string, set ...func(r *rig)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
			for _, s := range set {
				s(r)
			}
			_, _, err := r.serve(t.Context(), ep, body)
			require.NoError(t, err)
			r.ended()
			assert.Equal(t, want, blank(r.prefill.text(0)))
			assert.Equal(t, r.prefill.text(0), r.decode.text(0), "byte for byte the same on both legs")
			checkRooms(t, r.prefill.text(0))
		})
	}
	f("one prompt gets scalars", pd.Generate, `{"text":"a"}`, `{`+host+`,"rid":"#","text":"a"}`)
	f("chat", pd.Chat, `{"messages":[]}`, `{`+host+`,"rid":"#","messages":[]}`)
	f("a batch gets lists", pd.Generate, `{"text":["a","b"]}`, `{`+two+`,"rid":["#","#"],"text":["a","b"]}`)
	f("a batch of one gets lists of one", pd.Completions, `{"prompt":["a"]}`, `{`+one+`,"rid":["#"],"prompt":["a"]}`)
	f("an empty object", pd.Generate, ` { } `, ` {`+host+`,"rid":"#" } `)

	f("a client's rid stays where it is", pd.Generate, `{"text":"a","rid":"mine"}`, `{`+host+`,"text":"a","rid":"mine"}`)
	f("a client's rids stay", pd.Generate, `{"text":["a","b"],"rid":["x","y"]}`, `{`+two+`,"text":["a","b"],"rid":["x","y"]}`)
	f("one rid for a batch becomes a list", pd.Generate, `{"rid":"mine","text":["a","b"]}`, `{`+two+`,"rid":["mine_0","mine_1"],"text":["a","b"]}`)
	f("null is no rid", pd.Generate, `{"rid":null,"text":"a"}`, `{`+host+`,"rid":"#","text":"a"}`)
	f("an empty rid is none", pd.Generate, `{"text":"a","rid":"","rid":""}`, `{`+host+`,"rid":"#","text":"a"}`)
	f("a rid that is overruled by null goes", pd.Generate, `{"rid":"x","text":"a","rid":null}`, `{`+host+`,"rid":"#","text":"a"}`)

	f("a client's bootstrap fields never pass, in whatever spelling", pd.Generate,
		`{"bootstrap_room":0,"text":"a","bootstrap_host":"evil","bootstrap_p\u006frt":1,"bootstrap_room":-1,"bootstrap_pair_key":"k"}`,
		`{`+host+`,"rid":"#","text":"a"}`)
	f("but as data they do", pd.Chat, `{"messages":[{"bootstrap_room":0,"rid":"x"}],"x":"\"bootstrap_room\":0"}`,
		`{`+host+`,"rid":"#","messages":[{"bootstrap_room":0,"rid":"x"}],"x":"\"bootstrap_room\":0"}`)
	f("every other byte stays", pd.Generate,
		"{ \"text\" :\t\"\\u00e9\\ud83d\\ude00 \\ud800é\" ,\r\n\"a\":1.0E+2, \"b\":[ 1 ,2],\"a\":-0,\"temperature\":0.70}\n",
		`{`+host+",\"rid\":\"#\", \"text\" :\t\"\\u00e9\\ud83d\\ude00 \\ud800é\" ,\r\n\"a\":1.0E+2, \"b\":[ 1 ,2],\"a\":-0,\"temperature\":0.70}\n")

	f("no port travels as null", pd.Generate, `{"text":"a"}`, `{"bootstrap_host":"10.0.0.5","bootstrap_port":null,"bootstrap_room":R,"rid":"#","text":"a"}`,
		func(r *rig) { r.pworker.BootstrapPort = 0 })
	f("no port travels as nulls in a batch", pd.Generate, `{"text":["a","b"]}`,
		`{"bootstrap_host":["10.0.0.5","10.0.0.5"],"bootstrap_port":[null,null],"bootstrap_room":[R,R],"rid":["#","#"],"text":["a","b"]}`,
		func(r *rig) { r.pworker.BootstrapPort = 0 })
	f("an IPv6 host", pd.Generate, `{"text":"a"}`, `{"bootstrap_host":"[::1]","bootstrap_port":8998,"bootstrap_room":R,"rid":"#","text":"a"}`,
		func(r *rig) { r.pworker.BootstrapHost = "[::1]" })
}

// checkRooms asserts that rooms are distinct and in [1, 2^63-1].
func checkRooms(t *testing.T, raw string) {
	t.Helper()
	var body struct {
		Room json.RawMessage `json:"bootstrap_room"`
	}
	require.NoError(t, json.Unmarshal([]byte(raw), &body))
	var rooms []uint64
	if body.Room[0] == '[' {
		require.NoError(t, json.Unmarshal(body.Room, &rooms))
	} else {
		rooms = make([]uint64, 1)
		require.NoError(t, json.Unmarshal(body.Room, &rooms[0]))
	}
	seen := map[uint64]bool{}
	for _, room := range rooms {
		assert.NotZero(t, room)
		assert.LessOrEqual(t, room, uint64(math.MaxInt64))
		assert.False(t, seen[room], "a room of its own for each item")
		seen[room] = true
	}
}

func TestRanks(t *testing.T) {
	t.Parallel()
	run := func(name, body string, set func(r *rig), check func(t *testing.T, r *rig, room uint64)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
			set(r)
			for i := range 8 {
				_, _, err := r.serve(t.Context(), pd.Generate, body)
				require.NoError(t, err)
				r.ended()
				var p struct {
					Room uint64 `json:"bootstrap_room"`
				}
				require.NoError(t, json.Unmarshal([]byte(r.prefill.text(i)), &p))
				check(t, r, p.Room)
			}
		})
	}
	last := func(e *engine, name string) any { return e.body(e.calls() - 1)[name] }
	run("the router names them", `{"text":"a"}`, func(r *rig) {
		r.dialect.ExternalDP = true
		r.pworker.DPSize, r.dworker.DPSize = 4, 2
	}, func(t *testing.T, r *rig, room uint64) {
		rank := last(r.prefill, "routed_dp_rank")
		assert.EqualValues(t, room%4, rank, "the room points at prefill's rank")
		assert.Equal(t, rank, last(r.decode, "disagg_prefill_dp_rank"), "decode is told prefill's rank")
		assert.Less(t, last(r.decode, "routed_dp_rank"), 2.0)
		assert.Nil(t, last(r.prefill, "disagg_prefill_dp_rank"))
	})
	run("one rank needs no name", `{"text":"a"}`, func(r *rig) {
		r.dialect.ExternalDP = true
		r.pworker.DPSize, r.dworker.DPSize = 1, 0
	}, func(t *testing.T, r *rig, _ uint64) {
		for _, e := range []*engine{r.prefill, r.decode} {
			assert.NotContains(t, e.body(e.calls()-1), "routed_dp_rank")
			assert.NotContains(t, e.body(e.calls()-1), "disagg_prefill_dp_rank")
		}
	})
	run("the client's wish decides the room", `{"text":"a","disagg_prefill_dp_rank":3}`, func(r *rig) { r.pworker.DPSize = 4 },
		func(t *testing.T, r *rig, room uint64) {
			assert.EqualValues(t, 3, room%4)
			assert.EqualValues(t, 3, last(r.decode, "disagg_prefill_dp_rank"), "and travels as it came")
		})
	run("a wish out of range is the engine's to refuse", `{"text":"a","routed_dp_rank":9}`, func(r *rig) { r.pworker.DPSize = 4 },
		func(t *testing.T, r *rig, _ uint64) { assert.EqualValues(t, 9, last(r.prefill, "routed_dp_rank")) })
}

func TestSamplesGetRoomsRidsAndSeedsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	_, _, err := r.serve(t.Context(), pd.Generate, `{"text":"a","rid":"mine","sampling_params":{"n":3,"sampling_seed":5}}`)
	require.NoError(t, err)
	for range 3 {
		r.ended()
	}
	require.Equal(t, 3, r.prefill.calls())
	seen := map[any]bool{}
	for i := range 3 {
		body := r.prefill.body(i)
		params := body["sampling_params"].(map[string]any)
		assert.EqualValues(t, 1, params["n"])
		for _, own := range []any{body["bootstrap_room"], body["rid"], params["sampling_seed"]} {
			assert.False(t, seen[own], "%v", own)
			seen[own] = true
		}
		assert.NotEqual(t, "mine", body["rid"])
	}
}

func TestHeadersOfBothLegs(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	r.dworker.APIKey = "decode-key"
	req := r.request(pd.Generate, hi)
	req.Header = pd.Outbound(http.Header{
		"Authorization": {"Bearer client"}, "X-Request-Id": {"r1"}, "Content-Type": {"application/json"},
		"X-Override-Bootstrap-Room": {"0"}, "X-Override-Rid": {"x"}, "X-Override-Routed-Dp-Rank": {"1"}, "Expect": {"100-continue"},
	})
	resp, err := r.orch.Serve(t.Context(), req)
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	r.ended()
	for e, auth := range map[*engine]string{r.prefill: "Bearer client", r.decode: "Bearer decode-key"} {
		h := e.head(0)
		assert.Equal(t, []string{auth}, h["Authorization"])
		assert.Equal(t, "r1", h.Get("X-Request-Id"))
		assert.Equal(t, "identity", h.Get("Accept-Encoding"))
		assert.Empty(t, h.Get("Expect")+h.Get("User-Agent"))
		for name := range h {
			assert.False(t, strings.HasPrefix(name, "X-Override-"), name)
		}
	}
}
