package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Workers come and go with what the command's flags name, while it runs.
func TestWhereWorkersComeFrom(t *testing.T) {
	t.Parallel()
	binary := built(t)
	t.Run("F58, F59, F61, F65: pods", func(t *testing.T) { t.Parallel(); podsAreFollowed(t, binary) })
	t.Run("a file", func(t *testing.T) { t.Parallel(); aFileIsFollowed(t, binary) })
	t.Run("the admin API, over a restart", func(t *testing.T) { t.Parallel(); whatWasAddedSurvives(t, binary) })
	t.Run("F100: ranks", func(t *testing.T) { t.Parallel(); ranksAreTargets(t, binary) })
	t.Run("nothing but what is asked for", func(t *testing.T) { t.Parallel(); noSourceTurnsOnAnother(t, binary) })
}

func podsAreFollowed(t *testing.T, binary tandem) {
	const resync = 2 * time.Second
	prefill := lone(t, simengine.Prefill, "prefill-0")
	turncoat := lone(t, simengine.Prefill, "prefill-1")
	decodes := []*simengine.Engine{
		lone(t, simengine.Decode, "decode-0"), lone(t, simengine.Decode, "decode-1"), lone(t, simengine.Decode, "decode-2", slowly),
	}
	c := newCluster(t)
	r := binary.start(t, nil,
		"--pd-disaggregation", "--policy", "round_robin", "--service-discovery", "--kubeconfig", c.kubeconfig(t),
		"--service-discovery-namespace", "serving", "--service-discovery-interval-secs", fmt.Sprint(resync.Seconds()),
		"--prefill-selector", "app=sglang", "role=prefill", "--decode-selector", "app=sglang", "role=decode")
	assert.Equal(t, http.StatusServiceUnavailable, r.readiness(), "there are no pods yet")

	part := func(name string, f func(t *testing.T, r *started)) {
		require.True(t, t.Run(name, func(t *testing.T) { f(t, r.of(t)) }))
	}
	part("they serve when they are there", func(t *testing.T, r *started) {
		c.set(pod("prefill-a", prefill))
		c.set(pod("prefill-b", turncoat))
		c.set(pod("decode-a", decodes[:2]...))
		c.set(pod("decode-b", decodes[2]))
		r.joins(append(decodes, prefill, turncoat)...)
		assert.Equal(t, http.StatusOK, r.readiness())
		for _, n := range r.served(6, prefill, turncoat, decodes[0], decodes[1], decodes[2]) {
			assert.Positive(t, n)
		}
		r.ok(chatCall(2).with(object{"model": "of whatever name"})) // pods make it no router of many models
		w := r.at(decodes[2])
		assert.Equal(t, "kubernetes", w.Source)
		assert.Equal(t, map[string]string{"smg.ai/pod-name": "decode-b", "smg.ai/pod-uid": "uid-decode-b", "namespace": "serving"}, w.Labels)
	})
	part("F65: pods with one address and ports of their own, and several in one", func(t *testing.T, r *started) {
		for _, e := range []*simengine.Engine{prefill, turncoat} {
			assert.Equal(t, e.BootstrapPort(), r.at(e).Bootstrap)
			require.NotEmpty(t, generations(e))
			for _, rec := range generations(e) {
				assert.Contains(t, string(rec.Body), fmt.Sprintf(`"bootstrap_port":%d`, e.BootstrapPort()))
			}
		}
	})
	part("F59: one that loses its address finishes what it has", func(t *testing.T, r *started) {
		evicted := decodes[2]
		l := r.listen(generateCall(150).streamed(), targetWorker, string(r.at(evicted).ID)) // of 3 s
		l.next()
		gone := pod("decode-b", evicted)
		gone.Status.PodIP = ""
		c.set(gone)
		r.eventually(func() bool { return r.at(evicted).State == pools.Draining }, "it takes no work")
		assert.Equal(t, 1, r.at(evicted).InFlight)
		assert.Equal(t, []int{0}, r.served(4, evicted))
		end := l.rest()
		require.NoError(t, end.err)
		assert.Equal(t, "[DONE]", end.events()[len(end.events())-1])
		r.goes(evicted)
		assert.Equal(t, []int{0}, r.served(4, evicted))
		c.set(pod("decode-b", evicted))
		r.joins(evicted)
	})
	part("F61: one that is to have another role has it when its engine does", func(t *testing.T, r *started) {
		release := holding(t, turncoat)
		before := len(generations(turncoat))
		had := r.start(generateCall(2).with(object{"user": "held"}), targetWorker, string(r.at(turncoat).ID))
		arrived(t, turncoat, before+1)
		relabelled := pod("prefill-b", turncoat)
		relabelled.Labels["role"] = "decode"
		c.set(relabelled)
		r.eventually(func() bool { w := r.at(turncoat); return w.Type == "decode" && strings.Contains(w.Reason, "refused") }, "it is to be a decode")
		assert.Contains(t, r.at(turncoat).Reason, "it runs as a prefill engine, and is to be a decode worker")
		assert.Equal(t, []int{0}, r.served(6, turncoat))
		release()
		assert.Equal(t, http.StatusOK, had.wait(t).status, "what it had is finished")
		r.eventually(func() bool { // it may be asked for its health just then, and is not idle
			resp, err := r.client.Post(turncoat.URL()+"/pd_role_switch", "application/json", strings.NewReader(`{"new_role":"decode"}`))
			require.NoError(t, err)
			return whole(resp).status == http.StatusOK
		}, "its engine switches")
		r.joins(turncoat)
		parts := r.served(8, prefill, turncoat)
		assert.Equal(t, 8, parts[0], "there is one prefill now")
		assert.Positive(t, parts[1], "and one decode more")
	})
	part("F58: one that is deleted without a word goes", func(t *testing.T, r *started) {
		c.delete("decode-b")
		r.goes(decodes[2])
		assert.Equal(t, []int{0}, r.served(4, decodes[2]))
	})
	part("F58: so does one whose deletion the watch has missed", func(t *testing.T, r *started) {
		c.lose("decode-a")
		lost := time.Now()
		r.goes(decodes[:2]...)
		assert.Less(t, time.Since(lost), resync+time.Second+soon)
		assert.Equal(t, []int{0, 0, 4}, r.served(4, decodes[0], decodes[1], turncoat))
	})
	part("F61: one that no selector wants goes", func(t *testing.T, r *started) {
		other := pod("prefill-b", turncoat)
		other.Labels["app"] = "other"
		c.set(other)
		r.goes(turncoat)
		assert.Equal(t, http.StatusServiceUnavailable, r.post(generateCall(2)).status)
		assert.Equal(t, http.StatusServiceUnavailable, r.readiness())
	})
}

