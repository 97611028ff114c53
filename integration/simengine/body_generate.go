package simengine

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// readGenerate reads the fields of /generate.
func (r *request) readGenerate(f fields) error {
	var source json.RawMessage
	switch {
	case f.has("text"):
		source = f["text"]
	case f.has("input_ids"):
		source = f["input_ids"]
		if string(source) == "[]" {
			return valueError("input_ids cannot be empty.")
		}
	default:
		return valueError("Either text, input_ids or input_embeds should be provided.")
	}
	prompts, texts, list, err := readPrompt(source)
	if err != nil {
		return &fieldError{"input_ids", "list_type", "Input should be a valid list", source}
	}
	r.batch = list
	r.setPrompts(prompts, texts)
	if err := r.readSampling(f["sampling_params"]); err != nil {
		return err
	}
	return r.readLogprobs(f)
}

// readSampling reads sampling_params, one for all items or a list.
func (r *request) readSampling(raw json.RawMessage) error {
	one := func(raw json.RawMessage) (Params, error) {
		var s fields
		if err := json.Unmarshal(raw, &s); err != nil {
			return Params{}, &fieldError{"sampling_params", "dict_type", "Input should be a valid dictionary", raw}
		}
		n, err := s.integer("n", 1)
		if err != nil {
			return Params{}, err
		}
		r.n = max(r.n, n)
		return readParams(s, "max_new_tokens", "sampling_seed", 128)
	}
	if isNull(raw) {
		raw = json.RawMessage("{}")
	}
	if !isList(raw) {
		p, err := one(raw)
		if err != nil {
			return err
		}
		for _, it := range r.items {
			it.params = p
		}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return &malformed{err.Error()}
	}
	for i, it := range r.items {
		if i >= len(list) {
			return errIndex
		}
		p, err := one(list[i])
		if err != nil {
			return err
		}
		it.params = p
	}
	return nil
}

// readParams reads what both kinds of bodies call the same, and the names they
// differ in.
func readParams(f fields, maxName, seedName string, maxDefault int) (Params, error) {
	var p Params
	var err error
	if p.MaxNewTokens, err = f.integer(maxName, maxDefault); err != nil {
		return p, err
	}
	if p.MaxNewTokens < 0 {
		return p, valueError(fmt.Sprintf("max_new_tokens must be at least 0, got %d.", p.MaxNewTokens))
	}
	if p.MinNewTokens, err = f.integer("min_new_tokens", 0); err != nil {
		return p, err
	}
	if p.IgnoreEOS, err = f.boolean("ignore_eos"); err != nil {
		return p, err
	}
	if f.has(seedName) {
		if p.Seed, err = laxInt(seedName, f[seedName]); err != nil {
			return p, err
		}
	}
	if f.has("stop") {
		var word string
		if json.Unmarshal(f["stop"], &word) == nil {
			p.Stop = []string{word}
		} else if err := json.Unmarshal(f["stop"], &p.Stop); err != nil {
			return p, &fieldError{"stop", "list_type", "Input should be a valid list", f["stop"]}
		}
	}
	if f.has("stop_token_ids") {
		if err := json.Unmarshal(f["stop_token_ids"], &p.StopTokenIDs); err != nil {
			return p, &fieldError{"stop_token_ids", "list_type", "Input should be a valid list", f["stop_token_ids"]}
		}
	}
	return p, checkTemperature(f["temperature"], maxName != "max_new_tokens")
}

// checkTemperature words a bad one as the engine does: OpenAI bodies have it as
// a float, /generate as it was written.
func checkTemperature(raw json.RawMessage, float bool) error {
	if isNull(raw) {
		return nil
	}
	t, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return &fieldError{"temperature", "float_parsing", "Input should be a valid number", raw}
	}
	if t >= 0 {
		return nil
	}
	text := string(raw)
	if float && !strings.ContainsAny(text, ".eE") {
		text += ".0"
	}
	return valueError(fmt.Sprintf("temperature must be a non-negative finite number, got %s.", text))
}

// readLogprobs reads the log probability fields, each one for all items or a list.
func (r *request) readLogprobs(f fields) error {
	text, err := f.boolean("return_text_in_logprobs")
	if err != nil {
		return err
	}
	for _, it := range r.items {
		it.lp = logprobs{start: -1, text: text}
	}
	element := func(name string, set func(it *item, one fields) error) error {
		return r.each(f[name], func(i int, raw json.RawMessage, _ bool) error {
			return set(r.items[i], fields{name: raw})
		})
	}
	if err := element("return_logprob", func(it *item, one fields) (err error) {
		it.lp.on, err = one.boolean("return_logprob")
		return err
	}); err != nil {
		return err
	}
	if err := element("logprob_start_len", func(it *item, one fields) (err error) {
		it.lp.start, err = one.integer("logprob_start_len", -1)
		return err
	}); err != nil {
		return err
	}
	if err := element("top_logprobs_num", func(it *item, one fields) (err error) {
		it.lp.top, err = one.integer("top_logprobs_num", 0)
		return err
	}); err != nil {
		return err
	}
	return r.readTokenIDs(f["token_ids_logprob"])
}

// readTokenIDs reads token_ids_logprob: a list for all items, or one each.
func (r *request) readTokenIDs(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var flat []int
	if json.Unmarshal(raw, &flat) == nil {
		for _, it := range r.items {
			it.lp.tokenIDs = flat
		}
		return nil
	}
	var nested [][]int
	if err := json.Unmarshal(raw, &nested); err != nil {
		return &fieldError{"token_ids_logprob", "list_type", "Input should be a valid list", raw}
	}
	for i, it := range r.items {
		if i >= len(nested) {
			return errIndex
		}
		it.lp.tokenIDs = nested[i]
	}
	return nil
}
