//go:build clients

package clients

import (
	"encoding/json"
	"slices"
	"strings"
)

// comparable is an answer as JSON values: those of the events of a stream, or
// the one of a body, without what no two calls have in common.
func (a answer) comparable() ([]any, error) {
	texts := a.events
	if texts == nil {
		texts = [][]byte{a.body}
	}
	var values []any
	for _, text := range texts {
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			return nil, err
		}
		values = append(values, bare(value))
	}
	// How the events of different items interleave is chance.
	slices.SortStableFunc(values, func(a, b any) int { return index(a) - index(b) })
	return values, nil
}

// index is whose event it is; those of nobody come last.
func index(event any) int {
	object, _ := event.(map[string]any)
	if i, ok := object["index"].(float64); ok {
		return int(i)
	}
	if choices, ok := object["choices"].([]any); ok {
		if len(choices) == 0 {
			return 1 << 20
		}
		return index(choices[0])
	}
	return 0
}

// bare removes ids and times from a JSON value.
func bare(value any) any {
	switch value := value.(type) {
	case []any:
		for i := range value {
			value[i] = bare(value[i])
		}
	case map[string]any:
		for key := range value {
			if differs(key) {
				delete(value, key)
			} else {
				value[key] = bare(value[key])
			}
		}
	}
	return value
}

func differs(key string) bool {
	switch key {
	case "id", "created", "decode_throughput":
		return true
	}
	return strings.HasSuffix(key, "_time") || strings.HasSuffix(key, "_ts") || strings.HasSuffix(key, "_latency")
}
