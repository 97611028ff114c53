package health

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

type anyPolicy struct{}

func (anyPolicy) Pick(_ *pd.Request, members []*pools.Member) *pools.Member { return members[0] }

// counting counts probes, which all take a second.
type counting struct{ n atomic.Int64 }

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	c.n.Add(1)
	time.Sleep(time.Second)
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
}

// The set shows another list: what was known of those that are gone is dropped,
// an answer that comes too late is not used, and those that came are probed.
func TestMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newSet := func(ids ...pd.WorkerID) *pools.Set {
			var ws []*pd.Worker
			for _, id := range ids {
				ws = append(ws, &pd.Worker{ID: id, Role: pd.Decode, URL: "http://" + string(id)})
			}
			set, err := pools.New(ws, pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: func() {}})
			require.NoError(t, err)
			return set
		}
		transport := &counting{}
		opt := Options{Transport: transport}
		before, later := newSet("a", "b"), newSet("c")
		r := &round{opt: opt.withDefaults(), set: before, watched: map[pd.WorkerID]*watch{}, ended: make(chan *probe, 32)}
		assert.LessOrEqual(t, r.turn(t.Context(), time.Now()), time.Second, "a change is noticed within a second")
		synctest.Wait()
		assert.Len(t, r.watched, 2)
		assert.EqualValues(t, 2, transport.n.Load())

		r.set = later
		r.turn(t.Context(), time.Now())
		r.probes.Wait()
		require.Len(t, r.ended, 3)
		require.Len(t, r.watched, 1)
		assert.Contains(t, r.watched, pd.WorkerID("c"))
		for range 3 {
			r.take(<-r.ended, time.Now())
		}
		assert.Zero(t, r.active)
		assert.Equal(t, pools.Ready, later.Find("c").State())
		assert.Equal(t, pools.Starting, before.Find("a").State())
	})
}

func TestWhatIsKnownOfAMemberFromTheStart(t *testing.T) {
	watched := func() {}
	for _, c := range []struct {
		name    string
		suspect func()
		do      func(*pools.Member)
		phase   phase
	}{
		{"it has not served yet", watched, func(*pools.Member) {}, starting},
		{"it serves", watched, (*pools.Member).Up, serving},
		{"it has been given up", watched, func(m *pools.Member) { m.Overdue("late") }, out},
		{"nobody watched over it", nil, func(*pools.Member) {}, serving},
	} {
		set, err := pools.New([]*pd.Worker{{ID: "a"}}, pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: c.suspect})
		require.NoError(t, err)
		m := set.Find("a")
		c.do(m)
		assert.Equal(t, c.phase, newWatch(engine{m}, time.Now()).phase, c.name)
	}
}

func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 9, 10, time.Millisecond, time.Minute} {
		for range 1000 {
			got := jitter(d)
			assert.GreaterOrEqual(t, got, d-d/10)
			assert.LessOrEqual(t, got, d+d/10)
		}
	}
}

// meeting is Meet over what a worker says of itself: an error keeps it out.
type meeting struct {
	asked atomic.Int64
	says  atomic.Pointer[error]
}

func (m *meeting) meet(context.Context, *pd.Worker) func() error {
	m.asked.Add(1)
	return func() error {
		if err := m.says.Load(); err != nil {
			return *err
		}
		return nil
	}
}

func TestAWorkerJoinsWhenWhoMeetsItAgrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := errors.New("it serves another model")
		m := &meeting{}
		m.says.Store(&refusal)
		monitor := New(Options{Transport: &counting{}, Meet: m.meet})
		set, err := pools.New([]*pd.Worker{{ID: "a", Role: pd.Decode, URL: "http://a"}},
			pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: monitor.Suspect})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { monitor.Run(ctx, set) })

		time.Sleep(20 * time.Second)
		assert.Equal(t, pools.Starting, set.Find("a").State(), "it is well, but not what it should be")
		assert.Equal(t, refusal.Error(), set.Status().Workers[0].Reason)
		assert.GreaterOrEqual(t, m.asked.Load(), int64(3), "it is asked again")

		m.says.Store(nil)
		time.Sleep(6 * time.Second)
		assert.Equal(t, pools.Ready, set.Find("a").State())
		before := m.asked.Load()
		require.NoError(t, set.Update(&pd.Worker{ID: "a", Role: pd.Decode, URL: "http://a", Priority: 1}))
		time.Sleep(5 * time.Minute)
		assert.Equal(t, before, m.asked.Load(), "one that serves is not met again, nor one that was updated")
		stop()
		wg.Wait()
	})
}

func TestAPanicWhereAWorkerIsMetKeepsItOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics atomic.Int64
		monitor := New(Options{
			Transport: &counting{}, Panic: func(any, []byte) { panics.Add(1) },
			Meet: func(context.Context, *pd.Worker) func() error { panic("boom") },
		})
		set, err := pools.New([]*pd.Worker{{ID: "a", Role: pd.Decode, URL: "http://a"}},
			pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: monitor.Suspect})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { monitor.Run(ctx, set) })
		time.Sleep(10 * time.Second)
		assert.Equal(t, pools.Starting, set.Find("a").State())
		assert.Positive(t, panics.Load())
		stop()
		wg.Wait()
	})
}

func TestAnUncheckedWorkerServesAndIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := &counting{}
		monitor := New(Options{Transport: transport})
		set, err := pools.New([]*pd.Worker{{ID: "a", Role: pd.Decode, URL: "http://a", Unchecked: true}},
			pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: monitor.Suspect})
		require.NoError(t, err)
		assert.Equal(t, pools.Ready, set.Find("a").State())
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { monitor.Run(ctx, set) })
		time.Sleep(time.Hour)
		assert.Zero(t, transport.n.Load())
		stop()
		wg.Wait()
	})
}

// The ranks of an engine are one engine's: it is asked once, and what it says is
// said of all.
func TestAnEngineIsAskedOnceForAllItsRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, met := &counting{}, &meeting{}
		monitor := New(Options{Transport: transport, Meet: met.meet, Interval: 10 * time.Second})
		var ranks []*pd.Worker
		for rank := range 4 {
			ranks = append(ranks, &pd.Worker{ID: pd.WorkerID(rune('a' + rank)), Role: pd.Decode, URL: "http://e", DPSize: 4, Rank: &rank})
		}
		set, err := pools.New(ranks, pools.Options{Policies: pools.Share(anyPolicy{}, anyPolicy{}), Suspect: monitor.Suspect})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { monitor.Run(ctx, set) })
		time.Sleep(5 * time.Second)
		for _, w := range set.Status().Workers {
			assert.Equal(t, pools.Ready, w.State)
		}
		assert.EqualValues(t, 1, transport.n.Load())
		assert.EqualValues(t, 1, met.asked.Load())

		require.NoError(t, set.Remove("a"))
		time.Sleep(20 * time.Second)
		assert.Equal(t, pools.Ready, set.Find("b").State(), "whichever ranks are left, one is asked")
		assert.Greater(t, transport.n.Load(), int64(1))
		set.Find("c").Down("refuses connections")
		time.Sleep(10 * time.Second)
		assert.Equal(t, pools.Ready, set.Find("c").State(), "it is well again")
		stop()
		wg.Wait()
	})
}
