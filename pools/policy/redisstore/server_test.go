//go:build redis

package redisstore

import (
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// server is a redis-server of the test's own.
type server struct {
	address string
	cmd     *exec.Cmd
}

// start starts a server that keeps nothing on disk, on a free port of loopback.
func start(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{address: l.Addr().String()}
	require.NoError(t, l.Close())
	s.run(t)
	t.Cleanup(s.stop)
	return s
}

// run starts it, again after stop.
func (s *server) run(t *testing.T) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	s.cmd = exec.Command("redis-server", "--bind", host, "--port", port,
		"--save", "", "--appendonly", "no", "--dir", t.TempDir())
	require.NoError(t, s.cmd.Start())
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", s.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, 20*time.Second, 20*time.Millisecond, "redis-server is up")
}

// stop kills it. What it held is gone.
func (s *server) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// open opens a DB on it.
func (s *server) open(t *testing.T) *DB {
	t.Helper()
	db, err := Open("redis://" + s.address + "/1")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func list(ids string) []pd.WorkerID {
	var list []pd.WorkerID
	for id := range strings.FieldsSeq(ids) {
		list = append(list, pd.WorkerID(id))
	}
	return list
}

func TestSwap(t *testing.T) {
	db := start(t).open(t)
	store := db.Store("m", pd.Decode, time.Hour)
	// f swaps and says what is stored then.
	f := func(prev, next, want string) {
		t.Helper()
		stored, err := store.Swap(t.Context(), "k", list(prev), list(next))
		require.NoError(t, err)
		assert.Equal(t, list(want), stored)
		held, err := db.client.Get(t.Context(), "tandem:manual:m:decode:k").Result()
		require.NoError(t, err)
		assert.Equal(t, join(list(want)), held)
	}
	f("", "a", "a") // the first one to tell
	f("", "b", "a") // another one, at the same time
	f("a", "a b", "a b")
	f("a", "a c", "a b") // one who does not know of b
	f("a b", "a b", "a b")
	f("a b", "b c", "b c")
	require.NoError(t, db.client.Del(t.Context(), "tandem:manual:m:decode:k").Err())
	f("b c", "b c", "b c") // the store has lost it

	other, err := db.Store("m", pd.Prefill, time.Hour).Swap(t.Context(), "k", nil, list("p"))
	require.NoError(t, err)
	assert.Equal(t, list("p"), other, "roles share nothing")

	require.NoError(t, db.client.Set(t.Context(), "tandem:manual:m:decode:bad", ",", 0).Err())
	_, err = store.Swap(t.Context(), "bad", nil, list("a"))
	require.EqualError(t, err, "redisstore: what is stored is no list of workers")
	require.NoError(t, db.client.LPush(t.Context(), "tandem:manual:m:decode:worse", "a").Err())
	_, err = store.Swap(t.Context(), "worse", nil, list("a"))
	require.ErrorContains(t, err, "WRONGTYPE")
}

func TestAKeyLivesOnWithEachUse(t *testing.T) {
	db := start(t).open(t)
	short, long := db.Store("m", pd.Decode, time.Minute), db.Store("m", pd.Decode, time.Hour)
	swap := func(s *Store, prev, next string, low, high time.Duration) {
		t.Helper()
		_, err := s.Swap(t.Context(), "k", list(prev), list(next))
		require.NoError(t, err)
		ttl, err := db.client.PTTL(t.Context(), "tandem:manual:m:decode:k").Result()
		require.NoError(t, err)
		assert.Greater(t, ttl, low)
		assert.LessOrEqual(t, ttl, high)
	}
	swap(short, "", "a", 0, time.Minute)
	swap(long, "a", "a", time.Minute, time.Hour) // only asked
	swap(short, "x", "y", 0, time.Minute)        // in vain
	swap(long, "a", "a b", time.Minute, time.Hour)

	brief := db.Store("m", pd.Decode, 50*time.Millisecond)
	_, err := brief.Swap(t.Context(), "brief", nil, list("a"))
	require.NoError(t, err)
	assert.Eventually(t, func() bool {
		return db.client.Exists(t.Context(), "tandem:manual:m:decode:brief").Val() == 0
	}, 10*time.Second, 10*time.Millisecond)
}

// eight offers eight decode members, in a set of its own for each router.
func eight(t *testing.T) *offered {
	t.Helper()
	o := &offered{}
	workers := []*pd.Worker{{ID: "prefill-0", Role: pd.Prefill}}
	for _, id := range list("d0 d1 d2 d3 d4 d5 d6 d7") {
		workers = append(workers, &pd.Worker{ID: id, Role: pd.Decode})
	}
	set, err := pools.New(workers, pools.Options{Policies: pools.Share(policy.Random{}, o)})
	require.NoError(t, err)
	_, err = set.Plan(t.Context(), nil, 1, nil)
	require.NoError(t, err)
	return o
}

// offered keeps the members it was offered.
type offered struct{ members []*pools.Member }

func (o *offered) Pick(_ *pd.Request, members []*pools.Member) *pools.Member {
	o.members = members
	return members[0]
}

// router is a policy over the store of the server.
func router(t *testing.T, s *server, members []*pools.Member) *policy.Manual {
	t.Helper()
	p, err := policy.NewManual(t.Context(), policy.ManualOptions{
		Key:   func(req *pd.Request) string { return req.ID },
		Store: s.open(t).Store("m", pd.Decode, time.Hour), StoreTimeout: 10 * time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	p.Follow(members)
	return p
}

func sessions(n int) []*pd.Request {
	requests := make([]*pd.Request, n)
	for i := range requests {
		requests[i] = &pd.Request{ID: "session " + string(rune('A'+i))}
	}
	return requests
}

func picks(p *policy.Manual, requests []*pd.Request, members []*pools.Member) []pd.WorkerID {
	var ids []pd.WorkerID
	for _, req := range requests {
		ids = append(ids, p.Pick(req, members).Worker.ID)
	}
	return ids
}

func TestRoutersAgreeOverAServer(t *testing.T) {
	s := start(t)
	members, requests := eight(t).members, sessions(200)
	got := make([][]pd.WorkerID, 6)
	routers := []*policy.Manual{router(t, s, members), router(t, s, members), router(t, s, members)}
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = picks(routers[i%3], requests, members) })
	}
	wg.Wait()
	for _, ids := range got {
		assert.Equal(t, got[0], ids)
	}
}

func TestAServerThatComesBackEmptyIsToldAgain(t *testing.T) {
	s := start(t)
	members, requests := eight(t).members, sessions(40)
	a := router(t, s, members)
	before := picks(a, requests[:20], members)
	s.stop()
	before = append(before, picks(a, requests[20:], members)...) // decided alone
	s.run(t)
	observer := s.open(t)
	require.Eventually(t, func() bool {
		assert.Equal(t, before, picks(a, requests, members), "nobody moves")
		n, err := observer.client.DBSize(t.Context()).Result()
		return err == nil && n == int64(len(requests))
	}, 30*time.Second, 100*time.Millisecond)
	assert.Equal(t, before, picks(router(t, s, members), requests, members))
}
