package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// What each policy keeps to.
const spec = `
policy             | even | hot | idle | size | stays | moves | agree
random             | yes  | yes | -    | -    | -     | -     | -
round_robin        | yes  | yes | -    | -    | -     | -     | -
power_of_two       | yes  | yes | yes  | yes  | -     | -     | -
cache_aware        | yes  | yes | yes  | yes  | yes   | yes   | -
bucket             | yes  | yes | yes  | yes  | -     | -     | -
manual             | yes  | -   | -    | -    | yes   | yes   | -
manual by load     | yes  | -   | yes  | -    | yes   | yes   | -
consistent_hashing | yes  | yes | yes  | -    | yes   | yes   | yes
prefix_hash        | yes  | yes | yes  | -    | yes   | yes   | yes
`

// The properties, by their names in the table.
func properties() map[string]func(t *testing.T, build builder, reqs []*pd.Request) {
	return map[string]func(t *testing.T, build builder, reqs []*pd.Request){
		"even":  testEven,
		"hot":   testHot,
		"idle":  testIdle,
		"size":  testSize,
		"stays": testStays,
		"moves": testMoves,
		"agree": testAgree,
	}
}

func TestEveryPolicyKeepsToItsSpec(t *testing.T) {
	rows := strings.Split(strings.TrimSpace(spec), "\n")
	columns := cells(rows[0])
	reqs := visits(t, 5120)
	for _, row := range rows[1:] {
		row := cells(row)
		build := builders()[row[0]]
		require.NotNil(t, build, row[0])
		require.Len(t, row, len(columns))
		for i, cell := range row[1:] {
			check := properties()[columns[i+1]]
			require.NotNil(t, check, columns[i+1])
			require.Contains(t, []string{"yes", "-"}, cell)
			if cell == "yes" {
				t.Run(row[0]+"/"+columns[i+1], func(t *testing.T) { check(t, build, reqs) })
			}
		}
	}
	assert.Len(t, rows, 1+len(builders()), "every policy is in the table")
}

