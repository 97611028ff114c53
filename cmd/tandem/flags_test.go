package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

const onePair = "--pd-disaggregation --prefill http://p:1 --decode http://d:1 "

// parse reads a command line, whose words are separated by spaces.
func parse(t *testing.T, line string) (*config, error) {
	t.Helper()
	l := newCommandLine()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	l.register(fs)
	args := plainArgv(strings.Fields(line), func(name string) bool { return takesWords(fs.Lookup(name)) })
	require.NoError(t, fs.Parse(l.withoutUnknown(args)))
	return l.config(fs.Args())
}

func parseOK(t *testing.T, line string) *config {
	t.Helper()
	cfg, err := parse(t, line)
	require.NoError(t, err)
	return cfg
}

func TestAGatewaysCommandLineFits(t *testing.T) {
	cfg := parseOK(t, `--pd-disaggregation
		--prefill http://p0:30000 8998 --prefill http://p1:30000/ none --prefill=http://[::1]:30000
		--prefill http://10.0.0.1:30000 fabric-3:9001
		--decode http://d0:30000 --decode=https://d1
		--host localhost --port 0 --policy round_robin --decode-policy random
		--request-id-headers x-a x-b --request-timeout-secs 7 --max-payload-size 1000
		--log-level warn --shutdown-grace-period-secs 0 --drain-settle-secs 1`)
	assert.Equal(t, []*pd.Worker{
		{ID: "prefill-0", Role: pd.Prefill, URL: "http://p0:30000", BootstrapHost: "p0", BootstrapPort: 8998},
		{ID: "prefill-1", Role: pd.Prefill, URL: "http://p1:30000", BootstrapHost: "p1"},
		{ID: "prefill-2", Role: pd.Prefill, URL: "http://[::1]:30000", BootstrapHost: "[::1]"},
		{ID: "prefill-3", Role: pd.Prefill, URL: "http://10.0.0.1:30000", BootstrapHost: "fabric-3", BootstrapPort: 9001},
		{ID: "decode-0", Role: pd.Decode, URL: "http://d0:30000"},
		{ID: "decode-1", Role: pd.Decode, URL: "https://d1"},
	}, cfg.workers())
	assert.Equal(t, "localhost", cfg.host)
	assert.Equal(t, 0, cfg.port)
	assert.Equal(t, "round_robin", cfg.prefillPolicy)
	assert.Equal(t, "random", cfg.decodePolicy)
	assert.Equal(t, []string{"x-a", "x-b"}, cfg.requestIDHeaders)
	assert.Equal(t, 7*time.Second, cfg.request)
	assert.EqualValues(t, 1000, cfg.maxPayload)
	assert.Zero(t, cfg.grace)
	assert.Equal(t, time.Second, cfg.settle)
	assert.Empty(t, cfg.warnings)
}

func TestDefaults(t *testing.T) {
	cfg := parseOK(t, onePair)
	want := defaultConfig()
	want.prefill, want.decode = cfg.prefill, cfg.decode
	want.failure.settle()
	assert.Equal(t, want, cfg)
	assert.Equal(t, "power_of_two", cfg.prefillPolicy)
}

func TestOwnFlags(t *testing.T) {
	cfg := parseOK(t, onePair+`--max-body-memory 5 --max-event-size 6 --max-n 7 --connect-timeout 100ms
		--first-event-timeout 2s --stream-idle-timeout 3s --write-stall-timeout 4s --abort-mode close`)
	assert.EqualValues(t, 5, cfg.maxBodyMemory)
	assert.Equal(t, 6, cfg.maxEvent)
	assert.Equal(t, 7, cfg.maxSamples)
	assert.Equal(t, 100*time.Millisecond, cfg.connect)
	assert.Equal(t, 2*time.Second, cfg.firstEvent)
	assert.Equal(t, 3*time.Second, cfg.streamIdle)
	assert.Equal(t, 4*time.Second, cfg.writeStall)
	assert.True(t, cfg.closeOnly)
}

