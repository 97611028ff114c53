package pd

import (
	"strconv"
	"strings"
)

// Where data-parallel ranks are named: by a header, and by fields of a body. The
// older generation of engines knows no other field than the last.
const (
	HeaderRank       = "X-Data-Parallel-Rank"
	FieldRank        = "routed_dp_rank"
	FieldPrefillRank = "disagg_prefill_dp_rank"
	FieldOlderRank   = "data_parallel_rank"
)

// RankWish is the data-parallel rank that a client wants a worker to have. The
// zero value wants none.
type RankWish struct {
	Rank int    // 0 or more
	Name string // of the field or header that says so, empty where none does
}

// Given reports whether there is a wish; rank 0 is one.
func (w RankWish) Given() bool { return w.Name != "" }

// RankWish is the client's wish for the worker of a role. It is read as the engines
// read what they are sent. Each takes routed_dp_rank for a rank of its own, and the
// bodies of a pair say the same to both, so it is a wish for either. Only
// disagg_prefill_dp_rank tells the two apart: it is where decode finds the KV, hence
// the rank of prefill, before any other.
//
// The header says the same as routed_dp_rank. It comes before the body on OpenAI's
// endpoints, and behind it on /generate, where engines do not read it. In the body
// the older name comes last. Null is no wish.
//
// The error is an [Invalid] *Error: what names the rank is no integer, or a
// negative one. That a worker may have no such rank is not looked at here.
func (r *Request) RankWish(role Role) (RankWish, error) {
	names := [...]string{FieldPrefillRank, HeaderRank, FieldRank, FieldOlderRank}
	if r.Endpoint == Generate {
		names = [...]string{FieldPrefillRank, FieldRank, FieldOlderRank, HeaderRank}
	}
	for _, name := range names {
		if name == FieldPrefillRank && role != Prefill {
			continue
		}
		rank, given, ok := r.rankIn(name)
		switch {
		case !given:
		case !ok || rank < 0:
			return RankWish{}, invalid(name, "%s must be an integer that is not negative", name)
		default:
			return RankWish{rank, name}, nil
		}
	}
	return RankWish{}, nil
}

// rankIn is the rank that a field or the header names, where it is given; ok says
// that it is an integer.
func (r *Request) rankIn(name string) (rank int, given, ok bool) {
	if name == HeaderRank {
		values := r.Header[name]
		if len(values) == 0 {
			return 0, false, false
		}
		n, err := strconv.Atoi(strings.TrimSpace(values[0]))
		return n, true, err == nil
	}
	if r.Doc == nil {
		return 0, false, false
	}
	v, given := r.Doc.Get(name)
	n, ok := v.Int()
	return int(n), given, ok
}
