package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
)

// sized is an engine with so many data-parallel ranks.
func sized(ranks int) func(*simengine.Config) {
	return func(c *simengine.Config) { c.DPSize = ranks }
}

// byRank puts each rank of an engine in the place of its worker.
func (s *stack) byRank(id pd.WorkerID, size int) {
	s.t.Helper()
	engine := s.set.Find(id).Worker
	require.NoError(s.t, s.set.Remove(id))
	for rank := range size {
		w := *engine
		w.ID, w.DPSize, w.Rank = pd.WorkerID(fmt.Sprintf("%s@%d", id, rank)), size, &rank
		require.NoError(s.t, s.set.Add(&w))
	}
	s.workers = s.set.Workers()
}

// ranksIn is what a body says of ranks; nil for what it does not say.
type ranksIn struct {
	Rank    *int `json:"routed_dp_rank"`
	Older   *int `json:"data_parallel_rank"`
	Prefill *int `json:"disagg_prefill_dp_rank"`
}

func (r ranksIn) String() string {
	text, _ := json.Marshal(r)
	return string(text)
}

// toldOf is what ranks a request names to an engine.
func toldOf(t *testing.T, rec simengine.Record) ranksIn {
	t.Helper()
	assert.Empty(t, rec.Header.Values(pd.HeaderRank))
	return decoded[ranksIn](t, string(rec.Body))
}

// onRank is what a decode's leg is told.
func onRank(prefill, decode int) ranksIn { return ranksIn{Rank: new(decode), Prefill: new(prefill)} }

// requirePaired requires of each request that prefill is told of the rank that its
// rooms point at, and decode of the same. It counts them by rank.
func (s *stack) requirePaired(size int) (prefills, decodes map[int]int) {
	s.t.Helper()
	prefills, decodes = map[int]int{}, map[int]int{}
	rankOf := map[simengine.Room]int{}
	for _, e := range s.prefills {
		for _, rec := range generations(e) {
			got := toldOf(s.t, rec)
			require.NotNil(s.t, got.Rank, "%s", rec.Body)
			require.Equal(s.t, ranksIn{Rank: got.Rank, Older: got.Rank}, got, "its own, by both names")
			for _, room := range rec.Rooms {
				rankOf[room] = *got.Rank
				require.Equal(s.t, *got.Rank, decoded[int](s.t, string(room))%size)
			}
			prefills[*got.Rank]++
		}
	}
	for _, e := range s.decodes {
		for _, rec := range generations(e) {
			got := toldOf(s.t, rec)
			for _, room := range rec.Rooms {
				require.Equal(s.t, ranksIn{Rank: got.Rank, Prefill: new(rankOf[room])}, got)
			}
			if got.Rank != nil {
				decodes[*got.Rank]++
			}
		}
	}
	return prefills, decodes
}

// F100: each rank is a target, and no address knows of it.
func TestF100EachRankIsATarget(t *testing.T) {
	t.Parallel()
	const n = 800
	var mu sync.Mutex
	asked := map[string]int{} // request line and host of what went to engines
	s := newStack(t, setup{
		prefill: sized(4), decode: sized(2),
		transport: func(t *http.Transport) {
			t.Proxy = func(r *http.Request) (*url.URL, error) { // is shown every request
				mu.Lock()
				defer mu.Unlock()
				asked[r.Method+" "+r.URL.String()+" "+r.Host]++
				return nil, nil
			}
		},
	})
	s.byRank("prefill-0", 4)
	s.byRank("decode-0", 2)
	kinds := calls(2)
	together(n, 8, func(i int) {
		r := s.post(kinds[i%len(kinds)])
		assert.Equal(t, http.StatusOK, r.status, r.body)
	})
	s.idle()
	prefills, decodes := s.requirePaired(4)
	for i := range 4 {
		assert.InDelta(t, 0.25, float64(prefills[i])/n, 0.03, "prefill's rank %d", i)
	}
	for i := range 2 {
		assert.InDelta(t, 0.5, float64(decodes[i])/n, 0.03, "decode's rank %d", i)
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, asked)
	for line := range asked {
		assert.NotContains(t, line, "@")
	}
	for _, e := range s.engines() {
		for _, rec := range generations(e) {
			require.NotContains(t, string(rec.Body)+rec.Path+rec.Query, "@")
		}
	}
}

// The items of a batch are on one rank, and so are the samples of a prompt.
func TestBatchesAndSamplesAreOnTheRanksOfTheirPlan(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefill: sized(4), decode: func(c *simengine.Config) { c.DPSize, c.MaxTotalTokens = 2, 1<<16 },
	})
	s.byRank("prefill-0", 4)
	s.byRank("decode-0", 2)
	for _, c := range append(batches(2), sampled(generateCall(2), 3, 1), sampled(chatCall(2), 3, 1), sampled(batches(2)[1], 2, 1)) {
		s.ok(c)
		s.ok(c.streamed())
	}
	s.idle()
	s.requirePaired(4)
}

