//go:build clients

package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-pd/tandem/integration/cases"
	"github.com/tandem-pd/tandem/integration/simengine"
)

// checkOpenAI is about a whole answer of an OpenAI endpoint.
func (o *oracle) checkOpenAI(got cases.Completion) error {
	if len(got.Choices) != len(o.outputs) {
		return fmt.Errorf("%d choices instead of %d", len(got.Choices), len(o.outputs))
	}
	for i, choice := range got.Choices {
		if choice.Index != i {
			return fmt.Errorf("choice %d has index %d", i, choice.Index)
		}
		said := choice.Text
		if choice.Message.Content != nil {
			said = *choice.Message.Content
		}
		if err := o.checkChoice(i, said, choice.FinishReason, choice.Logprobs); err != nil {
			return err
		}
	}
	return errors.Join(o.checkUsage(got.Usage), o.checkID(got.ID))
}

// checkOpenAIStream puts the events together and requires one finish of each
// choice and, where it is asked for, one usage at the end.
func (o *oracle) checkOpenAIStream(events [][]byte) error {
	said := make([]string, len(o.outputs))
	finish := make([]*string, len(o.outputs))
	lists := make([]*cases.ChoiceLogprobs, len(o.outputs))
	var usage *cases.Usage
	for _, data := range events {
		var event cases.Completion
		if err := json.Unmarshal(data, &event); err != nil {
			return err
		}
		if usage != nil {
			return errors.New("an event after the usage")
		}
		usage = event.Usage
		if err := o.checkID(event.ID); err != nil {
			return err
		}
		for _, choice := range event.Choices {
			i := choice.Index
			if i < 0 || i >= len(said) || finish[i] != nil {
				return fmt.Errorf("an event of choice %d, which is over or not asked for", i)
			}
			finish[i] = choice.FinishReason
			said[i] += choice.Text
			if choice.Delta.Content != nil {
				said[i] += *choice.Delta.Content
			}
			if choice.Logprobs != nil {
				if lists[i] == nil {
					lists[i] = &cases.ChoiceLogprobs{}
				}
				lists[i].Content = append(lists[i].Content, choice.Logprobs.Content...)
			}
		}
	}
	for i := range said {
		if err := o.checkChoice(i, said[i], finish[i], lists[i]); err != nil {
			return err
		}
	}
	if o.call.body["stream_options"] == nil {
		return nil
	}
	return o.checkUsage(usage)
}

func (o *oracle) checkChoice(i int, said string, finish *string, lists *cases.ChoiceLogprobs) error {
	want := o.outputs[i]
	prompt := ""
	if o.call.body["echo"] == true {
		prompt = o.call.body["prompt"].(string)
	}
	switch {
	case said != prompt+want.Text:
		return fmt.Errorf("choice %d: text %q instead of %q", i, said, prompt+want.Text)
	case finish == nil || *finish != want.Finish:
		return fmt.Errorf("choice %d: another finish_reason than %s", i, want.Finish)
	}
	switch asked := o.call.body["logprobs"].(type) {
	case bool:
		return checkChatLogprobs(i, want, o.call.body["top_logprobs"].(int), lists)
	case int:
		return o.checkEcho(i, want, asked, lists)
	default:
		return nil
	}
}

func checkChatLogprobs(i int, want simengine.Output, top int, lists *cases.ChoiceLogprobs) error {
	if lists == nil || len(lists.Content) != len(want.IDs) {
		return fmt.Errorf("choice %d: not one log probability for each of %d tokens", i, len(want.IDs))
	}
	for k, entry := range lists.Content {
		if entry.Token != simengine.Detokenize(want.IDs[k:k+1]) || len(entry.TopLogprobs) != top {
			return fmt.Errorf("choice %d: the log probability of token %d is of another, or without its top %d", i, k, top)
		}
	}
	return nil
}

// checkEcho requires the lists of completions to begin with prefill's own of
// the prompt, and to go on with an entry for each token of the output.
func (o *oracle) checkEcho(i int, want simengine.Output, top int, lists *cases.ChoiceLogprobs) error {
	prompt := o.whole.Usage.PromptTokens
	if lists == nil {
		return fmt.Errorf("choice %d: no log probabilities", i)
	}
	if n := len(lists.Tokens); n != prompt+len(want.IDs) {
		return fmt.Errorf("choice %d: %d log probabilities, instead of %d of the prompt and %d of the answer", i, n, prompt, len(want.IDs))
	}
	facts := o.whole.Choices[i].Logprobs
	if !slices.Equal(lists.Tokens[:prompt], facts.Tokens[:prompt]) ||
		len(lists.TokenLogprobs) != len(lists.Tokens) || len(lists.TopLogprobs) != len(lists.Tokens) ||
		len(lists.TextOffset) != len(lists.Tokens) {
		return fmt.Errorf("choice %d: lists of log probabilities that do not belong together", i)
	}
	for k, entry := range lists.TokenLogprobs {
		if k < prompt && !sameFloat(entry, facts.TokenLogprobs[k]) || k > 0 && len(lists.TopLogprobs[k]) < top {
			return fmt.Errorf("choice %d: another log probability of token %d", i, k)
		}
	}
	return nil
}

func sameFloat(a, b *float64) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// checkUsage requires each prompt to be counted once, and every sample.
func (o *oracle) checkUsage(got *cases.Usage) error {
	completion := 0
	for _, output := range o.outputs {
		completion += len(output.IDs)
	}
	prompt := o.whole.Usage.PromptTokens
	want := cases.Usage{PromptTokens: prompt, CompletionTokens: completion, TotalTokens: prompt + completion}
	if got == nil || *got != want {
		return fmt.Errorf("usage %s instead of %+v", shown(got), want)
	}
	return nil
}

func shown(usage *cases.Usage) string {
	if usage == nil {
		return "missing"
	}
	return fmt.Sprintf("%+v", *usage)
}

func (o *oracle) checkID(id string) error {
	if rid := o.rid(0); rid != "" && id != rid {
		return fmt.Errorf("id %q instead of the client's rid", id)
	}
	if id == "" {
		return errors.New("no id")
	}
	return nil
}