// entries is the text of a file with engines as its workers.
func entries(t *testing.T, engines ...*simengine.Engine) []byte {
	t.Helper()
	workers := []object{}
	for _, e := range engines {
		w := object{"url": e.URL(), "worker_type": string(e.Role())}
		if e.BootstrapPort() != 0 {
			w["bootstrap_port"] = e.BootstrapPort()
		}
		workers = append(workers, w)
	}
	text, err := json.Marshal(object{"workers": workers})
	require.NoError(t, err)
	return text
}

// replace puts a file in the place of another, as editors do.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", text, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func aFileIsFollowed(t *testing.T, binary tandem) {
	prefill := lone(t, simengine.Prefill, "prefill-0")
	one, two := lone(t, simengine.Decode, "decode-0"), lone(t, simengine.Decode, "decode-1")
	path := filepath.Join(t.TempDir(), "workers.yaml")
	replace(t, path, entries(t, prefill, one))
	r := binary.start(t, nil, "--pd-disaggregation", "--policy", "round_robin", "--worker-file", path)
	r.joins(prefill, one)
	assert.Equal(t, []int{3, 3}, r.served(3, prefill, one))

	replace(t, path, entries(t, prefill, one, two))
	r.joins(two)
	assert.Equal(t, []int{4, 2, 2}, r.served(4, prefill, one, two))

	replace(t, path, []byte("workers:\n  - url: nonsense\n"))
	r.eventually(func() bool { return strings.Contains(r.do(http.MethodGet, "/workers", "").body, "source_errors") }, "it is told")
	assert.Equal(t, []int{4, 2, 2}, r.served(4, prefill, one, two), "what it said before goes on")

	replace(t, path, entries(t, prefill, two))
	r.goes(one)
	assert.Equal(t, []int{4, 0, 4}, r.served(4, prefill, one, two))
	assert.NotContains(t, r.do(http.MethodGet, "/workers", "").body, "source_errors")
}

func whatWasAddedSurvives(t *testing.T, binary tandem) {
	prefill, decode, deleted := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0"), lone(t, simengine.Decode, "decode-1")
	path := filepath.Join(t.TempDir(), "state.json")
	start := func() *started { return binary.start(t, nil, "--pd-disaggregation", "--state-file", path) }
	r := start()
	ids := []pd.WorkerID{r.joining(prefill, object{"priority": 70}), r.joining(decode, object{"labels": object{"zone": "a"}})}
	r.joining(deleted, nil)
	r.joins(prefill, decode, deleted)
	assert.Equal(t, http.StatusAccepted, r.do(http.MethodDelete, "/workers/"+string(r.at(deleted).ID), "").status)
	r.goes(deleted)
	r.ok(generateCall(2))
	r.stop()
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	r = start()
	r.joins(prefill, decode)
	r.ok(generateCall(2))
	assert.Equal(t, ids, []pd.WorkerID{r.at(prefill).ID, r.at(decode).ID})
	assert.Equal(t, map[string]string{"zone": "a"}, r.at(decode).Labels)
	assert.Len(t, r.list(), 2, "what was deleted is")
	r.stop()

	without := binary.start(t, nil, "--pd-disaggregation")
	assert.Empty(t, without.list(), "who is not told of a file keeps nothing")
}

// spied is an engine behind a server that notes every request.
type spied struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string
}