func cells(row string) []string {
	var out []string
	for cell := range strings.SplitSeq(row, "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}

// builder makes a policy of its own.
type builder func(t testing.TB) pools.Policy

// builders are all policies, by their names in the table.
func builders() map[string]builder {
	manual := func(opt ManualOptions) builder {
		return func(t testing.TB) pools.Policy {
			p, err := NewManual(t.Context(), opt)
			require.NoError(t, err)
			return p
		}
	}
	all := map[string]builder{
		"manual":         manual(ManualOptions{}),
		"manual by load": manual(ManualOptions{Assignment: AssignMinLoad}),
	}
	for _, name := range Names() {
		all[name] = func(t testing.TB) pools.Policy {
			p, err := ByName(name)
			require.NoError(t, err)
			return p
		}
	}
	return all
}

// visit is a request of session n: it has a key and a prompt of its own.
func visit(t testing.TB, n int) *pd.Request {
	t.Helper()
	req := promptRequest(t, distinct(fmt.Sprintf("session %d ", n), 800))
	req.Header.Set(headerRoutingKey, fmt.Sprintf("session-%d", n))
	return req
}

// visits are those from 0 to before n.
func visits(t testing.TB, n int) []*pd.Request {
	t.Helper()
	reqs := make([]*pd.Request, n)
	for i := range reqs {
		reqs[i] = visit(t, i)
	}
	return reqs
}

// even: with one request at a time, all different, each worker gets its share.
func testEven(t *testing.T, build builder, reqs []*pd.Request) {
	f := func(workers, requests int, points float64) {
		set := fleet(t, workers, build(t))
		had := map[pd.WorkerID]int{}
		for _, id := range homes(t, set, reqs[:requests]) {
			had[id]++
		}
		evenly(t, had, workers, points)
	}
	f(4, 4000, 0.06) // so many that chance alone does not reach the bound
	f(5, 5120, 0.04)
}

// hot: with 8 requests in flight for each worker, of which two in five are the same,
// none has twice its part, and none is starved.
func testHot(t *testing.T, build builder, reqs []*pd.Request) {
	const workers, requests = 8, 3000
	set := fleet(t, workers, build(t))
	r := rand.New(rand.NewPCG(5, 1))
	var flying []*pd.Plan
	most, had := map[pd.WorkerID]float64{}, map[pd.WorkerID]int{}
	for _, req := range reqs[:requests] {
		if r.IntN(5) < 2 {
			req = reqs[0]
		}
		plan := send(t, set, req)
		had[plan.Decode.Worker.ID]++
		flying = append(flying, plan)
		if len(flying) < 8*workers {
			continue
		}
		for _, m := range decoders(set) {
			most[m.Worker.ID] += float64(m.InFlight()) / requests
		}
		at := r.IntN(min(len(flying), 2*workers)) // those that are there for long
		flying[at].End(pd.Success, pd.Success)
		flying = slices.Delete(flying, at, at+1)
	}
	for id, mean := range most {
		assert.Less(t, mean, 16.0, id)
		assert.Greater(t, had[id], requests/workers/3, "%s is starved", id)
	}
	assert.Len(t, had, workers)
	finish(flying)
}

// idle: new requests do not go where 50 are in flight while somebody has none.
func testIdle(t *testing.T, build builder, reqs []*pd.Request) {
	set := fleet(t, 2, build(t))
	for _, req := range reqs[:50] {
		sendTo(t, set, "decode-0", req)
	}
	idle := 0
	for _, req := range reqs[50:70] {
		if send(t, set, req).Decode.Worker.ID == "decode-1" {
			idle++
		}
	}
	assert.GreaterOrEqual(t, idle, 18)
}

// size: one prompt of 120,000 tokens is more than three of 100.
func testSize(t *testing.T, build builder, reqs []*pd.Request) {
	set := fleet(t, 2, build(t))
	sendTo(t, set, "decode-0", tokens(t, 120_000))
	for range 3 {
		sendTo(t, set, "decode-1", tokens(t, 100))
	}
	for _, req := range reqs[:20] {
		assert.Equal(t, pd.WorkerID("decode-1"), home(t, set, req))
	}
}

// stays: a session keeps its worker.
func testStays(t *testing.T, build builder, reqs []*pd.Request) {
	set := fleet(t, 8, build(t))
	reqs = reqs[:400]
	first := homes(t, set, reqs)
	for range 3 {
		assert.Equal(t, first, homes(t, set, reqs))
	}
}

// moves: when a worker comes, no more than its part and 5 points move, and all to
// it; when one goes or is out, only its own do.
func testMoves(t *testing.T, build builder, reqs []*pd.Request) {
	const workers = 8
	set := fleet(t, workers, build(t))
	reqs = reqs[:2000]
	now := homes(t, set, reqs)
	f := func(name string, change func(), ok func(from, to pd.WorkerID) bool) {
		t.Helper()
		change()
		after, moved := homes(t, set, reqs), 0
		for i, from := range now {
			if to := after[i]; from != to {
				moved++
				require.True(t, ok(from, to), "%s: %s to %s", name, from, to)
			}
		}
		assert.LessOrEqual(t, float64(moved)/float64(len(reqs)), 1.0/workers+0.05, name)
		now = after
	}
	f("one comes", func() { require.NoError(t, set.Add(decoder(99))) },
		func(_, to pd.WorkerID) bool { return to == "decode-99" })
	f("one goes", func() { require.NoError(t, set.Remove("decode-3")) },
		func(from, _ pd.WorkerID) bool { return from == "decode-3" })
	f("one is out", func() { require.True(t, set.Drain("decode-5")) },
		func(from, _ pd.WorkerID) bool { return from == "decode-5" })
	f("it is back", func() { require.True(t, set.Resume("decode-5")) },
		func(_, to pd.WorkerID) bool { return to == "decode-5" })
}

// agree: a router that has just started sends at least four sessions of five where
// another one does that knows them for long.
func testAgree(t *testing.T, build builder, reqs []*pd.Request) {
	old, fresh := fleet(t, 8, build(t)), fleet(t, 0, build(t))
	for _, i := range rand.New(rand.NewPCG(6, 1)).Perm(8) {
		require.NoError(t, fresh.Add(decoder(i)))
	}
	reqs = reqs[:100]
	for range 3 {
		homes(t, old, reqs)
	}
	same := 0
	for i, id := range homes(t, old, reqs) {
		if home(t, fresh, reqs[i]) == id {
			same++
		}
	}
	assert.GreaterOrEqual(t, same, 80)
}

// sendTo plans req on one decode, where it stays in flight.
func sendTo(t testing.TB, set *pools.Set, id pd.WorkerID, req *pd.Request) {
	t.Helper()
	var others []pd.WorkerID
	for _, m := range decoders(set) {
		if m.Worker.ID != id {
			others = append(others, m.Worker.ID)
		}
	}
	plans, err := set.Plan(t.Context(), req, 1, others)
	require.NoError(t, err)
	require.Equal(t, id, plans[0].Decode.Worker.ID)
}
