package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kvindex"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/pools/policy/redisstore"
)

// policies are the settings of those ways of choosing a worker that have some.
type policies struct {
	indexMemory  int64 // bytes, for each role
	prefixTokens int
	loadFactor   float64
	balanceAbs   int64
	balanceRel   float64
	bucketEvery  time.Duration
	assignment   string
	maxIdle      time.Duration
	redisURL     string
}

func defaultPolicies() policies {
	return policies{
		indexMemory: kvindex.DefaultMemory, prefixTokens: 256, loadFactor: 1.25, balanceAbs: 64, balanceRel: 1.5,
		bucketEvery: 5 * time.Second, assignment: string(policy.AssignRandom), maxIdle: 4 * time.Hour,
	}
}

// addPolicies adds their flags, by the gateway's names where it has them.
func (l *commandLine) addPolicies(add addFlag) {
	p := &l.cfg.policies
	add("cache-index-memory", numberValue(&p.indexMemory, 1<<20, maxBytes), "cache_aware: bytes for knowing who holds which prompt, for each role")
	add("prefix-token-count", numberValue(&p.prefixTokens, 1, 1<<20), "prefix_hash: tokens of a prompt that count; four bytes of a text are one")
	add("prefix-hash-load-factor", floatValue(&p.loadFactor, 1, 100), "prefix_hash: times the mean that a worker may have in flight, and 4 more")
	add("balance-abs-threshold", numberValue(&p.balanceAbs, 0, 1<<30), "bucket: requests by which the busiest worker may be ahead of the idlest")
	add("balance-rel-threshold", floatValue(&p.balanceRel, 1, 1<<20), "bucket: times by which it may be, at the same time")
	add("bucket-adjust-interval-secs", secondsValue(&p.bucketEvery, 1), "bucket: between two cuts of the lengths")
	add("assignment-mode", choiceValue(&p.assignment, string(policy.AssignRandom), string(policy.AssignMinLoad), string(policy.AssignMinGroup)),
		"manual: which worker a new session gets")
	add("max-idle-secs", secondsValue(&p.maxIdle, 1), "manual: for which a session is remembered behind its last request")
	add("manual-redis-url", secretValue(&p.redisURL), "manual: Redis in which several routers share their sessions")
}

// chooser makes the policies of both roles. What they need is ended by end.
type chooser struct {
	cfg   *config
	hooks pd.Hooks
	ctx   context.Context
	ends  []func()
	redis *redisstore.DB
}

// both are the policies of the two roles, with the header that names a worker
// before them.
func (c *chooser) both() (prefill, decode pools.Policy, err error) {
	if url := c.cfg.policies.redisURL; url != "" {
		if c.redis, err = redisstore.Open(url); err != nil {
			return nil, nil, fmt.Errorf("--manual-redis-url: %w", err)
		}
		c.ends = append(c.ends, func() { _ = c.redis.Close() })
	}
	if prefill, err = c.of(c.cfg.prefillPolicy, pd.Prefill); err != nil {
		return nil, nil, err
	}
	if decode, err = c.of(c.cfg.decodePolicy, pd.Decode); err != nil {
		return nil, nil, err
	}
	prefill, decode = policy.Targeted(prefill, decode)
	return prefill, decode, nil
}

func (c *chooser) of(name string, role pd.Role) (pools.Policy, error) {
	p := &c.cfg.policies
	switch name {
	case "cache_aware":
		return policy.NewCacheAware(policy.CacheAwareOptions{Memory: p.indexMemory, Bound: c.hooks.Bound}), nil
	case "prefix_hash":
		return policy.NewPrefixHash(policy.PrefixHashOptions{PrefixTokens: p.prefixTokens, LoadFactor: p.loadFactor}), nil
	case "bucket":
		abs := p.balanceAbs
		if abs == 0 {
			abs = -1 // where zero is the default
		}
		return policy.NewBucket(policy.BucketOptions{Interval: p.bucketEvery, BalanceAbs: abs, BalanceRel: p.balanceRel}), nil
	case "manual":
		return c.manual(role)
	default:
		return policy.ByName(name)
	}
}

func (c *chooser) manual(role pd.Role) (pools.Policy, error) {
	p := &c.cfg.policies
	opt := policy.ManualOptions{
		Assignment: policy.Assignment(p.assignment), MaxIdle: p.maxIdle, Bound: c.hooks.Bound, Panic: c.hooks.Panic,
	}
	if c.redis != nil {
		opt.Store = c.redis.Store(role, p.maxIdle)
	}
	m, err := policy.NewManual(c.ctx, opt)
	if err != nil {
		return nil, err
	}
	c.ends = append([]func(){m.Close}, c.ends...) // before the store
	return m, nil
}

// end ends what the policies do behind the requests.
func (c *chooser) end() {
	for _, end := range c.ends {
		end()
	}
}

// policyNames are the policies that a command line can name.
func policyNames() []string {
	return []string{
		"power_of_two", "random", "round_robin", "cache_aware", "prefix_hash", "consistent_hashing", "bucket", "manual",
	}
}

func policyHelp() string { return strings.Join(policyNames(), ", ") }
