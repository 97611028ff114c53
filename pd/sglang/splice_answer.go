package sglang

// The member of /generate's meta_info and of /v1's sglext that holds the routed
// experts of every token, as base64 of rows of int32.
const routedExperts = "routed_experts"

// inputLists are the members of meta_info that describe the prompt, which only
// prefill has seen. The flat ones stand in for input_top_logprobs where the
// client asked for them, and belong together.
var inputLists = [...]string{
	"input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs",
	"input_top_logprobs_val_flat", "input_top_logprobs_idx_flat",
	"input_top_logprobs_val_flat_b64", "input_top_logprobs_idx_flat_b64",
	"input_top_logprobs_val_flat_b64_dtype", "input_top_logprobs_idx_flat_b64_dtype",
	"input_top_logprobs_shape", "input_top_logprobs_null_prefix",
}

// choiceLists are the members of a completion's logprobs, one entry per token
// each. The indices name the two that tell a prompt's entries from generated ones.
var choiceLists = [...]string{"tokens", "token_logprobs", "top_logprobs", "text_offset"}

const (
	tokensList   = 0
	logprobsList = 1
)

// generateItem is where one item of a /generate answer keeps what is spliced.
type generateItem struct {
	index     int
	present   bool // it has a meta_info: it is no error frame
	inputs    [len(inputLists)]span
	outputIDs span // output_token_ids_logprobs
	experts   span
}

// readGenerate reads an event, whose index stands in it (0 when absent), or a
// body, where the position in a batch is the index.
func readGenerate(payload []byte) ([]generateItem, error) {
	var items []generateItem
	w := newWalk(payload)
	read := func(index int) error {
		item, err := w.generateItem(index)
		items = append(items, item)
		return err
	}
	err := w.document(func() error {
		if w.kind() == '[' {
			return w.array(read)
		}
		return read(0)
	})
	return items, err
}

func (w walk) generateItem(index int) (generateItem, error) {
	item := generateItem{index: index}
	err := w.object(func(name []byte) error {
		switch string(name) {
		case "index":
			return w.index(&item.index)
		case "meta_info":
			item.present = w.kind() == '{'
			return w.object(func(name []byte) (err error) {
				if target := item.member(name); target != nil {
					*target, err = w.value()
				}
				return err
			})
		}
		return nil
	})
	return item, err
}

func (item *generateItem) member(name []byte) *span {
	for i := range inputLists {
		if string(name) == inputLists[i] {
			return &item.inputs[i]
		}
	}
	switch string(name) {
	case "output_token_ids_logprobs":
		return &item.outputIDs
	case routedExperts:
		return &item.experts
	}
	return nil
}

// openAIAnswer is where an answer of /v1 keeps what is spliced.
type openAIAnswer struct {
	choices []choice
	experts span // sglext.routed_experts; an answer has one, of its first item
}

type choice struct {
	index int
	lists [len(choiceLists)]span // all absent when logprobs is null
}

func readOpenAI(payload []byte) (openAIAnswer, error) {
	var answer openAIAnswer
	w := newWalk(payload)
	err := w.document(func() error {
		return w.object(func(name []byte) error {
			switch string(name) {
			case "choices":
				answer.choices = nil
				return w.array(func(int) error {
					c, err := w.choice()
					answer.choices = append(answer.choices, c)
					return err
				})
			case "sglext":
				return w.object(func(name []byte) (err error) {
					if string(name) == routedExperts {
						answer.experts, err = w.value()
					}
					return err
				})
			}
			return nil
		})
	})
	return answer, err
}

func (w walk) choice() (choice, error) {
	var c choice
	err := w.object(func(name []byte) error {
		switch string(name) {
		case "index":
			return w.index(&c.index)
		case "logprobs":
			return w.object(func(name []byte) (err error) {
				for i := range choiceLists {
					if string(name) == choiceLists[i] {
						c.lists[i], err = w.value()
					}
				}
				return err
			})
		}
		return nil
	})
	return c, err
}

// index reads the next value into n when it is a whole number.
func (w walk) index(n *int) error {
	if w.kind() != '0' {
		return nil
	}
	*n = 0
	return w.add(n)
}

// entries returns how many entries a raw JSON array has, and the raw entries but
// the last, with the commas between them.
func entries(array []byte) (n int, allButLast []byte) {
	w := newWalk(array)
	last, end := 1, 1
	// The array was read from a payload already: it cannot fail here.
	_ = w.document(func() error {
		return w.array(func(i int) error {
			entry, err := w.value()
			n, last, end = i+1, end, entry.end()
			return err
		})
	})
	return n, array[1:last]
}
