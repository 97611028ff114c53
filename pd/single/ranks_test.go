package single_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestABodyForAWorkerOfOneRankNamesIt(t *testing.T) {
	const (
		wishes = `{"text":"a","routed_dp_rank":0,"disagg_prefill_dp_rank":1,"zzz": [1, 2],"data_parallel_ran\u006b":null}`
		named  = `{"routed_dp_rank":3,"data_parallel_rank":3,"text":"a","zzz": [1, 2]}`
	)
	rank := func(n int) *int { return &n }
	f := func(name string, ofRank *int, ep pd.Endpoint, target, body, want, wantHeader string) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, answers(200, "application/json", `{}`))
			r.engines[0].worker.Rank, r.engines[0].worker.DPSize = ofRank, 4
			req := request(t, ep, target, body)
			req.Header.Set(pd.HeaderRank, "2")
			_, _, err := r.run(req)
			require.NoError(t, err)
			got := r.engines[0].got()[0]
			assert.Equal(t, want, got.body)
			assert.Equal(t, wantHeader, got.header.Get(pd.HeaderRank))
			assert.Equal(t, "2", req.Header.Get(pd.HeaderRank), "the request is as it was: another worker may get it")
		})
	}
	f("generate", rank(3), pd.Generate, "", wishes, named, "")
	f("chat", rank(3), pd.Chat, "", wishes, named, "")
	f("completions, with a query", rank(3), pd.Completions, "/v1/completions?a=b", wishes, named, "")
	f("rank 0 is one", rank(0), pd.Generate, "", `{}`, `{"routed_dp_rank":0,"data_parallel_rank":0}`, "")
	f("other paths go out as they came", rank(3), pd.Other, "/v1/embeddings", wishes, wishes, "2")
	f("so does what is no JSON", rank(3), pd.Other, "/v1/x", "\xff", "\xff", "2")
	for _, ep := range []pd.Endpoint{pd.Generate, pd.Chat, pd.Completions} {
		f("so does all for a worker of all ranks: "+ep.String(), nil, ep, "", wishes, wishes, "2")
	}
}

// The next worker of a failover may stand for another rank.
func TestEachAttemptNamesTheRankOfItsOwnWorker(t *testing.T) {
	r := newRig(t, answers(500, "application/json", `{}`), answers(200, "application/json", `{}`))
	for i, e := range r.engines {
		e.worker.Rank = &i
	}
	_, _, err := r.serve(pd.Generate, `{"text":"a"}`)
	require.NoError(t, err)
	assert.Equal(t, `{"routed_dp_rank":0,"data_parallel_rank":0,"text":"a"}`, r.engines[0].got()[0].body)
	assert.Equal(t, `{"routed_dp_rank":1,"data_parallel_rank":1,"text":"a"}`, r.engines[1].got()[0].body)
}