func TestEachMistakeIsNamed(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		_, err := parse(t, line)
		require.Error(t, err, line)
		assert.Equal(t, want, err.Error(), line)
	}
	f(onePair+"--port 70000", `--port "70000": want a number from 0 to 65535`)
	f(onePair+"--port x", `--port "x": want a number from 0 to 65535`)
	f(onePair+"--max-n 0", `--max-n "0": want a number from 1 to 1048576`)
	f(onePair+"--max-payload-size -1", `--max-payload-size "-1": want a number from 1 to 1099511627776`)
	f(onePair+"--max-payload-size 9223372036854775807", `--max-payload-size "9223372036854775807": want a number from 1 to 1099511627776`)
	f(onePair+"--max-event-size 9223372036854775807", `--max-event-size "9223372036854775807": want a number from 1 to 1073741824`)
	f(onePair+"--request-timeout-secs 0", `--request-timeout-secs "0": want a number from 1 to 2147483647`)
	f(onePair+"--connect-timeout 2", `--connect-timeout "2": want a time with its unit, such as 500ms or 2s`)
	f(onePair+"--connect-timeout -2s", `--connect-timeout "-2s": want a time with its unit, such as 500ms or 2s`)
	f(onePair+"--log-level loud", `--log-level "loud": want one of debug, info, warn, error`)
	f(onePair+"--abort-mode no", `--abort-mode "no": want one of abort, close`)
	f(onePair+"--backend vllm", `--backend "vllm": want one of sglang`)
	f(onePair+"--mini-lb=x", `--mini-lb "x": want true or false`)
	f(onePair+"--request-id-headers", `--request-id-headers "": want at least one name`)
	f(onePair+"--test-external-dp-routing", `--test-external-dp-routing: only with --mini-lb`)
	f(onePair+"--policy best", `--policy "best": want one of power_of_two, random, round_robin, cache_aware, prefix_hash, `+
		`consistent_hashing, bucket, manual, least_load, load_based, passthrough`)

	f("--prefill http://p:1", `--decode: at least one decode worker is needed`)
	f("--decode http://d:1", `--prefill: at least one prefill worker is needed`)
	f(onePair+"--decode http://d:1", `--decode "http://d:1": this worker is given twice`)
	f(onePair+"--decode http://p:1", `--decode "http://p:1": this worker is given as --prefill too`)
	f(onePair+"--prefill", `--prefill "": want URL [PORT|HOST:PORT|none]`)
	f(onePair+"--prefill http://q 1 2", `--prefill "http://q 1 2": want URL [PORT|HOST:PORT|none]`)
	f(onePair+"--prefill http://q 1 http://r 2",
		`--prefill "http://q 1 http://r 2": want URL [PORT|HOST:PORT|none]; each worker has a --prefill of its own`)
	f(onePair+"--prefill http://q 0", `--prefill "http://q 0": bootstrap port "0": want 1 to 65535, or none`)
	f(onePair+"--prefill q:1", `--prefill "q:1": want http://HOST:PORT or https://HOST:PORT`)
	f(onePair+"--prefill ftp://q:1", `--prefill "ftp://q:1": want a URL that starts with http:// or https://`)
	f(onePair+"--decode grpc://q:1", `--decode "grpc://q:1": gRPC workers are not supported by this version: want http:// or https://`)
	f(onePair+"--decode http://q:0", `--decode "http://q:0": want a port from 1 to 65535`)
	f(onePair+"--decode http://q:1/v1", `--decode "http://q:1/v1": a worker's URL must end after HOST:PORT`)
	f(onePair+"--decode http://q:1?a=b", `--decode "http://q:1?a=b": a worker's URL must end after HOST:PORT`)
	f(onePair+"--decode http://u:secret@q:1", `--decode "***@q:1": a worker's URL must hold no credentials`)

	f("", `there are no workers: want --prefill and --decode, or --worker-urls, or where to find them (--worker-file, --prefill-dns, --service-discovery)`)
	f("--policy random", `there are no workers: want --prefill and --decode, or --worker-urls, or where to find them (--worker-file, --prefill-dns, --service-discovery)`)
	f("--worker-urls", `--worker-urls "": want at least one URL`)
	f("--worker-urls http://a b:1", `--worker-urls "b:1": want http://HOST:PORT or https://HOST:PORT`)
	f("--worker-urls http://a http://u:secret@b", `--worker-urls "***@b": a worker's URL must hold no credentials`)
	f("--worker-urls http://a http://b --worker-urls http://a/", `--worker-urls "http://a/": this worker is given twice`)
	f("--worker-urls http://a --mini-lb", `--mini-lb: it is for pairs: want --prefill and --decode instead of --worker-urls`)
	f("--worker-urls http://a --prefill http://p --decode http://d",
		`--worker-urls: want either whole engines or pairs, which --prefill and --decode are`)
}

func TestWorkerURLsAreWholeEngines(t *testing.T) {
	cfg := parseOK(t, "--worker-urls http://a:1 https://b/ --policy bucket --worker-urls http://c:3 --worker-api-key k")
	assert.True(t, cfg.regular)
	assert.Equal(t, []*pd.Worker{
		{ID: "regular-0", Role: pd.Regular, URL: "http://a:1", APIKey: "k"},
		{ID: "regular-1", Role: pd.Regular, URL: "https://b", APIKey: "k"},
		{ID: "regular-2", Role: pd.Regular, URL: "http://c:3", APIKey: "k"},
	}, cfg.workers())
	assert.Equal(t, "bucket", cfg.policy)
	assert.Empty(t, cfg.warnings)

	cfg = parseOK(t, "--worker-urls http://a --prefill-policy random --max-n 3 --require-bootstrap")
	assert.Equal(t, "power_of_two", cfg.policy)
	assert.Equal(t, []string{"these flags have no effect in this version: --prefill-policy, --max-n, --require-bootstrap"}, cfg.warnings)
}

