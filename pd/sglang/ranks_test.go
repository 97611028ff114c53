package sglang_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
)

// With external ranks, a plain /generate answer has to come from the rank that
// decode's body named.
func TestAnswerFromAnotherRankIsRefused(t *testing.T) {
	run := func(name, body string, dpRank func(named any) string, wantErr bool) {
		t.Run(name, func(t *testing.T) {
			var r *rig
			r = newRig(t, jsonAnswer(200, prefillOK), func(w http.ResponseWriter, _ *http.Request) {
				item := `{"text":"a","meta_info":{"dp_rank":` + dpRank(r.decode.body(0)["routed_dp_rank"]) + `}}`
				if body[8] == '[' {
					item = "[" + item + "," + item + "]"
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, item)
			})
			r.pworker.DPSize, r.dworker.DPSize = 2, 2
			r.orch.Dialect.(*sglang.Dialect).ExternalDP = true
			_, answer, err := r.serve(t.Context(), pd.Generate, body)
			if !wantErr {
				require.NoError(t, err)
				assert.Contains(t, answer, `"dp_rank":`)
				return
			}
			e := asError(t, err)
			assert.Equal(t, http.StatusInternalServerError, e.Status)
			assert.Equal(t, "dp_rank_mismatch", e.Code)
			assert.Contains(t, e.Message, "DP rank mismatch")
			_, d := r.ended()
			assert.Equal(t, pd.Fault, d)
		})
	}
	same := func(named any) string { return fmt.Sprint(named) }
	other := func(named any) string { return fmt.Sprint(1 - named.(float64)) }
	none := func(any) string { return "null" }
	run("the rank asked for", `{"text":"hi"}`, same, false)
	run("the rank asked for, in a batch", `{"text":["a","b"]}`, same, false)
	run("another rank", `{"text":"hi"}`, other, true)
	run("another rank in a batch", `{"text":["a","b"]}`, other, true)
	run("no rank", `{"text":"hi"}`, none, false)
}

// told are the fields of a body that name ranks.
func told(body map[string]any) map[string]any {
	left := maps.Clone(body)
	maps.DeleteFunc(left, func(name string, _ any) bool { return !strings.HasSuffix(name, "_rank") })
	return left
}

// asRank is one rank of an engine.
func asRank(w *pd.Worker, rank, size int) *pd.Worker {
	one := *w
	one.Rank, one.DPSize = &rank, size
	return &one
}

func roomIn(t *testing.T, raw string) uint64 {
	t.Helper()
	var body struct {
		Room uint64 `json:"bootstrap_room"`
	}
	require.NoError(t, json.Unmarshal([]byte(raw), &body))
	return body.Room
}

func TestEachLegIsToldOfItsOwnRank(t *testing.T) {
	t.Parallel()
	type ranks = map[string]any
	both := func(r *rig) { r.pworker = asRank(r.pworker, 3, 4); r.dworker = asRank(r.dworker, 1, 2) }
	ofPrefill, ofDecode := ranks{"routed_dp_rank": 3.0, "data_parallel_rank": 3.0}, ranks{"disagg_prefill_dp_rank": 3.0, "routed_dp_rank": 1.0}
	f := func(name string, set func(r *rig), body string, prefill, decode ranks) {
		t.Helper()
		for ep, fields := range map[pd.Endpoint]string{
			pd.Generate: `"text":"a"`, pd.Chat: `"messages":[{"role":"user","content":"a"}]`, pd.Completions: `"prompt":"a"`,
		} {
			t.Run(name+" "+ep.String(), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
				set(r)
				req := r.request(ep, `{`+fields+body+`}`)
				req.Header.Set(pd.HeaderRank, "0")
				if body == "" {
					req.Header.Del(pd.HeaderRank)
				}
				resp, err := r.orch.Serve(t.Context(), req)
				require.NoError(t, err)
				_, err = io.ReadAll(resp.Body)
				require.NoError(t, err)
				r.ended()
				assert.Equal(t, prefill, told(r.prefill.body(0)), "prefill")
				assert.Equal(t, decode, told(r.decode.body(0)), "decode")
				for _, e := range []*engine{r.prefill, r.decode} {
					assert.Empty(t, e.head(0).Values(pd.HeaderRank))
				}
				if r.pworker.Rank != nil {
					assert.EqualValues(t, 3, roomIn(t, r.prefill.text(0))%4, "the room points at prefill's rank")
				}
			})
		}
	}
	const hostile = `,"routed_dp_rank":0,"data_parallel_rank":0,"disagg_prefill_dp_rank":0,"routed\u005fdp_rank":0,"data_parallel_ran\u006b":null`
	f("ranks of both roles", both, ``, ofPrefill, ofDecode)
	f("and nothing of what the client says", both, hostile, ofPrefill, ofDecode)
	f("a rank of prefill, one engine of decode", func(r *rig) { r.pworker = asRank(r.pworker, 3, 4); r.dworker.DPSize = 1 }, hostile,
		ofPrefill, ranks{"disagg_prefill_dp_rank": 3.0})
	f("a rank of decode, one engine of prefill", func(r *rig) { r.dworker = asRank(r.dworker, 1, 2) }, hostile,
		ranks{}, ranks{"routed_dp_rank": 1.0})
	f("an engine of many ranks beside a rank is told of the wish", func(r *rig) { r.pworker = asRank(r.pworker, 3, 4); r.dworker.DPSize = 4 },
		`,"routed_dp_rank":0,"disagg_prefill_dp_rank":3`, ofPrefill, ranks{"disagg_prefill_dp_rank": 3.0, "routed_dp_rank": 0.0})
	f("wishes for two ranks of whole engines", func(r *rig) { r.pworker.DPSize, r.dworker.DPSize = 4, 4 },
		`,"routed_dp_rank":0,"disagg_prefill_dp_rank":3`, ofPrefill, ranks{"disagg_prefill_dp_rank": 3.0, "routed_dp_rank": 0.0})
}

