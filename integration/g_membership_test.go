package integration

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/simengine"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/health"
	"github.com/tandem-pd/tandem/pools/policy"
)

// listed is a worker in GET /workers.
type listed struct {
	ID        pd.WorkerID
	URL       string
	Type      string `json:"worker_type"`
	State     pools.State
	Reason    string
	Healthy   bool              `json:"is_healthy"`
	InFlight  int               `json:"in_flight"`
	Source    string            `json:"source"`
	Labels    map[string]string `json:"metadata"`
	Bootstrap int               `json:"bootstrap_port"`
	Rank      *int              `json:"dp_rank"`
	Job       struct {
		Type    string `json:"job_type"`
		Message string
	} `json:"job_status"`
}

// list is GET /workers.
func (s *stack) list() []listed {
	s.t.Helper()
	r := s.do(http.MethodGet, "/workers", "")
	require.Equal(s.t, http.StatusOK, r.status, r.body)
	return decoded[struct{ Workers []listed }](s.t, r.body).Workers
}

// at is the worker that an engine is; it has no id where it is none.
func (s *stack) at(e *simengine.Engine) listed {
	s.t.Helper()
	for _, w := range s.list() {
		if w.URL == e.URL() {
			return w
		}
	}
	return listed{}
}

// joins waits until engines take part in their roles.
func (s *stack) joins(engines ...*simengine.Engine) {
	s.t.Helper()
	for _, e := range engines {
		s.eventually(func() bool { w := s.at(e); return w.State == pools.Ready && w.Type == string(e.Role()) }, "%s joins", e.ID())
	}
}

// goes waits until engines are no workers any more.
func (s *stack) goes(engines ...*simengine.Engine) {
	s.t.Helper()
	for _, e := range engines {
		s.eventually(func() bool { return s.at(e).ID == "" }, "%s goes", e.ID())
	}
}

// served makes that many calls, all of which must succeed, and says how many of
// them each engine had a part in.
func (s *stack) served(n int, engines ...*simengine.Engine) (parts []int) {
	s.t.Helper()
	for _, e := range engines {
		parts = append(parts, -len(generations(e)))
	}
	for range n {
		s.ok(generateCall(2))
	}
	for i, e := range engines {
		parts[i] += len(generations(e))
	}
	return parts
}

// lone is an engine that nobody knows of yet.
func lone(t *testing.T, role simengine.Role, id string, change ...func(*simengine.Config)) *simengine.Engine {
	t.Helper()
	cfg := simengine.Config{Role: role, ID: id, TimeScale: 0.01, HealthDelay: -1, RoleSwitch: true}
	for _, f := range change {
		f(&cfg)
	}
	e, err := simengine.Start(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Close()) })
	return e
}

// joining adds an engine by the admin API.
func (s *stack) joining(e *simengine.Engine, more object) pd.WorkerID {
	s.t.Helper()
	body := object{"url": e.URL(), "worker_type": string(e.Role())}
	if e.BootstrapPort() != 0 {
		body["bootstrap_port"] = e.BootstrapPort()
	}
	maps.Copy(body, more)
	r := s.do(http.MethodPost, "/workers", call{body: body}.json())
	require.Equal(s.t, http.StatusAccepted, r.status, r.body)
	return decoded[struct {
		ID pd.WorkerID `json:"worker_id"`
	}](s.t, r.body).ID
}

// fleetless is a stack that has no workers yet, and meets those that come as the
// command does.
func fleetless(t *testing.T, want setup) *stack {
	t.Helper()
	want.prefills, want.decodes = -1, -1
	want.health = func(*health.Options) {}
	return newStack(t, want)
}

// settled requires that engines have nothing left to do.
func (s *stack) settled(engines ...*simengine.Engine) {
	s.t.Helper()
	s.idle()
	for _, e := range engines {
		s.eventually(func() bool { l := e.Loads(); return l.Running+l.Waiting+l.Inflight == 0 }, "%s has nothing to do", e.ID())
	}
}

// A worker that is deleted finishes what it has and gets nothing more; then it is
// gone, and may come again.
func TestADeletedWorkerFinishesWhatItHas(t *testing.T) {
	t.Parallel()
	prefill, stays := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0")
	leaves := lone(t, simengine.Decode, "decode-1", slowly)
	s := fleetless(t, setup{pools: targeting("round_robin")})
	s.joining(prefill, nil)
	s.joining(stays, nil)
	id := s.joining(leaves, nil)
	s.joins(prefill, stays, leaves)
	l := s.listen(generateCall(100).streamed(), targetWorker, string(id))
	l.next()

	require.Equal(t, http.StatusAccepted, s.do(http.MethodDelete, "/workers/"+string(id), "").status)
	w := s.at(leaves)
	assert.Equal(t, pools.Draining, w.State)
	assert.Equal(t, []any{"RemoveWorker", 1}, []any{w.Job.Type, w.InFlight})
	assert.Equal(t, []int{4, 4, 0}, s.served(4, prefill, stays, leaves))
	assert.Equal(t, http.StatusNotFound, s.do(http.MethodDelete, "/workers/"+string(id), "").status)
	end := l.rest()
	require.NoError(t, end.err)
	assert.Equal(t, "[DONE]", end.events()[len(end.events())-1])
	s.goes(leaves)
	assert.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/workers/"+string(id), "").status)

	assert.Equal(t, id, s.joining(leaves, nil))
	s.joins(leaves)
	assert.Equal(t, []int{4, 2, 2}, s.served(4, prefill, stays, leaves))
	s.settled(prefill, stays, leaves)
}