func ranksAreTargets(t *testing.T, binary tandem) {
	const n = 160
	prefill := lone(t, simengine.Prefill, "prefill-0", sized(4))
	decode := lone(t, simengine.Decode, "decode-0", sized(2))
	before, behind := spy(t, prefill), spy(t, decode)
	r := binary.start(t, nil, "--pd-disaggregation", "--policy", "round_robin", "--dp-aware", "--health-check-interval-secs", "1",
		"--prefill", before.URL, strconv.Itoa(prefill.BootstrapPort()), "--decode", behind.URL)
	want := []pd.WorkerID{"prefill-0@0", "prefill-0@1", "prefill-0@2", "prefill-0@3", "decode-0@0", "decode-0@1"}
	r.eventually(func() bool {
		return len(r.list()) == len(want) && !slices.ContainsFunc(r.list(), func(w listed) bool { return w.State != pools.Ready })
	}, "each rank is a worker")
	for i, w := range r.list() {
		assert.Equal(t, want[i], w.ID)
		require.NotNil(t, w.Rank)
		assert.True(t, strings.HasSuffix(string(w.ID), fmt.Sprint("@", *w.Rank)))
		assert.Contains(t, []string{before.URL, behind.URL}, w.URL, "a rank has no address of its own")
	}
	kinds := calls(2)
	together(n, 8, func(i int) {
		reply := r.post(kinds[i%len(kinds)])
		assert.Equal(t, http.StatusOK, reply.status, reply.body)
	})
	r.prefills, r.decodes = []*simengine.Engine{prefill}, []*simengine.Engine{decode}
	prefills, decodes := r.requirePaired(4)
	assert.Equal(t, map[int]int{0: n / 4, 1: n / 4, 2: n / 4, 3: n / 4}, prefills)
	assert.Equal(t, map[int]int{0: n / 2, 1: n / 2}, decodes)
	for _, e := range []*spied{before, behind} {
		e.mu.Lock()
		require.Greater(t, len(e.seen), n)
		for _, line := range e.seen {
			assert.NotContains(t, line, "@")
		}
		e.mu.Unlock()
	}
	r.ok(generateCall(2).with(object{"routed_dp_rank": 1}))
	assert.Equal(t, onRank(1, 1), toldOf(t, generations(decode)[n]), "a client's wish counts")
	order := r.do(http.MethodPost, "/workers/decode-0@1/drain", "")
	require.Equal(t, http.StatusOK, order.status, order.body)
	for range 6 {
		r.ok(generateCall(2))
	}
	for _, rec := range generations(decode)[n+1:] {
		assert.Equal(t, 0, *toldOf(t, rec).Rank, "a rank drains alone")
	}
	r.eventually(func() bool { return before.asked("/health") > 6 }, "they are looked at")
	assert.InDelta(t, behind.asked("/health"), before.asked("/health"), 3, "each engine is, and not each rank")
	flushed := before.asked("/flush_cache")
	assert.Equal(t, http.StatusOK, r.do(http.MethodPost, "/flush_cache", "").status)
	assert.Equal(t, flushed+1, before.asked("/flush_cache"))
}

// asked is how often it was asked a path.
func (s *spied) asked(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.seen {
		if strings.Split(line, " ")[1] == path {
			n++
		}
	}
	return n
}

// spy notes what an engine is asked, and passes it on.
func spy(t *testing.T, e *simengine.Engine) *spied {
	t.Helper()
	target, err := url.Parse(e.URL())
	require.NoError(t, err)
	s := new(spied)
	proxy := httputil.NewSingleHostReverseProxy(target)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+" "+r.RequestURI+" "+r.Host+" "+fmt.Sprint(r.Header))
		s.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// A flag that says more of a source is no source, and a source is that one alone:
// neither what the environment says of a cluster nor a name makes another.
func noSourceTurnsOnAnother(t *testing.T, binary tandem) {
	prefill, decode := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0")
	file := filepath.Join(t.TempDir(), "workers.yaml")
	replace(t, file, entries(t, prefill, decode))
	given := []string{"--prefill", prefill.URL(), strconv.Itoa(prefill.BootstrapPort()), "--decode", decode.URL()}
	f := func(name, source string, args ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.set(pod("decode-a", lone(t, simengine.Decode, "decode-1")))
			env := []string{"KUBECONFIG=" + c.kubeconfig(t), "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=1"}
			r := binary.start(t, env, append([]string{"--pd-disaggregation"}, args...)...)
			r.joins(prefill, decode)
			time.Sleep(500 * time.Millisecond) // in which a source would have asked
			assert.Zero(t, c.asked(), "the cluster is left in peace")
			require.Len(t, r.list(), 2)
			for _, w := range r.list() {
				assert.Equal(t, source, w.Source)
			}
			r.ok(generateCall(2))
		})
	}
	f("the command line", "static", given...)
	f("selectors", "static", append(given,
		"--prefill-selector", "app=sglang", "--decode-selector", "app=sglang", "--service-discovery-port", "1",
		"--service-discovery-namespace", "serving", "--service-discovery-interval-secs", "1")...)
	f("an interval for names", "static", append(given, "--dns-interval-secs", "1")...)
	f("a file", "file", "--worker-file", file)
	f("a state file", "static", append(given, "--state-file", filepath.Join(t.TempDir(), "state.json"))...)
}
