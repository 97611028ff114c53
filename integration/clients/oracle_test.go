//go:build clients

package clients

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/integration/cases"
	"github.com/tandem-pd/tandem/integration/simengine"
)

// oracle knows what must be answered to a call from two sources that no router
// takes part in: the simulated model itself, and what a prefill engine says of
// the same prompts when it is told that there is no decode engine to wait for.
type oracle struct {
	call    call
	samples int                // of each prompt
	outputs []simengine.Output // prompt by prompt, its samples one after the other
	metas   []cases.Meta       // /generate: what prefill says of each prompt
	whole   cases.Completion   // the OpenAI endpoints: what prefill says of all
}

// noPeer is the bootstrap_host that stands for no other engine.
const noPeer = "2.2.2.2"

// newOracle asks a prefill engine, by its URL.
func newOracle(c call, prefill string) (*oracle, error) {
	marshalled, err := json.Marshal(c.body)
	if err != nil {
		return nil, err
	}
	o := &oracle{call: c}
	if o.outputs, err = simengine.ExpectedFor(c.path, marshalled); err != nil {
		return nil, err
	}
	a := ask(prefill+c.path, o.alone())
	switch {
	case a.err != nil:
		return nil, a.err
	case a.status != http.StatusOK:
		return nil, fmt.Errorf("prefill answers %d: %.300s", a.status, a.body)
	case c.path != generatePath:
		return o, json.Unmarshal(a.body, &o.whole)
	}
	list, err := generated(a.body, bytes.HasPrefix(a.body, []byte("[")))
	for _, one := range list {
		o.metas = append(o.metas, one.Meta)
	}
	return o, err
}

// alone is the call's body for an engine that answers by itself: one sample,
// no stream. It notes how many samples the call asks for.
func (o *oracle) alone() cases.Body {
	body := o.call.body.With(cases.Body{"bootstrap_host": noPeer, "bootstrap_port": 1, "bootstrap_room": 1})
	for _, field := range []string{"stream", "stream_options", "rid"} {
		delete(body, field)
	}
	params := body
	if o.call.path == generatePath {
		params = maps.Clone(body["sampling_params"].(cases.Body))
		body["sampling_params"] = params
	}
	o.samples = 1
	if n, ok := params["n"].(int); ok {
		o.samples = n
		delete(params, "n")
	}
	return body
}

// generated reads an answer of /generate.
func generated(body []byte, list bool) ([]cases.Generated, error) {
	if list {
		var all []cases.Generated
		err := json.Unmarshal(body, &all)
		return all, err
	}
	one := make([]cases.Generated, 1)
	err := json.Unmarshal(body, &one[0])
	return one, err
}

func (o *oracle) streams() bool { return o.call.body["stream"] == true }

// check says what is wrong with an answer, nil for nothing.
func (o *oracle) check(a answer) error {
	switch {
	case a.err != nil:
		return a.err
	case a.status != http.StatusOK:
		return fmt.Errorf("status %d", a.status)
	case o.streams() && !a.done:
		return errors.New("a stream without one [DONE] at its end")
	case o.call.path == generatePath && o.streams():
		return o.checkGeneratedStream(a.events)
	case o.call.path == generatePath:
		return o.checkGenerated(a.body)
	case o.streams():
		return o.checkOpenAIStream(a.events)
	default:
		var got cases.Completion
		if err := json.Unmarshal(a.body, &got); err != nil {
			return err
		}
		return o.checkOpenAI(got)
	}
}

// isList says whether /generate answers with a list.
func (o *oracle) isList() bool {
	_, texts := o.call.body["text"].([]string)
	_, ids := o.call.body["input_ids"].([][]int)
	return texts || ids || o.samples > 1
}

func (o *oracle) checkGenerated(body []byte) error {
	list, err := generated(body, o.isList())
	if err != nil {
		return err
	}
	if len(list) != len(o.outputs) {
		return fmt.Errorf("%d answers instead of %d", len(list), len(o.outputs))
	}
	for i, one := range list {
		if err := o.checkItem(i, one); err != nil {
			return err
		}
	}
	return nil
}

