package sglang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/patch"
)

// ranks are the data-parallel ranks of an exchange: what each body says, the
// prefill rank that the rooms must point at, and the decode rank that the answer
// must come from; -1 for any.
type ranks struct {
	prefill, decode []patch.Member
	room, answer    int
}

func (d *Dialect) ranks(req *pd.Request, plan *pd.Plan) ranks {
	r := ranks{room: -1, answer: -1}
	size := plan.Prefill.Worker.DPSize
	if !d.ExternalDP {
		if size > 1 {
			r.room = wishedRank(req, size)
		}
		return r
	}
	if size > 1 {
		r.room = rand.IntN(size)
		r.prefill = []patch.Member{intMember("routed_dp_rank", r.room)}
		r.decode = []patch.Member{intMember("disagg_prefill_dp_rank", r.room)}
	}
	if n := plan.Decode.Worker.DPSize; n > 1 {
		r.answer = rand.IntN(n)
		r.decode = append(r.decode, intMember("routed_dp_rank", r.answer))
	}
	return r
}

// wishedRank is the prefill rank that the client's body asks for, -1 for none.
// Prefill derives the rank from the room, and refuses a body that contradicts.
func wishedRank(req *pd.Request, size int) int {
	for _, name := range []string{"disagg_prefill_dp_rank", "routed_dp_rank", "data_parallel_rank"} {
		if v, ok := req.Doc.Get(name); ok {
			if n, ok := v.Int(); ok && n >= 0 && n < int64(size) {
				return int(n)
			}
		}
	}
	return -1
}

// checksRank reports whether decode's plain answer must show the rank that was
// named for it. Only /generate's does; a stream is not held back for it.
func (x *exchange) checksRank() bool { return x.rank >= 0 && x.req.Endpoint == pd.Generate }

// wrongRank is the failure of an answer, or of an item of a batch, that names
// another rank than the one that was asked for. One that names none passes.
func (x *exchange) wrongRank(body []byte) *legs.Failure {
	type item struct {
		Meta struct {
			Rank *int `json:"dp_rank"`
		} `json:"meta_info"`
	}
	items := make([]item, 1)
	var err error
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		err = json.Unmarshal(body, &items)
	} else {
		err = json.Unmarshal(body, &items[0])
	}
	if err != nil {
		return x.broken(x.pair.Decode, "an answer that is not JSON", err)
	}
	for _, it := range items {
		if it.Meta.Rank == nil || *it.Meta.Rank == x.rank {
			continue
		}
		w := x.pair.Decode.Call.Worker
		return legs.NewFailure(&pd.Error{
			Stage: pd.StageDecode, Worker: w.ID, Kind: pd.Broken, Status: http.StatusInternalServerError,
			Code:    "dp_rank_mismatch",
			Message: fmt.Sprintf("DP rank mismatch: decode worker %s was to answer from rank %d and did from %d", w.ID, x.rank, *it.Meta.Rank),
		})
	}
	return nil
}