// targeting has one policy for both roles, behind the header that names a worker.
func targeting(name string) func(*pools.Options) {
	return func(o *pools.Options) {
		o.Policies = func(string) (p pools.Policies, err error) {
			if p.Prefill, err = policy.ByName(name); err != nil {
				return p, err
			}
			if p.Decode, err = policy.ByName(name); err != nil {
				return p, err
			}
			p.Prefill, p.Decode = policy.Targeted(p.Prefill, p.Decode)
			return p, nil
		}
	}
}

// F62: an engine that is up before it can say what it is joins when it can, however
// long that takes. One without metrics is as good as any.
func TestF62AnEngineIsAskedUntilItAnswers(t *testing.T) {
	t.Parallel()
	const joinsIn = 5 * time.Second
	prefill, decode := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0")
	late := lone(t, simengine.Decode, "decode-1")
	late.SetPathFault("/server_info", &simengine.Fault{Status: http.StatusServiceUnavailable})
	for _, e := range []*simengine.Engine{decode, late} {
		e.SetPathFault("/metrics", &simengine.Fault{Status: http.StatusNotFound})
	}
	s := fleetless(t, setup{})
	s.joining(prefill, nil)
	s.joining(decode, nil)
	s.joining(late, nil)
	s.joins(prefill, decode)
	for silent := time.Now(); time.Since(silent) < 4*time.Second; { // so long that the longest pause has begun
		require.Equal(t, []int{1, 1, 0}, s.served(1, prefill, decode, late))
		time.Sleep(50 * time.Millisecond)
	}
	w := s.at(late)
	assert.Equal(t, []any{pools.Starting, "AddWorker", "/server_info is answered with status 503"}, []any{w.State, w.Job.Type, w.Job.Message})
	late.SetPathFault("/server_info", nil)
	answered := time.Now()
	s.joins(late)
	assert.Less(t, time.Since(answered), joinsIn+time.Second)
	assert.Equal(t, []int{4, 2, 2}, s.served(4, prefill, decode, late))
	s.settled(prefill, decode, late)
}

// guarded is an engine behind a server that asks for a key on every path.
type guarded struct {
	*httptest.Server
	refused atomic.Int64
	mu      sync.Mutex
	paths   map[string]bool
}

func guard(t *testing.T, e *simengine.Engine, key string) *guarded {
	t.Helper()
	target, err := url.Parse(e.URL())
	require.NoError(t, err)
	g := &guarded{paths: map[string]bool{}}
	proxy := httputil.NewSingleHostReverseProxy(target)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			g.refused.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		g.mu.Lock()
		g.paths[r.URL.Path] = true
		g.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

// F106: a worker's key goes with every call that the router makes to it.
func TestF106AWorkersKeyGoesWithEveryCall(t *testing.T) {
	t.Parallel()
	prefill, decode := lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Decode, "decode-0", slowly)
	before, behind := guard(t, prefill, "key-of-prefill"), guard(t, decode, "key-of-decode")
	s := fleetless(t, setup{})
	s.joining(prefill, object{"url": before.URL, "api_key": "key-of-prefill"})
	id := s.joining(decode, object{"url": behind.URL, "api_key": "key-of-decode"})
	s.eventually(func() bool { return s.readiness() == http.StatusOK }, "they are ready")
	for _, c := range calls(2) {
		r := s.post(c, "Authorization", "Bearer of-the-client")
		require.Equal(t, http.StatusOK, r.status, r.body)
	}
	l := s.listen(generateCall(500).streamed().with(object{"rid": "mine"}))
	l.next()
	l.leave()
	s.told(decode, "mine")
	for _, path := range []string{"/health_generate", "/v1/models", "/model_info", "/server_info", "/get_loads", "/v1/loads"} {
		assert.Equal(t, http.StatusOK, s.do(http.MethodGet, path, "").status, path)
	}
	for _, path := range []string{"/flush_cache", "/pause_generation", "/continue_generation"} {
		r := s.do(http.MethodPost, path, "")
		assert.Equal(t, http.StatusOK, r.status, "%s: %s", path, r.body)
	}
	assert.Zero(t, before.refused.Load()+behind.refused.Load(), "no call goes without")
	behind.mu.Lock()
	for _, path := range []string{"/health", "/server_info", "/generate", "/abort_request", "/health_generate", "/flush_cache", "/pause_generation"} {
		assert.True(t, behind.paths[path], "%s was asked: %v", path, behind.paths)
	}
	behind.mu.Unlock()
	assert.NotContains(t, s.do(http.MethodGet, "/workers/"+string(id), "").body, "key-of-decode")
	s.settled(prefill, decode)
}

