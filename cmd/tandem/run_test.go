package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// fasthttp keeps these for a while after a server has ended.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
	)
}

// output collects what a command writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// ended runs a command that ends by itself.
func ended(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs output
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// process is a command under way.
type process struct {
	out, errs output
	stop      context.CancelFunc
	code      chan int
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{stop: cancel, code: make(chan int, 1)}
	go func() { p.code <- run(ctx, args, &p.out, &p.errs) }()
	t.Cleanup(cancel)
	return p
}

// end waits for the command's exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(20 * time.Second):
		require.FailNow(t, "the command goes on", "stdout:\n%s\nstderr:\n%s", p.out.String(), p.errs.String())
		return -1
	}
}

// url waits until stdout shows the router's address and it answers.
func (p *process) url(t *testing.T) string {
	t.Helper()
	address := regexp.MustCompile(`(?m)(?:listens on|router) +(http://\S+)$`)
	var base string
	require.Eventually(t, func() bool {
		m := address.FindStringSubmatch(p.out.String())
		if m == nil {
			return false
		}
		base = m[1]
		status, _ := try(http.MethodGet, base+"/health", "")
		return status == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond)
	return base
}

// ready is url when the workers have been seen to serve.
func (p *process) ready(t *testing.T) string {
	t.Helper()
	base := p.url(t)
	require.Eventually(t, func() bool {
		status, _ := try(http.MethodGet, base+"/readiness", "")
		return status == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond, "%s", p.errs.String())
	return base
}

// try makes one request; its status is 0 when no answer came.
func try(method, url, body string) (status int, answer string) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Close = true
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(raw)
}

// nobody is the URL of a worker that is not there. Its port is the near end of
// a connection, so that no other server takes it.
func nobody(t *testing.T) string {
	t.Helper()
	far, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	near, err := net.Dial("tcp", far.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = near.Close() })
	return "http://" + near.LocalAddr().String()
}

func servePair(t *testing.T, more ...string) *process {
	t.Helper()
	args := []string{
		"--pd-disaggregation", "--host", "127.0.0.1", "--port", "0",
		"--prefill", nobody(t), "8998", "--decode", nobody(t),
	}
	return start(t, append(args, more...)...)
}

func TestUsageAndVersion(t *testing.T) {
	code, out, errs := ended(t, "--help")
	assert.Equal(t, exitOK, code)
	assert.Empty(t, errs)
	for _, want := range []string{"tandem --pd-disaggregation", "--prefill URL [PORT|none]", "sim-engine", "demo", "--request-timeout-secs"} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "--jwt-issuer", "what is refused is not offered")
	assert.NotContains(t, out, "--cache-threshold", "what means nothing is not offered")

	for _, flag := range []string{"--version", "-V"} {
		code, out, _ = ended(t, flag)
		assert.Equal(t, exitOK, code)
		assert.Regexp(t, `^tandem \S+\n$`, out)
	}
}

func TestACommandLineThatIsWrong(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		code, out, errs := ended(t, args...)
		assert.Equal(t, exitUsage, code)
		assert.Empty(t, out)
		assert.Equal(t, "tandem: "+want+"\nSee tandem --help.\n", errs)
	}
	pair := func(more ...string) []string {
		return append([]string{"--prefill", "http://p:1", "--decode", "http://d:1"}, more...)
	}
	f("unknown flag --prefil; did you mean --prefill?", pair("--prefil", "http://q:1", "8998")...)
	f("unknown flag --whatever-that-is", pair("--whatever-that-is")...)
	f("2 mistakes in the command line:\n  unknown flag --bort; did you mean --port?\n"+
		`  --max-n "0": want a number from 1 to 1048576`, pair("--bort", "1", "--max-n", "0")...)
	f(`unknown shorthand flag: 'x' in -x`, "-x")
	f(`flag needs an argument: --port`, "--port")
	f(`unexpected argument "serve"`, append([]string{"serve"}, pair()...)...)
	f(`unexpected argument "http://d2": each worker has a --prefill or --decode of its own`, pair("http://d2")...)
	f("unknown flag --request-timeout; did you mean --request-timeout-secs?", pair("--request-timeout", "30")...)
	f(`unexpected argument "x"`, "demo", "x")
	f(`--port "x": want a number from 0 to 65535`, "demo", "--port", "x")
	f(`unknown flag --prt; did you mean --port?`, "demo", "--prt", "1")
	f("there are no workers: want --prefill and --decode, or --worker-urls, or where to find them (--worker-file, --prefill-dns, --service-discovery)")
	f("2 mistakes in the command line:\n  --prefill: at least one prefill worker is needed\n"+
		"  --decode: at least one decode worker is needed", "--mini-lb")
}

