package kubernetes_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/pools/registry"
)

func TestAPodThatIsGoneIsNoWorkerWhateverWasHeardOfIt(t *testing.T) {
	t.Parallel()
	f := func(name string, resync time.Duration, lose func(*apiServer)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newAPIServer(t)
			server.set(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
			r := start(t, server, pairs(resync))
			r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80")
			lose(server)
			r.wants("prefill http://10.0.0.2:80")
		})
	}
	f("deleted by force", never, func(s *apiServer) { s.delete("serving/a") })
	f("deleted while the watch is down", never, func(s *apiServer) {
		s.with(func(s *apiServer) { s.status = http.StatusServiceUnavailable })
		s.breakOff()
		s.delete("serving/a")
		s.with(func(s *apiServer) { s.status = 0 })
	})
	f("deleted while a watch is open and silent", time.Second, func(s *apiServer) { s.lose("serving/a") })
	f("deleted at a version that is too old to watch from", never, func(s *apiServer) {
		s.lose("serving/a")
		s.forget()
		s.breakOff() // and the next watch gets 410
	})
	f("deleted, and the watch ends with an event of 410", never, func(s *apiServer) {
		s.lose("serving/a")
		s.tell(watch.Error)
	})
	f("deleted, and the watch is garbled", never, func(s *apiServer) {
		s.lose("serving/a")
		s.tell(garbled)
	})
	f("deleted while the server answers nothing", time.Second, func(s *apiServer) {
		s.with(func(s *apiServer) { s.hang = true })
		s.breakOff()
		s.delete("serving/a")
		time.Sleep(1500 * time.Millisecond)
		s.with(func(s *apiServer) { s.hang = false })
	})
}

func TestPodsAreFollowedOverHTTP2(t *testing.T) {
	t.Parallel()
	server := newTLSServer(t)
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(300*time.Millisecond))
	r.wants("prefill http://10.0.0.1:80")
	server.set(pod("b", "10.0.0.2"))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80")
	server.lose("serving/a")
	r.wants("prefill http://10.0.0.2:80")
	server.breakOff()
	server.delete("serving/b")
	r.wants()
	for _, call := range server.seen(true) {
		assert.Equal(t, 2, call.proto)
	}
}

func TestThatAVersionIsTooOldIsNoFault(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(never))
	r.wants("prefill http://10.0.0.1:80")
	server.tell(watch.Error)
	server.set(pod("b", "10.0.0.2"))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80")
	server.delete("serving/b") // without any event a watch as short as this one is a fault
	r.wants("prefill http://10.0.0.1:80")
	server.lose("serving/a")
	server.forget()
	server.breakOff()
	r.wants()
	assert.Empty(t, r.allReports())
}

func TestAWatchThatBreaksOffIsResumedWhereItWas(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(never))
	r.wants("prefill http://10.0.0.1:80")
	server.set(pod("b", "10.0.0.2"))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80")
	marked := server.tell(watch.Bookmark)
	r.until(func() (string, bool) {
		server.mu.Lock()
		defer server.mu.Unlock()
		return "want the bookmark sent", server.reached == marked
	})
	server.breakOff()
	server.delete("serving/a")
	r.wants("prefill http://10.0.0.2:80")

	require.Len(t, server.seen(false), 1)
	watches := server.seen(true)
	require.Len(t, watches, 2)
	assert.Equal(t, "101", watches[0].query.Get("resourceVersion"))
	assert.Equal(t, strconv.Itoa(marked), watches[1].query.Get("resourceVersion"))
	for _, w := range watches {
		assert.Equal(t, "true", w.query.Get("allowWatchBookmarks"))
		assert.Equal(t, "3601", w.query.Get("timeoutSeconds"))
		assert.False(t, w.query.Has("sendInitialEvents"))
	}
}

func TestEveryListIsOfWhatThereIsNow(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3"))
	r := start(t, server, pairs(200*time.Millisecond))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80", "prefill http://10.0.0.3:80")
	r.until(func() (string, bool) { return "want more lists", len(server.seen(false)) >= 6 })
	for _, list := range server.seen(false) {
		assert.Empty(t, list.query.Get("resourceVersion"))
	}
	assert.Equal(t, 1, r.times(), "the same list was applied again")
	assert.Empty(t, r.allReports(), "the end of a round is no fault")
}

