package policy

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// roster is the members of a pool at one instant. It never changes.
type roster struct {
	members []*pools.Member // in the pool's order
	places  map[pd.WorkerID]int
}

func newRoster(members []*pools.Member) *roster {
	r := &roster{slices.Clone(members), make(map[pd.WorkerID]int, len(members))}
	for i, m := range members {
		r.places[m.Worker.ID] = i
	}
	return r
}

// place is the index of m, -1 if it is new, and where to look for the next
// member, at being where to look for this one. Members come in the order of the
// pool, with gaps.
func (r *roster) place(m *pools.Member, at int) (place, next int) {
	if at < len(r.members) && r.members[at] == m {
		return at, at + 1
	}
	if i, ok := r.places[m.Worker.ID]; ok {
		return i, i + 1
	}
	return -1, at
}

// lineup is a roster in an order that is the same for every router, however each
// has learnt of the members: by URL, then rank.
type lineup struct {
	*roster
	byURL []int // places
	rank  []int // of each place: where it is in byURL
}

func newLineup(members []*pools.Member) *lineup {
	n := len(members)
	l := &lineup{newRoster(members), make([]int, n), make([]int, n)}
	slots := make([]slot, n)
	for i, m := range members {
		slots[i], l.byURL[i] = slotOf(m), i
	}
	slices.SortFunc(l.byURL, func(a, b int) int { return slots[a].compare(slots[b]) })
	for rank, place := range l.byURL {
		l.rank[place] = rank
	}
	return l
}

// nth are numbers i and j of members by their URLs. They are some of the pool, in
// its order. Those that are new, for an instant, come last.
func (l *lineup) nth(members []*pools.Member, i, j int) (one, other *pools.Member) {
	if len(members) == len(l.members) {
		return members[l.byURL[i]], members[l.byURL[j]]
	}
	line := make([]*pools.Member, len(l.members), len(l.members)+len(members))
	at := 0
	for _, m := range members {
		var place int
		if place, at = l.place(m, at); place >= 0 {
			line[l.rank[place]] = m
		} else {
			line = append(line, m)
		}
	}
	line = slices.DeleteFunc(line, func(m *pools.Member) bool { return m == nil })
	return line[i], line[j]
}

// find is the one of members that has the id. They are some of the pool, in its
// order, so it is not behind its place there unless the pool has just changed.
func find(members []*pools.Member, id pd.WorkerID, place int) *pools.Member {
	place = min(place, len(members)-1)
	for i := place; i >= 0; i-- {
		if members[i].Worker.ID == id {
			return members[i]
		}
	}
	for _, m := range members[place+1:] {
		if m.Worker.ID == id {
			return m
		}
	}
	return nil
}

// slot is what tells a member from the others.
type slot struct {
	id   pd.WorkerID
	url  string
	rank int // -1 for one that stands for all ranks
}

func slotOf(m *pools.Member) slot {
	s := slot{m.Worker.ID, m.Worker.URL, -1}
	if m.Worker.Rank != nil {
		s.rank = *m.Worker.Rank
	}
	return s
}

// name is what the member is called by all routers: its URL, and behind that its
// rank. One without a URL goes by its id.
func (s slot) name() string {
	name := cmp.Or(s.url, string(s.id))
	if s.rank >= 0 {
		name += "@" + strconv.Itoa(s.rank)
	}
	return name
}

func (s slot) compare(other slot) int {
	return cmp.Or(cmp.Compare(s.url, other.url), cmp.Compare(s.rank, other.rank), cmp.Compare(s.id, other.id))
}
