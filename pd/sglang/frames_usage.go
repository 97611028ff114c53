package sglang

import (
	"bytes"
	"strconv"
)

// Usage reads the token counts of a /v1 event or body (its usage) or of a
// /generate event or body (its meta_info; summed over a batch). It reports false
// when the payload holds none or cannot be read; counts an engine leaves out are
// zero.
func Usage(data []byte) (prompt, completion, cached int, ok bool) {
	// The end of "completion_tokens", for the reason given in readFailure.
	if !bytes.Contains(data, []byte(`pletion_tokens"`)) {
		return 0, 0, 0, false
	}
	var sum counts
	w := newWalk(data)
	err := w.document(func() error {
		if w.kind() != '[' {
			return w.answerUsage(&sum)
		}
		return w.array(func(int) error { return w.answerUsage(&sum) })
	})
	if err != nil || !sum.seen {
		return 0, 0, 0, false
	}
	return sum.prompt, sum.completion, sum.cached, true
}

type counts struct {
	prompt, completion, cached int
	seen                       bool
}

func (w walk) answerUsage(sum *counts) error {
	return w.object(func(name []byte) error {
		switch string(name) {
		case "usage", "meta_info":
			return w.object(func(name []byte) error { return w.count(sum, name) })
		}
		return nil
	})
}

func (w walk) count(sum *counts, name []byte) error {
	switch string(name) {
	case "prompt_tokens":
		return w.add(&sum.prompt)
	case "completion_tokens":
		sum.seen = true
		return w.add(&sum.completion)
	case "cached_tokens":
		return w.add(&sum.cached)
	case "prompt_tokens_details":
		return w.object(func(name []byte) error {
			if string(name) == "cached_tokens" {
				return w.add(&sum.cached)
			}
			return nil
		})
	}
	return nil
}

// add adds the next value to n when it is a whole number.
func (w walk) add(n *int) error {
	value, err := w.value()
	if i, e := strconv.Atoi(string(value.raw)); e == nil && i > 0 {
		*n += i
	}
	return err
}