func TestWhileTheServerFailsTheLastStateStays(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.status = http.StatusServiceUnavailable })
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(300*time.Millisecond))
	r.reported("list pods: said by the test: ServiceUnavailable")
	assert.Zero(t, r.times(), "applied before anything was known")

	server.with(func(s *apiServer) { s.status = 0 })
	r.wants("prefill http://10.0.0.1:80")

	server.with(func(s *apiServer) { s.status = http.StatusServiceUnavailable })
	server.breakOff()
	server.delete("serving/a")
	failed := len(server.seen(false))
	r.until(func() (string, bool) { return "want more lists", len(server.seen(false)) >= failed+3 })
	assert.Equal(t, 1, r.times())

	server.with(func(s *apiServer) { s.status = 0 })
	r.wants()
}

func TestAServerThatIsNotThereIsReported(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.Close()
	r := start(t, server, pairs(never))
	r.reported("connection refused")
	assert.Zero(t, r.times())
}

func TestAServerThatDoesNotAnswerIsReported(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.hang = true })
	r := start(t, server, pairs(300*time.Millisecond))
	r.reported("deadline exceeded")
	assert.Zero(t, r.times())
}

func TestNoPodsAreNoWorkers(t *testing.T) {
	t.Parallel()
	r := start(t, newAPIServer(t), pairs(never))
	r.wants()
	assert.Equal(t, 1, r.times())
	assert.Equal(t, []int{0}, r.counts)
}

func TestOneNamespaceNeedsOnlyARole(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.namespace = "serving" })
	other := pod("b", "10.0.0.2")
	other.Namespace = "elsewhere"
	server.set(pod("a", "10.0.0.1"), other)

	opt := pairs(never)
	opt.Namespace = "serving"
	r := start(t, server, opt)
	r.wants("prefill http://10.0.0.1:80")
	server.set(pod("c", "10.0.0.3"))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.3:80")
	for _, call := range append(server.seen(false), server.seen(true)...) {
		assert.Equal(t, "/api/v1/namespaces/serving/pods", call.path)
		assert.Equal(t, "tandem", call.agent)
	}

	all := start(t, server, pairs(never))
	all.reported("list pods: said by the test: Forbidden")
	assert.Zero(t, all.times())
}

func TestWithoutTheRightToWatchThePodsAreListedAgainAndAgain(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.listOnly = true })
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(never))
	r.reported("watch pods: said by the test: Forbidden")
	r.wants("prefill http://10.0.0.1:80")
	server.delete("serving/a")
	r.wants()
}

func TestAPanicEndsARoundAndNotTheSource(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.status = http.StatusServiceUnavailable })
	server.set(pod("a", "10.0.0.1"))
	var once sync.Once
	opt := pairs(never)
	opt.Report = func(error) {
		once.Do(func() {
			server.with(func(s *apiServer) { s.status = 0 })
			panic("of the hook")
		})
	}
	r := start(t, server, opt)
	r.wants("prefill http://10.0.0.1:80")
	assert.Contains(t, r.allReports(), "panic while following pods: of the hook")
}

func TestTheTokenIsSent(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.token = "of-the-account" })
	server.set(pod("a", "10.0.0.1"))
	r := startWith(t, &rest.Config{Host: server.URL, BearerToken: "of-the-account"}, pairs(never))
	r.wants("prefill http://10.0.0.1:80")

	wrong := startWith(t, &rest.Config{Host: server.URL, BearerToken: "of-nobody"}, pairs(never))
	wrong.reported("Unauthorized")
	assert.NotContains(t, wrong.allReports(), "of-nobody")
	assert.Zero(t, wrong.times())
}

func TestRunLeavesNothingBehind(t *testing.T) {
	f := func(name string, prepare func(*apiServer), begun func(*running)) {
		t.Run(name, func(t *testing.T) {
			for _, newServer := range []func(*testing.T) *apiServer{newAPIServer, newTLSServer} {
				before := goleak.IgnoreCurrent()
				server := newServer(t)
				prepare(server)
				r := start(t, server, pairs(never))
				begun(r)
				r.stop()
				server.Close()
				goleak.VerifyNone(t, before)
			}
		})
	}
	f("while it watches", func(s *apiServer) { s.set(pod("a", "10.0.0.1")) }, func(r *running) {
		r.wants("prefill http://10.0.0.1:80")
	})
	f("while a list has no answer", func(s *apiServer) { s.hang = true }, func(*running) {
		time.Sleep(100 * time.Millisecond)
	})
	f("while it pauses", func(s *apiServer) { s.status = http.StatusServiceUnavailable }, func(r *running) {
		r.reported("ServiceUnavailable")
	})
}

func TestASourceNeedsNoHooks(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"))
	source, err := kubernetes.New(server.config(), pairs(100*time.Millisecond))
	require.NoError(t, err)
	assert.Equal(t, "kubernetes", source.Name())
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, source.Run(ctx, func(specs []registry.Spec) {
		assert.Len(t, specs, 1)
		cancel()
	}))
}