func TestServeStartsAndStops(t *testing.T) {
	p := servePair(t, "--cache-threshold", "0.3")
	base := p.url(t)
	assert.NotContains(t, base, ":0", "the port that was taken is shown")

	status, answer := try(http.MethodPost, base+"/generate", `{"text":"hello"}`)
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, answer, "no prefill worker is available: 1 starting")
	status, _ = try(http.MethodPost, base+"/generate", `{`)
	assert.Equal(t, http.StatusBadRequest, status)

	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	assert.Equal(t, 1, strings.Count(p.errs.String(), "no effect in this version: --cache-threshold"))
	assert.Equal(t, 1, strings.Count(p.out.String(), "\n"), "stdout has the address alone")
	assert.Regexp(t, `"worker":"prefill-0","url":"http://127\.0\.0\.1:\d+","bootstrap_host":"127\.0\.0\.1","bootstrap_port":8998`, p.errs.String())
	assert.Regexp(t, `"worker":"decode-0","url":"http://127\.0\.0\.1:\d+",`, p.errs.String(), "ids can be told from the log")
	status, _ = try(http.MethodGet, base+"/health", "")
	assert.Zero(t, status)
}

func TestServeListensOnNamesAndIPv6(t *testing.T) {
	for _, host := range []string{"localhost", "::1", "[::1]"} {
		p := servePair(t, "--host", host)
		p.url(t)
		p.stop()
		assert.Equal(t, exitOK, p.end(t), host)
	}
}

func TestTheAddressIsShownAsItWasAskedFor(t *testing.T) {
	any6 := &net.TCPAddr{IP: net.IPv6unspecified, Port: 30000}
	assert.Equal(t, "0.0.0.0:30000", shownAddress("0.0.0.0", any6))
	assert.Equal(t, "localhost:30000", shownAddress("localhost", any6))
	assert.Equal(t, "[::1]:30000", shownAddress("[::1]", any6))
}

func TestSIGTERMSettlesAndASecondSignalEndsAtOnce(t *testing.T) {
	p := servePair(t, "--drain-settle-secs", "600", "--shutdown-grace-period-secs", "600")
	base := p.url(t)
	_, answer := try(http.MethodGet, base+"/readiness", "")
	require.Contains(t, answer, "insufficient healthy workers", "nobody listens where the workers should be")

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	require.Eventually(t, func() bool {
		status, answer := try(http.MethodGet, base+"/readiness", "")
		return status == http.StatusServiceUnavailable && strings.Contains(answer, "draining")
	}, 20*time.Second, 10*time.Millisecond)
	status, _ := try(http.MethodGet, base+"/health", "")
	assert.Equal(t, http.StatusOK, status, "it still accepts")

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	assert.Equal(t, exitOK, p.end(t))
	assert.Contains(t, p.errs.String(), "second signal")
}

func TestSIGINTDoesNotSettle(t *testing.T) {
	p := servePair(t, "--drain-settle-secs", "600")
	p.url(t)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	assert.Equal(t, exitOK, p.end(t))
}

func TestAPortThatIsTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)

	code, _, errs := ended(t, "demo", "--port", port)
	assert.Equal(t, exitFailure, code)
	assert.Equal(t, "tandem: port "+port+" is in use: choose another with --port\n", errs)

	code, _, errs = ended(t, "--prefill", nobody(t), "--decode", nobody(t), "--host", "127.0.0.1", "--port", port)
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, errs, "cannot listen on --host 127.0.0.1 --port "+port)
}

func TestTheLogGoesToTheDirectoryToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	p := servePair(t, "--log-dir", dir)
	p.url(t)
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	raw, err := os.ReadFile(filepath.Join(dir, "tandem.log"))
	require.NoError(t, err)
	assert.Contains(t, string(raw), `"listening"`)
	assert.Equal(t, p.errs.String(), string(raw))

	file := filepath.Join(dir, "tandem.log")
	code, _, errs := ended(t, "--prefill", nobody(t), "--decode", nobody(t), "--port", "0", "--log-dir", file)
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, errs, "cannot use --log-dir")
}

