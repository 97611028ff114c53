package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// failure is how failing workers and too many requests are met.
type failure struct {
	retry        pd.Retry
	noRetries    bool
	percent      int // of repeated attempts
	floor        int // of repeated attempts
	noBudget     bool
	breakers     pools.Breakers
	health       probing
	inFlight     int // samples on each worker, 0 for no bound
	concurrent   int // requests at once, -1 for no bound
	queue        int
	queueTimeout time.Duration
	rate         int // requests a second, 0 for no bound
}

// probing is how the workers' health is asked for.
type probing struct {
	off              bool
	path             string
	interval         time.Duration
	timeout          time.Duration
	startup          time.Duration
	failures         int
	successes        int
	requireBootstrap bool
}

func defaultFailure() failure {
	return failure{
		retry: pd.Retry{
			MaxAttempts: 5, InitialBackoff: 50 * time.Millisecond, MaxBackoff: 30 * time.Second,
			Multiplier: 1.5, Jitter: 0.2,
		},
		percent: 20, floor: 30,
		breakers: pools.Breakers{Failures: 10, Trials: 3, Window: 120 * time.Second, Open: 60 * time.Second},
		health: probing{
			path: "/health", interval: 60 * time.Second, timeout: 5 * time.Second, startup: 1800 * time.Second,
			failures: 3, successes: 2,
		},
		concurrent: -1, queue: 100, queueTimeout: 60 * time.Second,
	}
}

// addFailure adds the flags of retries, breakers, health checks and admission,
// by the gateway's names where it has them.
func (l *commandLine) addFailure(add addFlag) {
	f := &l.cfg.failure
	add("retry-max-retries", numberValue(&f.retry.MaxAttempts, 1, 100), "attempts that a request may take in all")
	add("retry-initial-backoff-ms", millisValue(&f.retry.InitialBackoff, 1), "wait before the second attempt; one that was refused a connection does not wait")
	add("retry-max-backoff-ms", millisValue(&f.retry.MaxBackoff, 1), "longest wait before an attempt")
	add("retry-backoff-multiplier", floatValue(&f.retry.Multiplier, 1, 100), "by which each wait is longer than the last")
	add("retry-jitter-factor", floatValue(&f.retry.Jitter, 0, 1), "share of a wait by which it may be longer or shorter")
	add("disable-retries", boolValue(&f.noRetries), "one attempt for each request")
	add("retry-budget-percent", numberValue(&f.percent, 1, 100), "repeated attempts for each hundred requests, over 10 s")
	add("retry-budget-floor", numberValue(&f.floor, 0, 1<<30), "repeated attempts in 10 s that are allowed in any case")
	add("disable-retry-budget", boolValue(&f.noBudget), "no bound on repeated attempts over all requests")
	add("cb-failure-threshold", numberValue(&f.breakers.Failures, 1, 1<<30), "own failures of a worker that open its breaker: in a row, or in the window if at least half of all")
	add("cb-success-threshold", numberValue(&f.breakers.Trials, 1, 1<<20), "trial requests that must do well to close it; also how many are tried at once")
	add("cb-timeout-duration-secs", secondsValue(&f.breakers.Open, 1), "for which it stays open")
	add("cb-window-duration-secs", secondsValue(&f.breakers.Window, 1), "over which failures are counted")
	add("disable-circuit-breaker", boolValue(&f.breakers.Disabled), "no worker or pair is passed over for its failures")
	add("health-check-endpoint", pathValue(&f.health.path), "path that says whether a worker is well")
	add("health-check-interval-secs", secondsValue(&f.health.interval, 1), "between two looks at a worker; tokens seen meanwhile excuse that it does not answer")
	add("health-check-timeout-secs", secondsValue(&f.health.timeout, 1), "for its answer")
	add("health-failure-threshold", numberValue(&f.health.failures, 1, 1000), "bad answers in a row that take a worker out; a refused connection does at once")
	add("health-success-threshold", numberValue(&f.health.successes, 1, 1000), "good ones in a row that bring it back")
	add("disable-health-check", boolValue(&f.health.off), "workers are never looked at: all take part from the start, and always")
	add("worker-startup-timeout-secs", secondsValue(&f.health.startup, 1), "until a worker that has not served yet is called dead; it may still come up")
	add("require-bootstrap", boolValue(&f.health.requireBootstrap), "a prefill joins only if its bootstrap server can be reached from here")
	add("max-inflight-per-worker", numberValue(&f.inFlight, 0, 1<<30), "samples in flight on each worker; 0 for no bound")
	add("max-concurrent-requests", numberValue(&f.concurrent, -1, 1<<30), "requests under way at once, to the last byte; -1 for no bound")
	add("queue-size", numberValue(&f.queue, 0, 1<<30), "requests that may wait for their turn; more get 429")
	add("queue-timeout-secs", secondsValue(&f.queueTimeout, 1), "for which they wait; then they get 503")
	add("rate-limit-tokens-per-second", numberValue(&f.rate, 0, 1<<30), "requests begun in a second; 0 for no bound")
}

// settle makes the settings what the router is built from.
func (f *failure) settle() {
	if f.noRetries {
		f.retry.MaxAttempts = 1
	}
	if f.retry.Jitter == 0 {
		f.retry.Jitter = -1 // where zero is the default
	}
	if f.floor == 0 {
		f.floor = -1
	}
	if !f.noBudget {
		f.retry.Budget = &pd.Budget{Percent: f.percent, Floor: f.floor}
	}
	f.concurrent = max(f.concurrent, 0)
	if f.queue == 0 {
		f.queue = -1
	}
}

// bare shows every failure as it comes, as mini_lb does: nothing is tried again,
// nobody is passed over, every worker takes part from the start.
func (f *failure) bare() {
	f.noRetries, f.breakers.Disabled, f.health.off = true, true, true
}

// floatValue is a number from low to high.
func floatValue(dst *float64, low, high float64) *flagValue {
	return &flagValue{typ: "number", text: strconv.FormatFloat(*dst, 'g', -1, 64), parse: func(text string) error {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= low && n <= high) {
			return errors.New("want a number from " + strconv.FormatFloat(low, 'g', -1, 64) + " to " + strconv.FormatFloat(high, 'g', -1, 64))
		}
		*dst = n
		return nil
	}}
}

// pathValue is a path on a worker.
func pathValue(dst *string) *flagValue {
	return &flagValue{typ: "path", text: *dst, parse: func(text string) error {
		if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, " \t\r\n#") {
			return errors.New("want a path that starts with a slash")
		}
		*dst = text
		return nil
	}}
}
