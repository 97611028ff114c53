package kubernetes

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/tandem-pd/tandem/pd"
)

// role is the part that a pod with these labels plays; ok is false for none.
func (o Options) role(of map[string]string) (role pd.Role, ok bool) {
	switch {
	case matches(o.Selector, of):
		return pd.Regular, true
	case matches(o.PrefillSelector, of):
		return pd.Prefill, true
	case matches(o.DecodeSelector, of):
		return pd.Decode, true
	}
	return 0, false
}

// matches reports whether of has all labels of a selector that has some.
func matches(selector, of map[string]string) bool {
	for key, want := range selector {
		if got, ok := of[key]; !ok || got != want {
			return false
		}
	}
	return len(selector) > 0
}

// either is the narrowest label selector for what matches a or b or both: a
// server cannot be asked for one or the other.
func either(a, b map[string]string) (string, error) {
	all := labels.NewSelector()
	for _, key := range slices.Sorted(maps.Keys(a)) {
		other, ok := b[key]
		if !ok {
			continue
		}
		one, err := labels.NewRequirement(key, selection.In, slices.Compact([]string{a[key], other}))
		if err != nil {
			return "", err
		}
		all = all.Add(*one)
	}
	return all.String(), nil
}
