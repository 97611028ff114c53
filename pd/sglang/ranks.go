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

// ranks are the data-parallel ranks of an exchange; -1 is one that is left open.
// Prefill's rooms are congruent to its rank, which is how an engine chooses it by
// itself, and how decode finds it.
type ranks struct {
	prefill, decode int
	// named has each leg be told of its own rank, and decode of prefill's, in the
	// place of what the client wrote: each leg has those that concern it alone.
	named  bool
	answer int // the rank that decode's answer must come from
}

// ranks finds what the plan and the client say of them. Where no worker stands for
// a rank the client's words go to both engines as they came, unless it wants
// different ranks of the two: a prefill would take decode's for its own.
func (d *Dialect) ranks(req *pd.Request, plan *pd.Plan) ranks {
	prefill, decode := plan.Prefill.Worker, plan.Decode.Worker
	if d.ExternalDP {
		r := ranks{prefill: anyRank(prefill), decode: anyRank(decode)}
		r.named, r.answer = r.prefill >= 0 || r.decode >= 0, r.decode
		return r
	}
	r := ranks{prefill: rankOf(prefill, req), decode: rankOf(decode, req), answer: -1}
	differ := r.prefill >= 0 && r.decode >= 0 && r.prefill != r.decode
	r.named = prefill.Rank != nil || decode.Rank != nil || differ
	return r
}

// anyRank is one of a worker's ranks.
func anyRank(w *pd.Worker) int {
	if w.DPSize <= 1 {
		return -1
	}
	return rand.IntN(w.DPSize)
}

// rankOf is the rank that a worker stands for, or else the one that the client wants
// of a worker which has several. One that it does not have is the engine's to refuse.
func rankOf(w *pd.Worker, req *pd.Request) int {
	if w.Rank != nil {
		return *w.Rank
	}
	if w.DPSize > 1 {
		if wish, err := req.RankWish(w.Role); err == nil && wish.Given() { // Samples has refused what is no rank
			return wish.Rank
		}
	}
	return -1
}

// members are the fields that tell a leg of ranks.
//
// Prefill's own is there by both of its names: an engine that knows both takes the
// newer one, and a rank that agrees with the room is right for every generation.
// Decode's is not: the older engines, which know nothing of disagg_prefill_dp_rank,
// take data_parallel_rank for prefill's rank as well as for their own, and look for
// the KV where it is not. Without it they find prefill by the room, and choose a
// rank of their own.
func (r ranks) members(role pd.Role) (m []patch.Member) {
	if !r.named {
		return nil
	}
	if role == pd.Prefill {
		if r.prefill >= 0 {
			m = append(m, intMember(pd.FieldRank, r.prefill), intMember(pd.FieldOlderRank, r.prefill))
		}
		return m
	}
	if r.prefill >= 0 {
		m = append(m, intMember(pd.FieldPrefillRank, r.prefill))
	}
	if r.decode >= 0 {
		m = append(m, intMember(pd.FieldRank, r.decode))
	}
	return m
}

// cut takes out of both bodies what the client says of ranks, if they are named.
func (r ranks) cut(edit *patch.Edit) {
	if r.named {
		edit.Cut(pd.FieldRank, pd.FieldOlderRank, pd.FieldPrefillRank)
	}
}

// header is h without the client's rank, if ranks are named: to an engine it would
// count for more than the body. h is not changed.
func (r ranks) header(h http.Header) http.Header {
	if _, ok := h[pd.HeaderRank]; !r.named || !ok {
		return h
	}
	h = h.Clone()
	delete(h, pd.HeaderRank)
	return h
}

// ForRank is the body and the headers of req for a whole engine of which one
// data-parallel rank is to do the work. An engine alone is told of it as a prefill
// is, and of nothing that the client says.
func ForRank(req *pd.Request, rank int) (*patch.Payload, http.Header) {
	r := ranks{prefill: rank, decode: -1, named: true}
	edit := req.Edit.Clone()
	r.cut(edit)
	return edit.Payload(r.members(pd.Prefill)...), r.header(req.Header)
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
		return x.pair.Decode.Broken("an answer that is not JSON", err)
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
