// Package policy holds the ways of choosing among the workers of a pool.
//
// A policy is one small type that implements [pools.Policy]; [ByName] makes the
// ones that a command line can name. A policy knows nothing of the other pool
// and holds no more state than its own.
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
