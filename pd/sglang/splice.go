package sglang

import (
	"bytes"
	"encoding/base64"
	"slices"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sse"
)

// PromptData is what only prefill knows about the prompts of one exchange, per
// item of its batch, and puts it into decode's answer. The zero value is ready
// for AddEvent. It is not safe for concurrent use: who reads prefill's stream and
// who edits decode's have to take turns.
//
// What is spliced, and what it relies on:
//   - /generate: prefill's input_token_logprobs, input_top_logprobs and
//     input_token_ids_logprobs replace decode's, whatever decode's hold, in every
//     event, for streams are cumulative; so do the flat forms of the top ones. A
//     list that decode's item does not have is not added: decode has it, empty,
//     whenever it was asked for. Decode's output lists hold the first token
//     already; only output_token_ids_logprobs begins with a null in its place,
//     which prefill's one entry replaces.
//   - /v1/completions with echo and logprobs: prefill's lists end with its one
//     generated token, and the entries before it, those of the prompt, go to the
//     front of decode's lists; in a stream of deltas once per index. Decode's text
//     holds the echo already. Lists that begin with the prompt are left alone: they
//     have a null in front of token_logprobs, which only a prompt's first token
//     has, and the same tokens as prefill's.
//   - Routed experts: the rows of prefill's bytes, then decode's rows from there
//     on. Decode's stay as they are when prefill has none or more than decode.
type PromptData struct {
	items   map[int]promptItem
	experts []byte       // of sglext, decoded
	begun   map[int]bool // completion streams whose prompt entries are out
}

type promptItem struct {
	inputs  [len(inputLists)][]byte  // raw values
	firstID []byte                   // raw entry of the first token's token ids
	experts []byte                   // decoded
	entries [len(choiceLists)][]byte // raw prompt entries with the commas between them
}

// ReadPrompt reads prefill's whole 200 body: an object, or an array for a batch.
// It keeps parts of body, which must not change afterwards.
func ReadPrompt(ep pd.Endpoint, body []byte) (*PromptData, error) {
	p := new(PromptData)
	_, err := p.add(ep, body)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// AddEvent takes the payload of one event of prefill's stream, and copies it. It
// returns the item the event belongs to, as EventIndex does.
func (p *PromptData) AddEvent(ep pd.Endpoint, data []byte) (index int, err error) {
	if !isObject(data) {
		return -1, nil
	}
	return p.add(ep, bytes.Clone(data))
}

// Has reports whether prefill's answer for the item is in. The sglext of a /v1
// stream belongs to no item: it comes near the end of prefill's stream.
func (p *PromptData) Has(index int) bool {
	_, ok := p.items[index]
	return ok
}

// EventIndex returns the item that an event's payload belongs to: its index, 0
// when it has none, as in the stream of a single prompt. It is -1 for a payload
// of no item: [DONE], usage, sglext, an error frame, anything unreadable.
func EventIndex(ep pd.Endpoint, data []byte) int {
	if !isObject(data) {
		return -1
	}
	if ep == pd.Generate {
		items, err := readGenerate(data)
		if err != nil || !items[0].present {
			return -1
		}
		return items[0].index
	}
	answer, err := readOpenAI(data)
	if err != nil || len(answer.choices) == 0 {
		return -1
	}
	return answer.choices[0].index
}

// Body returns decode's whole body with prefill's values in it; decode itself
// when there is nothing to splice. No other byte changes. When decode's body is
// no JSON it comes back with an error.
func (p *PromptData) Body(ep pd.Endpoint, decode []byte) ([]byte, error) {
	return p.splice(ep, decode, 0, len(decode), false)
}

// Event returns one event of decode's stream, framing included, with prefill's
// values in it; event itself when there is nothing to splice, as for [DONE],
// usage, error frames and items that prefill has not answered. No other byte
// changes. When its payload is no JSON it comes back with an error.
func (p *PromptData) Event(ep pd.Endpoint, event []byte) ([]byte, error) {
	start, end, ok := sse.DataSpan(event)
	if !ok || !isObject(event[start:end]) {
		return event, nil
	}
	return p.splice(ep, event, start, end, true)
}

// splice edits the payload at src[start:end].
func (p *PromptData) splice(ep pd.Endpoint, src []byte, start, end int, stream bool) ([]byte, error) {
	e := edits{src: src, base: start}
	payload := src[start:end]
	if ep == pd.Generate {
		items, err := readGenerate(payload)
		if err != nil {
			return src, err
		}
		for i := range items {
			e.generate(&items[i], p.items[items[i].index])
		}
		return e.apply(), nil
	}
	if ep == pd.Chat && p.experts == nil {
		return src, nil // chat's logprobs are of generated tokens, which decode has
	}
	answer, err := readOpenAI(payload)
	if err != nil {
		return src, err
	}
	for i := range answer.choices {
		c := &answer.choices[i]
		if stream && !p.begin(c) {
			continue
		}
		e.choice(c, p.items[c.index].entries)
	}
	// Streams of several items have one sglext, of whichever item came first: it
	// need not be the same on both legs.
	if !stream || len(p.items) <= 1 {
		e.experts(answer.experts, p.experts)
	}
	return e.apply(), nil
}

// begin reports whether c is the first choice of its index that has logprobs.
func (p *PromptData) begin(c *choice) bool {
	if p.begun[c.index] || !c.lists[tokensList].isKind('[') {
		return false
	}
	if p.begun == nil {
		p.begun = make(map[int]bool)
	}
	p.begun[c.index] = true
	return true
}

// add reads prefill's payload, which it keeps parts of. index is that of the
// payload's first item, or -1.
func (p *PromptData) add(ep pd.Endpoint, payload []byte) (index int, err error) {
	if p.items == nil {
		p.items = make(map[int]promptItem)
	}
	index = -1
	if ep == pd.Generate {
		items, err := readGenerate(payload)
		if err != nil {
			return -1, err
		}
		for i, item := range slices.Backward(items) {
			if item.present {
				p.items[item.index] = p.items[item.index].withGenerate(&items[i])
				index = item.index
			}
		}
		return index, nil
	}
	answer, err := readOpenAI(payload)
	if err != nil {
		return -1, err
	}
	for i, c := range slices.Backward(answer.choices) {
		p.items[c.index] = p.items[c.index].withChoice(&answer.choices[i])
		index = c.index
	}
	if rows, ok := decodeRows(answer.experts); ok {
		p.experts = rows
	}
	return index, nil
}

func (it promptItem) withGenerate(item *generateItem) promptItem {
	for i, list := range item.inputs {
		if list.raw != nil {
			it.inputs[i] = list.raw
		}
	}
	if item.outputIDs.isKind('[') {
		if n, _ := entries(item.outputIDs.raw); n == 1 {
			raw := item.outputIDs.raw
			it.firstID = raw[1 : len(raw)-1]
		}
	}
	if rows, ok := decodeRows(item.experts); ok {
		it.experts = rows
	}
	return it
}

func (it promptItem) withChoice(c *choice) promptItem {
	for i, list := range c.lists {
		if list.isKind('[') && it.entries[i] == nil {
			_, it.entries[i] = entries(list.raw)
		}
	}
	return it
}

// decodeRows decodes routed experts, and reports false for any other value.
func decodeRows(value span) ([]byte, bool) {
	encoded, ok := unquote(value.raw)
	if !ok {
		return nil, false
	}
	rows, err := base64.StdEncoding.AppendDecode(make([]byte, 0, base64.StdEncoding.DecodedLen(len(encoded))), encoded)
	return rows, err == nil
}

func isObject(data []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(data, " \t"), []byte("{")) }