func TestWithPairsWorkerURLsAreNothing(t *testing.T) {
	cfg := parseOK(t, onePair+"--worker-urls http://a not-a-url")
	assert.False(t, cfg.regular)
	assert.Len(t, cfg.workers(), 2)
	assert.Equal(t, []string{"--worker-urls has no effect with --pd-disaggregation: whole engines have no place among pairs"}, cfg.warnings)
}

func TestWholeEnginesHaveAnyPolicy(t *testing.T) {
	for _, name := range policyNames() {
		c, err := newChooser(parseOK(t, "--worker-urls http://a --policy "+name), pd.Hooks{})
		require.NoError(t, err, name)
		p, err := c.of("a")
		require.NoError(t, err, name)
		assert.NotNil(t, p.Regular, name)
		assert.Nil(t, p.Prefill, name)
		p.Close()
		c.end()
	}
}

func TestAllMistakesComeInOneMessage(t *testing.T) {
	_, err := parse(t, "--port x --prefil http://s3cret 8998 --decode q --log-level loud --retry-max-retries many --api-kee=s3cret --dp-aware odd")
	require.Error(t, err)
	assert.Equal(t, []string{
		`8 mistakes in the command line:`,
		`  unknown flag --prefil; did you mean --prefill?`,
		`  unknown flag --api-kee; did you mean --api-key?`,
		`  --port "x": want a number from 0 to 65535`,
		`  --decode "q": want http://HOST:PORT or https://HOST:PORT`,
		`  --log-level "loud": want one of debug, info, warn, error`,
		`  --retry-max-retries "many": want a number from 1 to 100`,
		`  unexpected argument "odd"`,
		`  --prefill: at least one prefill worker is needed`,
	}, strings.Split(err.Error(), "\n"))
}

func TestWhatWouldBeUnsafeToIgnoreIsRefused(t *testing.T) {
	for _, flag := range []string{
		"--control-plane-api-keys a:b:admin:s3cret", "--tenant-api-key s3cret", "--jwt-issuer s3cret",
		"--epd-disaggregation", "--encode http://s3cret 1",
	} {
		_, err := parse(t, onePair+flag)
		name, _, _ := strings.Cut(flag, " ")
		require.Error(t, err, flag)
		assert.Contains(t, err.Error(), name+": not supported by this version")
		assert.NotContains(t, err.Error(), "s3cret")
	}
	parseOK(t, onePair+"--service-discovery=false --epd-disaggregation=false")
}

func TestFlagsWithoutMeaningGetOneWarning(t *testing.T) {
	cfg := parseOK(t, onePair+`--cache-threshold 0.5 --enable-igw --prometheus-duration-buckets 0.1 1 10
		--eviction-interval 1 --eviction-interval-secs 1 --cache-threshold 0.6
		--port 1`)
	assert.Equal(t, []string{"these flags have no effect in this version: --cache-threshold, " +
		"--enable-igw, --prometheus-duration-buckets, " +
		"--eviction-interval, --eviction-interval-secs"}, cfg.warnings)
	assert.Equal(t, 1, cfg.port)
}

func TestPoliciesOfTheGatewayFallBack(t *testing.T) {
	cfg := parseOK(t, onePair+"--policy least_load --prefill-policy passthrough --decode-policy random")
	assert.Equal(t, "power_of_two", cfg.prefillPolicy)
	assert.Equal(t, "random", cfg.decodePolicy)
	assert.Equal(t, []string{"not in this version: policy least_load, passthrough; power_of_two is used"}, cfg.warnings)
}

func TestEachRoleHasAPolicyOfItsOwn(t *testing.T) {
	for _, name := range policyNames() {
		cfg := parseOK(t, onePair+"--prefill-policy "+name+" --manual-redis-url redis://127.0.0.1:1/0")
		assert.Empty(t, cfg.warnings, name)
		c, err := newChooser(cfg, pd.Hooks{})
		require.NoError(t, err, name)
		a, err := c.of("a")
		require.NoError(t, err, name)
		b, err := c.of("b")
		require.NoError(t, err, name)
		assert.NotSame(t, a.Prefill, a.Decode, name)
		assert.NotSame(t, a.Prefill, b.Prefill, name)
		a.Close()
		b.Close()
		c.end()
	}
	_, err := newChooser(parseOK(t, onePair+"--policy manual --manual-redis-url nonsense://s3cret"), pd.Hooks{})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "s3cret")
}

