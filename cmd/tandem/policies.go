package main

import (
	"context"
	"errors"
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
	add("cache-index-memory", numberValue(&p.indexMemory, 1<<20, maxBytes), "cache_aware: bytes for knowing who holds which prompt, for each role of each model")
	add("prefix-token-count", numberValue(&p.prefixTokens, 1, 1<<20), "prefix_hash: tokens of a prompt that count; four bytes of a text are one")
	add("prefix-hash-load-factor", floatValue(&p.loadFactor, 1, 100), "prefix_hash: times the mean that a worker may have in flight, and 4 more")
	add("balance-abs-threshold", numberValue(&p.balanceAbs, 0, 1<<30), "bucket: requests by which the busiest worker may be ahead of the idlest")
	add("balance-rel-threshold", floatValue(&p.balanceRel, 1, 1<<20), "bucket: times by which it may be, at the same time")
	add("bucket-adjust-interval-secs", secondsValue(&p.bucketEvery, 1), "bucket: between two cuts of the lengths")
	add("assignment-mode", choiceValue(&p.assignment, string(policy.AssignRandom), string(policy.AssignMinLoad), string(policy.AssignMinGroup)),
		"manual: which worker a new session gets")
	add("max-idle-secs", secondsValue(&p.maxIdle, 1), "manual: for which a session is remembered behind its last request")
	add("dp-aware", boolValue(&l.cfg.dpAware), "each data-parallel rank of an engine is a target of its own")
	add("manual-redis-url", secretValue(&p.redisURL), "manual: Redis in which several routers share their sessions")
}

// chooser makes the policies of each model's pools. The Redis that they may share
// is closed by end.
type chooser struct {
	cfg   *config
	hooks pd.Hooks
	redis *redisstore.DB
}

func newChooser(cfg *config, hooks pd.Hooks) (*chooser, error) {
	c := &chooser{cfg: cfg, hooks: hooks}
	if url := cfg.policies.redisURL; url != "" {
		db, err := redisstore.Open(url)
		if err != nil {
			return nil, fmt.Errorf("--manual-redis-url: %w", err)
		}
		c.redis = db
	}
	return c, nil
}

// of makes the policies of a model's pools, with the header that names a worker
// before them; see [pools.Options.Policies].
func (c *chooser) of(model string) (p pools.Policies, err error) {
	var ends []func()
	p.Close = func() {
		for _, end := range ends {
			end()
		}
	}
	named := func(name string, role pd.Role) pools.Policy {
		made, end, failed := c.make(name, model, role)
		if end != nil {
			ends = append(ends, end)
		}
		err = errors.Join(err, failed)
		return made
	}
	if c.cfg.regular {
		p.Regular = named(c.cfg.policy, pd.Regular)
	} else {
		p.Prefill, p.Decode = named(c.cfg.prefillPolicy, pd.Prefill), named(c.cfg.decodePolicy, pd.Decode)
	}
	if err != nil {
		p.Close()
		return pools.Policies{}, err
	}
	if c.cfg.regular {
		p.Regular = policy.TargetedRegular(p.Regular)
	} else {
		p.Prefill, p.Decode = policy.Targeted(p.Prefill, p.Decode)
	}
	return p, nil
}

// make makes one policy, and what ends it, if anything.
func (c *chooser) make(name, model string, role pd.Role) (made pools.Policy, end func(), err error) {
	p := &c.cfg.policies
	switch name {
	case "cache_aware":
		return policy.NewCacheAware(policy.CacheAwareOptions{Memory: p.indexMemory, Bound: c.hooks.Bound}), nil, nil
	case "prefix_hash":
		return policy.NewPrefixHash(policy.PrefixHashOptions{PrefixTokens: p.prefixTokens, LoadFactor: p.loadFactor}), nil, nil
	case "bucket":
		abs := p.balanceAbs
		if abs == 0 {
			abs = -1 // where zero is the default
		}
		return policy.NewBucket(policy.BucketOptions{Interval: p.bucketEvery, BalanceAbs: abs, BalanceRel: p.balanceRel}), nil, nil
	case "manual":
		m, err := c.manual(model, role)
		if err != nil {
			return nil, nil, err
		}
		return m, m.Close, nil
	default:
		made, err = policy.ByName(name)
		return made, nil, err
	}
}

func (c *chooser) manual(model string, role pd.Role) (*policy.Manual, error) {
	p := &c.cfg.policies
	opt := policy.ManualOptions{
		Assignment: policy.Assignment(p.assignment), MaxIdle: p.maxIdle, Bound: c.hooks.Bound, Panic: c.hooks.Panic,
	}
	if c.redis != nil {
		opt.Store = c.redis.Store(model, role, p.maxIdle)
	}
	return policy.NewManual(context.Background(), opt)
}

// end closes what the policies shared. They are closed before.
func (c *chooser) end() {
	if c.redis != nil {
		_ = c.redis.Close()
	}
}

// policyNames are the policies that a command line can name.
func policyNames() []string {
	return []string{
		"power_of_two", "random", "round_robin", "cache_aware", "prefix_hash", "consistent_hashing", "bucket", "manual",
	}
}

func policyHelp() string { return strings.Join(policyNames(), ", ") }