// Targets of one role need not be ranks because those of the other are.
func TestRanksMeetWholeEngines(t *testing.T) {
	t.Parallel()
	f := func(name string, prefill, decode int, set func(s *stack), wantPrefill, wantDecode func(room int) ranksIn) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, setup{prefill: sized(prefill), decode: sized(decode)})
			set(s)
			for _, c := range append(calls(2), batches(2)...) {
				s.ok(c)
			}
			s.idle()
			for _, rec := range generations(s.p) {
				assert.Equal(t, wantPrefill(decoded[int](t, string(rec.Rooms[0]))), toldOf(t, rec))
			}
			seen := map[string]bool{}
			for _, rec := range generations(s.d) {
				got := toldOf(t, rec)
				seen[got.String()] = true
				if got.Rank != nil {
					got.Rank = new(0)
				}
				assert.Equal(t, wantDecode(decoded[int](t, string(rec.Rooms[0]))), got)
			}
			assert.Greater(t, len(seen), 1, "not always the same: %v", seen)
		})
	}
	f("of decode, with one rank", 4, 1, func(s *stack) { s.byRank("prefill-0", 4) },
		func(room int) ranksIn { return ranksIn{Rank: new(room % 4), Older: new(room % 4)} },
		func(room int) ranksIn { return ranksIn{Prefill: new(room % 4)} })
	f("of decode, with ranks of their own choice", 4, 2, func(s *stack) { s.byRank("prefill-0", 4) },
		func(room int) ranksIn { return ranksIn{Rank: new(room % 4), Older: new(room % 4)} },
		func(room int) ranksIn { return ranksIn{Prefill: new(room % 4)} })
	f("of prefill, with one rank", 1, 2, func(s *stack) { s.byRank("decode-0", 2) },
		func(int) ranksIn { return ranksIn{} }, func(int) ranksIn { return ranksIn{Rank: new(0)} })
	f("of prefill, with ranks by the room", 4, 2, func(s *stack) { s.byRank("decode-0", 2) },
		func(int) ranksIn { return ranksIn{} }, func(int) ranksIn { return ranksIn{Rank: new(0)} })
}

func TestAClientsWishPicksTheRank(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefill: sized(4), decode: sized(2)})
	s.byRank("prefill-0", 4)
	s.byRank("decode-0", 2)
	last := func(e *simengine.Engine) simengine.Record {
		all := generations(e)
		return all[len(all)-1]
	}
	f := func(c call, fields object, header string, prefill, decode int) {
		t.Helper()
		for range 4 {
			var headers []string
			if header != "" {
				headers = []string{pd.HeaderRank, header}
			}
			r := s.post(c.with(fields), headers...)
			require.Equal(t, http.StatusOK, r.status, r.body)
			require.Equal(t, ranksIn{Rank: &prefill, Older: &prefill}, toldOf(t, last(s.p)), "%s %v %s", c.name, fields, header)
			require.Equal(t, onRank(prefill, decode), toldOf(t, last(s.d)), "%s %v %s", c.name, fields, header)
		}
	}
	for _, c := range calls(2) {
		for want := range 2 {
			f(c, object{"routed_dp_rank": want}, "", want, want)
			f(c, object{"data_parallel_rank": want}, "", want, want)
			f(c, nil, fmt.Sprint(want), want, want)
			f(c, object{"routed_dp_rank": want, "disagg_prefill_dp_rank": 3}, "", 3, want)
			f(c, object{"disagg_prefill_dp_rank": 2}, fmt.Sprint(want), 2, want)
		}
	}
	f(chatCall(2), object{"routed_dp_rank": 1}, "0", 0, 0)
	f(generateCall(2), object{"routed_dp_rank": 1}, "0", 1, 1)
	r := s.ok(generateCall(2).with(object{"routed_dp_rank": 1}))
	assert.Contains(t, r.body, `"dp_rank":1`, "the engine says the same")
}

func TestAWishForNoRankIsRefused(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{prefill: sized(4), decode: sized(2)})
	s.byRank("prefill-0", 4)
	s.byRank("decode-0", 2)
	f := func(fields object, header, message string) {
		t.Helper()
		for _, c := range calls(2) {
			var headers []string
			if header != "" {
				headers = []string{pd.HeaderRank, header}
			}
			r := s.post(c.with(fields), headers...)
			assert.Equal(t, http.StatusBadRequest, r.status, r.body)
			assert.Contains(t, r.body, message)
		}
	}
	const noInteger = " must be an integer that is not negative"
	for _, field := range []string{"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"} {
		f(object{field: -1}, "", field+noInteger)
		f(object{field: "1"}, "", field+noInteger)
		f(object{field: 1.5}, "", field+noInteger)
	}
	f(nil, "one", pd.HeaderRank+noInteger)
	f(nil, "-1", pd.HeaderRank+noInteger)
	f(object{"disagg_prefill_dp_rank": 4}, "", "no prefill worker has data-parallel rank 4")
	f(object{"routed_dp_rank": 2}, "", "no decode worker has data-parallel rank 2")
	f(nil, "9", "no prefill worker has data-parallel rank 9")
	assert.Empty(t, append(generations(s.p), generations(s.d)...))
}

