package sglang

import (
	"bytes"
	"strconv"
)

// Usage reads the token counts of an event or body of any endpoint: of a usage
// object, which the last event of /v1/responses has in its response and the first
// of /v1/messages in its message, or of the meta_info of /generate, summed over a
// batch. It reports false when the payload holds none or cannot be read; counts an
// engine leaves out are zero.
//
// On /v1/messages the newer engines leave the cached tokens out of input_tokens.
// They are put back where that shows.
func Usage(data []byte) (prompt, completion, cached int, ok bool) {
	// The end of every name that counts, for the reason given in readFailure.
	if !bytes.Contains(data, []byte(`_tokens"`)) {
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
	if sum.prompt < sum.cached {
		sum.prompt += sum.cached
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
		case "response", "message":
			return w.object(func(name []byte) error {
				if string(name) != "usage" {
					return nil
				}
				return w.object(func(name []byte) error { return w.count(sum, name) })
			})
		}
		return nil
	})
}

func (w walk) count(sum *counts, name []byte) error {
	switch string(name) {
	case "prompt_tokens", "input_tokens":
		return w.add(&sum.prompt)
	case "completion_tokens", "output_tokens":
		sum.seen = true
		return w.add(&sum.completion)
	case "cached_tokens", "cache_read_input_tokens":
		return w.add(&sum.cached)
	case "prompt_tokens_details", "input_tokens_details":
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
