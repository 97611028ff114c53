package pools

import (
	"fmt"
	"net/http"

	"github.com/tandem-pd/tandem/pd"
)

// isRank reports whether the member is one data-parallel rank of an engine.
func (m *Member) isRank() bool { return m.Worker.Rank != nil }

// hasRank reports whether the member can give a request that rank: it is that one,
// or a whole engine that has it.
func (m *Member) hasRank(rank int) bool {
	if m.isRank() {
		return *m.Worker.Rank == rank
	}
	return rank < max(m.Worker.DPSize, 1)
}

// sameEngine reports whether both are of one engine: they are one worker, or ranks
// at one address.
func (m *Member) sameEngine(other *Member) bool {
	return m.Is(other) || m.isRank() && other.isRank() && m.Worker.URL == other.Worker.URL
}

// wanted is g with the pools of ranks narrowed to those that the client wants: who
// names a rank gets no other. A pool of whole engines stays as it is; they are told
// of the wish, and refuse what they do not have.
func (g *group) wanted(req *pd.Request) (*group, error) {
	if req == nil || g.ranks == [3]bool{} {
		return g, nil
	}
	all := g
	for i, pool := range all.pools {
		if !all.ranks[i] {
			continue
		}
		wish, err := req.RankWish(pd.Role(i))
		if err != nil {
			return nil, err
		}
		if !wish.Given() {
			continue
		}
		left := keep(pool, func(m *Member) bool { return m.hasRank(wish.Rank) })
		if len(left) == 0 {
			return nil, noRank(pd.Role(i), wish)
		}
		if g == all {
			narrow := *all
			g = &narrow
		}
		g.pools[i] = left
	}
	return g, nil
}

// noRank is the error of a wish that nobody could ever fulfil.
func noRank(role pd.Role, wish pd.RankWish) *pd.Error {
	return &pd.Error{
		Stage: pd.StagePlan, Kind: pd.Invalid, Status: http.StatusBadRequest, Param: wish.Name,
		Code: "dp_rank_not_found", Message: fmt.Sprintf("no %s worker has data-parallel rank %d", role, wish.Rank),
	}
}

// refusesConnections says that nobody is there at the member's address: none of its
// engine's ranks. Somebody will see them come back.
func (m *Member) refusesConnections() {
	down := func(m *Member) {
		m.Down("refuses connections")
		m.doubt()
	}
	down(m)
	if !m.isRank() {
		return
	}
	for _, other := range m.set.current.Load().members {
		if other.sameEngine(m) && !other.Is(m) && other.watched() {
			down(other)
		}
	}
}

// engine lists the ids of those of members that are of m's engine.
func engine(members []*Member, m *Member) (ids []pd.WorkerID) {
	for _, other := range members {
		if other.sameEngine(m) {
			ids = append(ids, other.Worker.ID)
		}
	}
	return ids
}