func TestFlagsOfPolicies(t *testing.T) {
	p := parseOK(t, onePair+`--cache-index-memory 2000000 --prefix-token-count 8 --prefix-hash-load-factor 2 --balance-abs-threshold 3
		--balance-rel-threshold 1.1 --bucket-adjust-interval-secs 9 --assignment-mode min_group --max-idle-secs 60`).policies
	assert.Equal(t, policies{
		indexMemory: 2000000, prefixTokens: 8, loadFactor: 2, balanceAbs: 3, balanceRel: 1.1,
		bucketEvery: 9 * time.Second, assignment: "min_group", maxIdle: time.Minute,
	}, p)
}

func TestMiniLBIsRandom(t *testing.T) {
	cfg := parseOK(t, onePair+"--mini-lb --test-external-dp-routing --policy random")
	assert.Equal(t, "random", cfg.prefillPolicy)
	assert.Equal(t, "random", cfg.decodePolicy)
	assert.True(t, cfg.externalDP)
	assert.Empty(t, cfg.warnings)

	cfg = parseOK(t, onePair+"--mini-lb --policy cache_aware")
	assert.Equal(t, "random", cfg.decodePolicy)
	assert.Equal(t, []string{"with --mini-lb the policy is random, whatever is asked for"}, cfg.warnings)
}

func TestFlagsOfFailure(t *testing.T) {
	f := func(args string, want func(*failure)) {
		t.Helper()
		expected := defaultFailure()
		expected.settle()
		want(&expected)
		got := parseOK(t, onePair+args).failure
		assert.Equal(t, expected.retry.Budget == nil, got.retry.Budget == nil, args)
		expected.retry.Budget, got.retry.Budget = nil, nil
		assert.Equal(t, expected.retry, got.retry, args)
		assert.Equal(t, expected.breakers, got.breakers, args)
		assert.Equal(t, expected.health, got.health, args)
		assert.Equal(t, []int{expected.inFlight, expected.concurrent, expected.queue, expected.rate, expected.percent, expected.floor},
			[]int{got.inFlight, got.concurrent, got.queue, got.rate, got.percent, got.floor}, args)
		assert.Equal(t, expected.queueTimeout, got.queueTimeout, args)
	}
	f("", func(e *failure) {
		assert.Equal(t, 5, e.retry.MaxAttempts)
		assert.Zero(t, e.concurrent)
	})
	f("--retry-max-retries 9 --retry-initial-backoff-ms 10 --retry-max-backoff-ms 100 --retry-backoff-multiplier 2 --retry-jitter-factor 0",
		func(e *failure) {
			e.retry.MaxAttempts, e.retry.InitialBackoff, e.retry.MaxBackoff = 9, 10*time.Millisecond, 100*time.Millisecond
			e.retry.Multiplier, e.retry.Jitter = 2, -1
		})
	f("--disable-retries --retry-max-retries 9", func(e *failure) { e.retry.MaxAttempts = 1 })
	f("--disable-retry-budget", func(e *failure) { e.retry.Budget = nil })
	f("--retry-budget-percent 50 --retry-budget-floor 0", func(e *failure) { e.percent, e.floor = 50, -1 })
	f("--cb-failure-threshold 4 --cb-success-threshold 1 --cb-timeout-duration-secs 7 --cb-window-duration-secs 8 --disable-circuit-breaker",
		func(e *failure) {
			e.breakers.Failures, e.breakers.Trials, e.breakers.Disabled = 4, 1, true
			e.breakers.Open, e.breakers.Window = 7*time.Second, 8*time.Second
		})
	f(`--health-check-endpoint /ping --health-check-interval-secs 10 --health-check-timeout-secs 9 --health-failure-threshold 2
		--health-success-threshold 1 --worker-startup-timeout-secs 60 --require-bootstrap`, func(e *failure) {
		e.health = probing{
			path: "/ping", interval: 10 * time.Second, timeout: 9 * time.Second, startup: time.Minute,
			failures: 2, successes: 1, requireBootstrap: true,
		}
	})
	f("--disable-health-check", func(e *failure) { e.health.off = true })
	f("--max-inflight-per-worker 64 --max-concurrent-requests 100 --queue-size 0 --queue-timeout-secs 5 --rate-limit-tokens-per-second 50",
		func(e *failure) {
			e.inFlight, e.concurrent, e.queue, e.queueTimeout, e.rate = 64, 100, -1, 5*time.Second, 50
		})
	f("--mini-lb", func(e *failure) { e.retry.MaxAttempts, e.breakers.Disabled, e.health.off = 1, true, true })
}