// checkGeneratedStream requires every event to hold a beginning of its item's
// output and all of its prompt's log probabilities, the last one everything.
func (o *oracle) checkGeneratedStream(events [][]byte) error {
	lasts := make([]*cases.Generated, len(o.outputs))
	for _, data := range events {
		var event cases.Generated
		if err := json.Unmarshal(data, &event); err != nil {
			return err
		}
		i := 0
		if o.isList() {
			if event.Index == nil || *event.Index < 0 || *event.Index >= len(lasts) {
				return errors.New("an event without a good index")
			}
			i = *event.Index
		}
		want := o.outputs[i]
		if n := len(event.OutputIDs); n > len(want.IDs) || !slices.Equal(event.OutputIDs, want.IDs[:n]) || !strings.HasPrefix(want.Text, event.Text) {
			return fmt.Errorf("an event of item %d with another output", i)
		}
		if err := o.checkLogprobs(i, event); err != nil {
			return err
		}
		lasts[i] = &event
	}
	for i, last := range lasts {
		if last == nil {
			return fmt.Errorf("no event of item %d", i)
		}
		if err := o.checkItem(i, *last); err != nil {
			return err
		}
	}
	return nil
}

// checkItem is about a whole item of /generate.
func (o *oracle) checkItem(i int, got cases.Generated) error {
	want := o.outputs[i]
	switch {
	case got.Text != want.Text:
		return fmt.Errorf("item %d: text %q instead of %q", i, got.Text, want.Text)
	case !slices.Equal(got.OutputIDs, want.IDs):
		return fmt.Errorf("item %d: other output_ids", i)
	case got.Meta.Finish == nil || got.Meta.Finish.Type != want.Finish:
		return fmt.Errorf("item %d: another finish_reason than %s", i, want.Finish)
	case got.Meta.CompletionTokens != len(want.IDs):
		return fmt.Errorf("item %d: %d completion_tokens instead of %d", i, got.Meta.CompletionTokens, len(want.IDs))
	case got.Meta.PromptTokens != o.metas[i/o.samples].PromptTokens:
		return fmt.Errorf("item %d: %d prompt_tokens instead of %d", i, got.Meta.PromptTokens, o.metas[i/o.samples].PromptTokens)
	}
	if rid := o.rid(i); rid != "" && got.Meta.ID != rid {
		return fmt.Errorf("item %d: id %q instead of the client's rid", i, got.Meta.ID)
	}
	return o.checkLogprobs(i, got)
}

// rid is the client's name of an item, if it gave one.
func (o *oracle) rid(i int) string {
	switch rid := o.call.body["rid"].(type) {
	case string:
		return rid
	case []string:
		return rid[i]
	default:
		return ""
	}
}

// checkLogprobs requires the prompt's lists to be prefill's own and those of
// the output to be as long as the output is.
func (o *oracle) checkLogprobs(i int, got cases.Generated) error {
	want, meta, n := o.metas[i/o.samples], got.Meta, len(got.OutputIDs)
	err := cmp.Or(
		checkLists("token_logprobs", meta.InputLogprobs, want.InputLogprobs, meta.OutputLogprobs, n),
		checkLists("top_logprobs", meta.InputTopLogprobs, want.InputTopLogprobs, meta.OutputTopLogprobs, n),
		checkLists("token_ids_logprobs", meta.InputIDsLogprobs, want.InputIDsLogprobs, meta.OutputIDsLogprobs, n),
	)
	if err != nil {
		return fmt.Errorf("item %d: %w", i, err)
	}
	return nil
}

// checkLists is about one kind of log probabilities, of the prompt and of an
// output of n tokens. Nobody asked for what prefill has no list of.
func checkLists[T any](name string, input, want, output []T, n int) error {
	switch {
	case want == nil:
		return nil
	case !reflect.DeepEqual(input, want):
		return fmt.Errorf("input_%s has %d of prefill's %d entries", name, len(input), len(want))
	case len(output) != n:
		return fmt.Errorf("output_%s has %d entries for %d tokens", name, len(output), n)
	default:
		return nil
	}
}
