package sglang_test

import (
	"fmt"
	"io"
	"net/http"
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
