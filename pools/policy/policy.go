// Package policy holds the ways of choosing among the workers of a pool.
//
// A policy is one type that implements [pools.Policy], or [pools.Follower] where
// it keeps something of its pool; [ByName] makes those that need nothing of
// others. A policy knows nothing of the other pool and holds no more state than
// its own. Only [Manual] with a [Store] may wait for one.
package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/pools"
)

// Default is the policy used where none is named.
const Default = "power_of_two"

// table is a function so that nothing in the package can change.
func table() map[string]func() pools.Policy {
	return map[string]func() pools.Policy{
		"random":       func() pools.Policy { return Random{} },
		"round_robin":  func() pools.Policy { return new(RoundRobin) },
		"power_of_two": func() pools.Policy { return PowerOfTwo{} },
		"cache_aware":  func() pools.Policy { return NewCacheAware(CacheAwareOptions{}) },
		"prefix_hash":  func() pools.Policy { return NewPrefixHash(PrefixHashOptions{}) },
		"bucket":       func() pools.Policy { return NewBucket(BucketOptions{}) },

		"consistent_hashing": func() pools.Policy { return new(Consistent) },
	}
}

// ByName makes a policy of its own for one pool.
func ByName(name string) (pools.Policy, error) {
	build, ok := table()[name]
	if !ok {
		return nil, fmt.Errorf("policy %q is unknown: want %s", name, strings.Join(Names(), ", "))
	}
	return build(), nil
}

// Names lists the policies that ByName knows, sorted.
func Names() []string { return slices.Sorted(maps.Keys(table())) }