// What an engine does with the wish is its own business.
func TestAWishForWholeEnginesTravelsAsItCame(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	r.pworker.DPSize, r.dworker.DPSize = 4, 4
	for i := range 8 {
		req := r.request(pd.Chat, `{"messages":[],"data_parallel_rank":1,"routed_dp_rank":1}`)
		req.Header.Set(pd.HeaderRank, "2")
		resp, err := r.orch.Serve(t.Context(), req)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		r.ended()
		for _, e := range []*engine{r.prefill, r.decode} {
			assert.Contains(t, e.text(i), `"data_parallel_rank":1,"routed_dp_rank":1}`)
			assert.Equal(t, "2", e.head(i).Get(pd.HeaderRank))
		}
		assert.EqualValues(t, 2, roomIn(t, r.prefill.text(i))%4, "the header is what the engine goes by")
	}
}

func TestAWishThatIsNoRankReachesNoEngine(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"} {
		r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
		_, _, err := r.serve(t.Context(), pd.Generate, `{"text":"a","`+field+`":"1"}`)
		e := asError(t, err)
		assert.Equal(t, [2]any{http.StatusBadRequest, field}, [2]any{e.Status, e.Param})
		assert.Zero(t, r.prefill.calls()+r.decode.calls())
	}
}

// Wishes for different ranks cannot both be for decode's leg.
func TestAWishOfDecodeAloneIsReadToo(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	_, _, err := r.serve(t.Context(), pd.Generate, `{"text":"a","disagg_prefill_dp_rank":1,"routed_dp_rank":"1"}`)
	assert.Equal(t, "routed_dp_rank", asError(t, err).Param)
}

// F101: an engine that derives its rank from the room finds the one that was chosen.
func TestF101RoomsAreOfTheChosenRank(t *testing.T) {
	t.Parallel()
	const size, batch, calls = 4, 500, 20 // 10,000 rooms
	r := newRig(t, jsonAnswer(200, `[`+prefillOK+`]`), jsonAnswer(200, `[`+decodeOK+`]`))
	r.dworker = asRank(r.dworker, 1, 2)
	texts, err := json.Marshal(make([]string, batch))
	require.NoError(t, err)
	seen := make(map[uint64]bool, batch*calls)
	for i := range calls {
		rank := rand.IntN(size)
		r.pworker = asRank(r.pworker, rank, size)
		_, _, err := r.serve(t.Context(), pd.Generate, `{"text":`+string(texts)+`}`)
		require.NoError(t, err)
		r.ended()
		var body struct {
			Rooms []uint64 `json:"bootstrap_room"`
			Rank  int      `json:"routed_dp_rank"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.prefill.text(i)), &body))
		require.Len(t, body.Rooms, batch)
		require.Equal(t, rank, body.Rank)
		for _, room := range body.Rooms {
			require.EqualValues(t, rank, room%size)
			seen[room] = true
		}
	}
	assert.Len(t, seen, batch*calls, "each is of its own")
}

// Samples are exchanges of their own, all on the same pair.
func TestSamplesAreOnTheRanksOfTheirPlan(t *testing.T) {
	t.Parallel()
	r := newRig(t, jsonAnswer(200, prefillOK), jsonAnswer(200, decodeOK))
	r.pworker = asRank(r.pworker, 3, 4)
	r.dworker = asRank(r.dworker, 0, 2)
	_, _, err := r.serve(t.Context(), pd.Generate, `{"text":"a","sampling_params":{"n":3}}`)
	require.NoError(t, err)
	for i := range 3 {
		r.ended()
		assert.EqualValues(t, 3, roomIn(t, r.prefill.text(i))%4)
		assert.Equal(t, map[string]any{"disagg_prefill_dp_rank": 3.0, "routed_dp_rank": 0.0}, told(r.decode.body(i)))
	}
}