func TestDemo(t *testing.T) {
	p := start(t, "demo", "--port", "0")
	base := p.ready(t)
	out := p.out.String()
	for _, want := range []string{"prefill-0", "prefill-1", "decode-0", "decode-1", "bootstrap 127.0.0.1:"} {
		assert.Contains(t, out, want)
	}
	assert.Equal(t, 3, strings.Count(out, "  curl -s"))

	status, answer := try(http.MethodPost, base+"/v1/chat/completions",
		`{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":4}`)
	assert.Equal(t, http.StatusOK, status, answer)
	assert.Contains(t, answer, `"completion_tokens":4`)
	status, answer = try(http.MethodPost, base+"/v1/chat/completions",
		`{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Hello"}],"max_tokens":4}`)
	assert.Equal(t, http.StatusOK, status, answer)
	assert.True(t, strings.HasSuffix(answer, "data: [DONE]\n\n"), answer)
	status, answer = try(http.MethodPost, base+"/generate",
		`{"text":"Hello","return_logprob":true,"logprob_start_len":0,"sampling_params":{"max_new_tokens":4}}`)
	assert.Equal(t, http.StatusOK, status, answer)
	assert.Contains(t, answer, `"input_token_logprobs":[[`)

	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	lines := strings.TrimPrefix(p.out.String(), out)
	assert.Equal(t, 3, strings.Count(lines, " ok\n"), "a line for each request")
	assert.Regexp(t, `(?m)^\S+ chat prefill-[01]\+decode-[01] room=\d+ \| prefill-[01] 200 .*tokens=\d+\+4 `, lines)
	assert.NotContains(t, lines, "127.0.0.1")
}

func TestMaxEventSizeBoundsWhatSamplesAreMergedFrom(t *testing.T) {
	engine := func(events string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/chat/completions" {
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, events+"data: [DONE]\n\n")
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	event := `data: {"id":"a","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", 1<<20) + `"}}]}` + "\n\n"
	p := start(t, "--host", "127.0.0.1", "--port", "0", "--max-event-size", "500000",
		"--prefill", engine(""), "none", "--decode", engine(event))
	base := p.ready(t)
	status, answer := try(http.MethodPost, base+"/v1/chat/completions", `{"messages":[],"stream":true}`)
	assert.Equal(t, http.StatusOK, status)
	assert.True(t, event+"data: [DONE]\n\n" == answer, "one sample passes as it comes")
	_, answer = try(http.MethodPost, base+"/v1/chat/completions", `{"messages":[],"stream":true,"n":2}`)
	assert.Less(t, len(answer), 1000, "an event to be merged has to be held")
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
}

func TestMiniLBNamesRanks(t *testing.T) {
	engine := func(ranks int, seen chan<- string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/server_info" {
				io.WriteString(w, `{"api_key":"k","internal_states":[{"a":1}`+strings.Repeat(`,{}`, ranks-1)+`]}`)
				return
			}
			raw, _ := io.ReadAll(r.Body)
			seen <- string(raw)
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"text":"","meta_info":{"prompt_tokens":1,"completion_tokens":1}}`)
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	prefills, decodes := make(chan string, 8), make(chan string, 8) // an abort is a call as well
	p := start(t, "--pd-disaggregation", "--mini-lb", "--test-external-dp-routing", "--host", "127.0.0.1", "--port", "0",
		"--prefill", engine(4, prefills), "none", "--decode", engine(2, decodes))
	base := p.url(t)
	status, answer := try(http.MethodPost, base+"/generate", `{"text":"hello"}`)
	require.Equal(t, http.StatusOK, status, answer)

	prefill, decode := <-prefills, <-decodes
	assert.Regexp(t, `"routed_dp_rank": ?[0-3]\b`, prefill)
	assert.Regexp(t, `"routed_dp_rank": ?[01]\b`, decode)
	assert.Regexp(t, `"disagg_prefill_dp_rank": ?[0-3]\b`, decode)
	assert.Regexp(t, `"bootstrap_port": ?null`, prefill)

	p.stop()
	assert.Equal(t, exitOK, p.end(t))
	assert.Contains(t, p.out.String(), "prefill-0+decode-0")
}

func TestMiniLBThatCannotLearnRanks(t *testing.T) {
	f := func(want, answer string) {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if answer == "" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			io.WriteString(w, answer)
		}))
		defer srv.Close()
		code, out, errs := ended(t, "--mini-lb", "--test-external-dp-routing", "--port", "0", "--prefill", srv.URL, "--decode", nobody(t))
		assert.Equal(t, exitFailure, code)
		assert.Empty(t, out, "it does not listen")
		assert.Contains(t, errs, "cannot learn the ranks of worker prefill-0: "+want)
		assert.NotContains(t, errs, "secret")
	}
	f("/server_info answers 401", "")
	f("/server_info is not JSON as expected", `{"api_key":"secret","internal_states":3}`)
	f("/server_info shows no internal_states", `{"api_key":"secret"}`)
}

func TestSimEngine(t *testing.T) {
	code, _, errs := ended(t, "sim-engine", "--role", "judge")
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, errs, "judge")

	p := start(t, "sim-engine", "--role", "decode", "--health-delay", "-1s")
	require.Eventually(t, func() bool { return strings.HasSuffix(p.out.String(), "\n") }, 20*time.Second, 10*time.Millisecond)
	assert.Regexp(t, `^decode http://127\.0\.0\.1:\d+\n$`, p.out.String())
	p.stop()
	assert.Equal(t, exitOK, p.end(t))
}
