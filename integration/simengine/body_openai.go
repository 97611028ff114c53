package simengine

import (
	"encoding/json"
	"fmt"
	"strings"
)

// readOpenAI reads the fields of chat and completions.
func (r *request) readOpenAI(f fields, contextLength int) error {
	var err error
	if r.model, err = f.text("model"); err != nil {
		return err
	}
	orString(&r.model, "default")
	if strings.Contains(r.model, ":") {
		return valueError("LoRA adapter requested through the model name, but LoRA is not enabled")
	}
	if r.n, err = f.integer("n", 1); err != nil {
		return err
	}
	if f.has("stream_options") {
		var o fields
		if err := json.Unmarshal(f["stream_options"], &o); err != nil {
			return &fieldError{"stream_options", "model_type", "Input should be a valid dictionary", f["stream_options"]}
		}
		if r.usage, err = o.boolean("include_usage"); err != nil {
			return err
		}
		if r.usageAlways, err = o.boolean("continuous_usage_stats"); err != nil {
			return err
		}
	}
	if r.ep == epChat {
		return r.readChat(f, contextLength)
	}
	return r.readCompletions(f)
}

func (r *request) readChat(f fields, contextLength int) error {
	prompt, err := chatPrompt(f)
	if err != nil {
		return err
	}
	r.setPrompts([][]int{prompt}, nil)
	maxName := "max_completion_tokens"
	if !f.has(maxName) {
		maxName = "max_tokens"
	}
	p, err := readParams(f, maxName, "seed", max(0, contextLength-len(prompt)-1))
	if err != nil {
		return err
	}
	lp := logprobs{start: -1}
	if lp.on, err = f.boolean("logprobs"); err != nil {
		return err
	}
	if lp.top, err = f.integer("top_logprobs", 0); err != nil {
		return err
	}
	r.items[0].params, r.items[0].lp = p, lp
	return nil
}

// chatPrompt is the chat template: every message as a line, named by its role.
func chatPrompt(f fields) ([]int, error) {
	if f.has("input_ids") {
		var ids []int
		if err := json.Unmarshal(f["input_ids"], &ids); err != nil {
			return nil, &fieldError{"input_ids", "list_type", "Input should be a valid list", f["input_ids"]}
		}
		return ids, nil
	}
	if _, there := f["messages"]; !there {
		return nil, &fieldError{"messages", "missing", "Field required", json.RawMessage("{}")}
	}
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(f["messages"], &messages); err != nil {
		return nil, &fieldError{"messages", "list_type", "Input should be a valid list", f["messages"]}
	}
	if len(messages) == 0 {
		return nil, valueError("Messages cannot be empty.")
	}
	var text strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&text, "%s:%s\n", m.Role, contentText(m.Content))
	}
	text.WriteString("assistant:")
	return Tokenize(text.String()), nil
}

// contentText is the text of a message: a string, or the text parts of a list.
func contentText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

func (r *request) readCompletions(f fields) error {
	if _, there := f["prompt"]; !there {
		return &fieldError{"prompt", "missing", "Field required", json.RawMessage("{}")}
	}
	prompts, texts, list, err := readPrompt(f["prompt"])
	if err != nil {
		return &fieldError{"prompt", "string_type", "Input should be a valid string", f["prompt"]}
	}
	if len(prompts) == 0 || (!list && len(prompts[0]) == 0) {
		return valueError("Prompt cannot be empty")
	}
	r.batch = list
	r.setPrompts(prompts, texts)
	p, err := readParams(f, "max_tokens", "seed", 16)
	if err != nil {
		return err
	}
	if p.MaxNewTokens <= 0 {
		return valueError("max_tokens must be positive")
	}
	if r.echo, err = f.boolean("echo"); err != nil {
		return err
	}
	lp := logprobs{start: -1, on: f.has("logprobs")}
	if lp.top, err = f.integer("logprobs", 0); err != nil {
		return err
	}
	if r.echo && lp.on {
		lp.start = 0
	}
	for _, it := range r.items {
		it.params, it.lp = p, lp
	}
	return nil
}

// ExpectedFor is what an engine with the default context length must answer to
// the body of a request for path, item by item; with n samples the seed of
// sample j is the request's plus j, in the order prompt by prompt.
func ExpectedFor(path string, body []byte) ([]Output, error) {
	cfg := Config{ContextLength: defaultContextLength, DPSize: 1}
	req, err := (&life{cfg: &cfg}).parse(endpoint(path), body, nil)
	if err != nil {
		return nil, err
	}
	var outs []Output
	for _, it := range req.items {
		for j := range max(req.n, 1) {
			p := it.params
			p.Seed += int64(j)
			outs = append(outs, Expected(it.prompt, p))
		}
	}
	return outs, nil
}