// F106: without its key an engine does not join, and that says why.
func TestF106AWorkerWithoutItsKeyDoesNotJoin(t *testing.T) {
	t.Parallel()
	decode := lone(t, simengine.Decode, "decode-0")
	g := guard(t, decode, "key-of-decode")
	s := fleetless(t, setup{})
	id := s.joining(decode, object{"url": g.URL, "api_key": "another"})
	reason := func() string { return decoded[listed](t, s.do(http.MethodGet, "/workers/"+string(id), "").body).Reason }
	s.eventually(func() bool { return strings.Contains(reason(), "401") }, "it says why")
	r := s.do(http.MethodPatch, "/workers/"+string(id), `{"api_key":"key-of-decode"}`)
	require.Equal(t, http.StatusAccepted, r.status, r.body)
	s.eventually(func() bool { return s.set.Serves(id) }, "it joins with the right one")
}

// holding has an engine hold back the requests whose user is held, until they are
// released.
func holding(t *testing.T, e *simengine.Engine) (release func()) {
	t.Helper()
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	e.SetFault(func(r simengine.Record) *simengine.Fault {
		if bytes.Contains(r.Body, []byte(`"held"`)) {
			<-held
		}
		return nil
	})
	return release
}

// F130: a worker takes the other role when it has finished what it has. Nothing
// fails meanwhile, and it does not flap.
func TestF130APrefillBecomesADecode(t *testing.T) {
	t.Parallel()
	const under = 5
	prefills := []*simengine.Engine{
		lone(t, simengine.Prefill, "prefill-0"), lone(t, simengine.Prefill, "prefill-1"), lone(t, simengine.Prefill, "prefill-2"),
	}
	decode, switches := lone(t, simengine.Decode, "decode-0"), prefills[2]
	release := holding(t, switches)
	s := fleetless(t, setup{pools: targeting("round_robin")})
	for _, e := range append(prefills, decode) {
		s.joining(e, nil)
	}
	s.joins(append(prefills, decode)...)
	id := s.at(switches).ID
	var held []*pending
	for range under {
		held = append(held, s.start(generateCall(2).with(object{"user": "held"}), targetWorker, string(id)))
	}
	arrived(t, switches, under)

	// The others go on, from before the switch until after it.
	var failed, ended atomic.Int64
	var traffic sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s.post(calls(2)[i]).status != http.StatusOK {
					failed.Add(1)
				}
				ended.Add(1)
			}
		})
	}
	goesOn := func() {
		from := ended.Load()
		s.eventually(func() bool { return ended.Load() > from+8 }, "others are served")
	}
	goesOn()
	switched := make(chan reply, 1)
	go func() {
		resp, err := s.send(t.Context(), http.MethodPost, "/pd_role_switch", fmt.Sprintf(`{"worker_id":%q,"new_role":"decode"}`, id))
		if err != nil {
			switched <- reply{err: err}
			return
		}
		switched <- whole(resp)
	}()
	s.eventually(func() bool { w := s.at(switches); return w.State == pools.Draining && w.InFlight == under }, "it has those alone")
	before := len(generations(switches))
	goesOn()
	assert.Len(t, generations(switches), before, "no new prefill")
	assert.Equal(t, "SwitchWorkerRole", s.at(switches).Job.Type)
	assert.Equal(t, simengine.Prefill, switches.Role(), "its engine is not told before it is free")

	release()
	for _, p := range held {
		r := p.wait(t)
		assert.Equal(t, http.StatusOK, r.status, "what it had is finished: %s", r.body)
	}
	r := within(t, switched, "the switch")
	require.Equal(t, http.StatusOK, r.status, r.body)
	answer := decoded[struct {
		Success  bool
		Old, New string
	}](t, strings.NewReplacer("old_role", "old", "new_role", "new").Replace(r.body))
	assert.Equal(t, []any{true, "prefill", "decode"}, []any{answer.Success, answer.Old, answer.New})
	s.joins(switches)
	before = len(generations(switches))
	s.eventually(func() bool { return len(generations(switches)) >= before+8 }, "it serves decodes")
	close(stop)
	traffic.Wait()
	assert.Zero(t, failed.Load(), "of %d", ended.Load())
	assert.Equal(t, id, s.at(switches).ID)
	parts := s.served(8, append(prefills, decode)...)
	assert.Equal(t, []int{4, 4, 4, 4}, parts, "two of each role")

	again := s.do(http.MethodPost, "/pd_role_switch", fmt.Sprintf(`{"worker_id":%q,"new_role":"prefill"}`, id))
	assert.Equal(t, http.StatusConflict, again.status, again.body)
	assert.Contains(t, again.body, "SWITCHED_JUST_NOW")
	s.settled(append(prefills, decode)...)
}
