package pd_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pd"
)

// rankRequest is a request with this body and, unless it is "none", the header.
func rankRequest(t testing.TB, ep pd.Endpoint, body, header string) *pd.Request {
	t.Helper()
	req, err := pd.NewRequest(ep, []byte(body))
	require.NoError(t, err)
	if header != "none" {
		req.Header = http.Header{pd.HeaderRank: {header}}
	}
	return req
}

func TestTheRankThatAClientWants(t *testing.T) {
	const none = -1
	f := func(name string, ep pd.Endpoint, body, header string, prefill, decode int) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			req := rankRequest(t, ep, body, header)
			for role, want := range map[pd.Role]int{pd.Prefill: prefill, pd.Decode: decode, pd.Regular: decode} {
				wish, err := req.RankWish(role)
				require.NoError(t, err)
				assert.Equal(t, want != none, wish.Given(), role)
				assert.Equal(t, max(want, 0), wish.Rank, role)
			}
		})
	}
	f("none", pd.Chat, `{}`, "none", none, none)
	f("null is none", pd.Generate, `{"routed_dp_rank":null,"data_parallel_rank":null}`, "none", none, none)
	f("the body says it to both", pd.Generate, `{"routed_dp_rank":3}`, "none", 3, 3)
	f("0 is one", pd.Generate, `{"routed_dp_rank":0}`, "none", 0, 0)
	f("by the older name", pd.Completions, `{"data_parallel_rank":3}`, "none", 3, 3)
	f("the older name comes last", pd.Chat, `{"data_parallel_rank":3,"routed_dp_rank":1}`, "none", 1, 1)
	f("the last copy counts, however it is spelled", pd.Generate, `{"routed_dp_rank":1,"routed\u005fdp_rank":2}`, "none", 2, 2)
	f("where the KV is", pd.Chat, `{"disagg_prefill_dp_rank":2}`, "none", 2, none)
	f("each of its own", pd.Chat, `{"disagg_prefill_dp_rank":2,"routed_dp_rank":1}`, "none", 2, 1)
	f("the header", pd.Chat, `{}`, "2", 2, 2)
	f("the header comes before the body", pd.Completions, `{"routed_dp_rank":1}`, "2", 2, 2)
	f("but not for prefill alone", pd.Chat, `{"disagg_prefill_dp_rank":3}`, "2", 3, 2)
	f("the header on generate", pd.Generate, `{}`, " 2 ", 2, 2)
	f("where the body comes before it", pd.Generate, `{"data_parallel_rank":1}`, "2", 1, 1)
}

func TestAWishThatIsNoRankIsRefused(t *testing.T) {
	f := func(name, body, header, field string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			_, err := rankRequest(t, pd.Chat, body, header).RankWish(pd.Prefill)
			var e *pd.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, [3]any{pd.Invalid, http.StatusBadRequest, field}, [3]any{e.Kind, e.Status, e.Param})
			assert.Equal(t, field+" must be an integer that is not negative", e.Message)
		})
	}
	for _, field := range []string{pd.FieldRank, pd.FieldOlderRank, pd.FieldPrefillRank} {
		for _, value := range []string{`-1`, `"1"`, `1.5`, `1e3`, `true`, `[1]`, `{}`, `9223372036854775808`} {
			f(field+" "+value, `{"`+field+`":`+value+`}`, "none", field)
		}
	}
	for _, value := range []string{"-1", "one", "1.5", "", "1,2", "9223372036854775808"} {
		f("the header "+value, `{}`, value, pd.HeaderRank)
	}
}

func TestReadingAWishCostsNoMemory(t *testing.T) {
	req := rankRequest(t, pd.Generate, `{"text":"a","routed_dp_rank":3}`, "none")
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = req.RankWish(pd.Prefill) }))
}