// ofRank is a fault that befalls the requests of one rank.
func ofRank(rank int, fault simengine.Fault) func(simengine.Record) *simengine.Fault {
	return func(rec simengine.Record) *simengine.Fault {
		var told ranksIn
		if json.Unmarshal(rec.Body, &told) == nil && told.Rank != nil && *told.Rank == rank {
			return &fault
		}
		return nil
	}
}

// F103: load is of a rank.
func TestF103ASlowRankGetsLess(t *testing.T) {
	t.Parallel()
	const n = 240
	s := newStack(t, setup{decode: sized(4), policy: "power_of_two"})
	s.byRank("decode-0", 4)
	s.d.SetFault(ofRank(1, simengine.Fault{Delay: 500 * time.Millisecond}))
	together(n, 8, func(int) { s.ok(generateCall(2)) })
	s.idle()
	shares := map[int]int{}
	for _, rec := range generations(s.d) {
		shares[*toldOf(t, rec).Rank]++
	}
	assert.Less(t, shares[1], n/8, "half of its share: %v", shares)
	for _, fast := range []int{0, 2, 3} {
		assert.Greater(t, shares[fast], n/6, "%v", shares)
	}
}

// breakersOf are the states of the breakers of an engine's ranks.
func (s *stack) breakersOf(id pd.WorkerID, size int) (states []string) {
	s.t.Helper()
	for rank := range size {
		states = append(states, s.shown(pd.WorkerID(fmt.Sprintf("%s@%d", id, rank))).Breaker)
	}
	return states
}

// F103: so is a breaker.
func TestF103ARankThatFailsIsOutAlone(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decode: sized(4), orchestrator: retrying(4, nil), pools: breaking(pools.Breakers{Failures: 3, Open: lasting}),
	})
	s.byRank("decode-0", 4)
	s.d.SetFault(ofRank(1, outOfLuck()))
	for range 24 {
		s.ok(generateCall(2))
	}
	s.idle()
	assert.Equal(t, []string{"closed", "open", "closed", "closed"}, s.breakersOf("decode-0", 4))
	failed := 0
	for _, rec := range generations(s.d) {
		if rec.End == "fault" {
			failed++
		}
	}
	assert.Equal(t, 3, failed, "and gets nothing more")
}

// F103: an engine is out when all of its ranks are.
func TestF103AnEngineIsOutWhenAllOfItsRanksAre(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{decodes: 2, decode: sized(2), pools: breaking(pools.Breakers{Failures: 3, Open: lasting})})
	s.byRank("decode-0", 2)
	s.byRank("decode-1", 2)
	s.d.SetFault(always(outOfLuck()))
	s.eventually(func() bool {
		s.post(generateCall(2))
		return s.breakersOf("decode-0", 2)[1] == "open"
	}, "both of its ranks have failed")
	s.idle()
	assert.Equal(t, []string{"open", "open"}, s.breakersOf("decode-0", 2))
	assert.Equal(t, []string{"closed", "closed"}, s.breakersOf("decode-1", 2))
	before := len(generations(s.d))
	for range 8 {
		s.ok(generateCall(2))
	}
	assert.Len(t, generations(s.d), before)
}

// An attempt does not go from one rank to the next of an engine that is not there.
func TestAnEngineThatIsGoneTakesItsRanksAlong(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		decodes: 2, decode: sized(4), orchestrator: retrying(2, nil),
		health: func(h *health.Options) { h.Interval = lasting },
	})
	s.byRank("decode-0", 4)
	s.byRank("decode-1", 2)
	s.ready()
	s.kill(s.d)
	together(12, 1, func(int) { s.ok(generateCall(2)) })
	attempts := 0
	for i := range 12 {
		attempts += s.report(i).Attempts
	}
	assert.Equal(t, 13, attempts, "one of all has met it")
	for _, w := range s.set.Members() {
		if strings.HasPrefix(string(w.Worker.ID), "decode-0@") {
			assert.Equal(t, pools.Dead, w.State(), w.Worker.ID)
		}
	}
}

// A request that is tried again on another rank of the same engine keeps its rid:
// the abort of the first attempt must not be that of the second.
func TestASecondAttemptOnTheSameEngineOutlivesTheFirst(t *testing.T) {
	t.Parallel()
	s := newStack(t, setup{
		prefills: 2, orchestrator: retrying(2, nil),
		decode: func(c *simengine.Config) { c.DPSize, c.Speed.TokenInterval = 4, 20*time.Millisecond },
	})
	s.byRank("decode-0", 4)
	s.p.SetFault(always(outOfLuck()))
	for i := range 4 {
		events := data(t, s.ok(generateCall(40).streamed().with(object{"rid": fmt.Sprintf("client-%d", i)})))
		assert.Contains(t, events[len(events)-1], `"type":"length"`)
	}
	s.idle()
	assert.NotEmpty(t, generations(s.p), "some have failed first")
}
