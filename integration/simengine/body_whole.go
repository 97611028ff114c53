package simengine

import (
	"encoding/json"
	"slices"
)

// readWhole reads the fields of the endpoints that only whole engines serve.
func (r *request) readWhole(f fields) error {
	var err error
	if r.model, err = f.text("model"); err != nil {
		return err
	}
	orString(&r.model, "default")
	switch r.ep {
	case epResponses:
		return r.readResponses(f)
	case epMessages:
		return r.readMessages(f)
	}
	r.stream = false // these have none
	switch r.ep {
	case epRerank:
		err = r.readRerank(f)
	case epScore:
		err = r.readScore(f)
	default:
		err = r.readInput(f)
	}
	for _, it := range r.items {
		it.lp = logprobs{start: -1}
	}
	return err
}

// required is the member, or the error that it is not there.
func (f fields) required(name string) (json.RawMessage, error) {
	if !f.has(name) {
		return nil, &fieldError{name, "missing", "Field required", json.RawMessage("{}")}
	}
	return f[name], nil
}

// readResponses reads a text or messages as input, after the instructions.
func (r *request) readResponses(f fields) error {
	input, err := f.required("input")
	if err != nil {
		return err
	}
	if r.unstored, err = f.boolean("store"); err != nil {
		return err
	}
	r.unstored = f.has("store") && !r.unstored
	prompt := Tokenize(contentText(input))
	if isList(input) {
		if prompt, err = chatPrompt(fields{"messages": input}); err != nil {
			return err
		}
	}
	return r.setGeneration(f, contentText(f["instructions"]), prompt, "max_output_tokens")
}

// readMessages reads messages after the system's text.
func (r *request) readMessages(f fields) error {
	messages, err := f.required("messages")
	if err != nil {
		return err
	}
	prompt, err := chatPrompt(fields{"messages": messages})
	if err != nil {
		return err
	}
	if f.has("stop_sequences") {
		f["stop"] = f["stop_sequences"]
	}
	return r.setGeneration(f, contentText(f["system"]), prompt, "max_tokens")
}

// setGeneration makes the only item of a request.
func (r *request) setGeneration(f fields, before string, prompt []int, maxName string) error {
	if before != "" {
		prompt = slices.Concat(Tokenize("system:"+before+"\n"), prompt)
	}
	r.setPrompts([][]int{prompt}, nil)
	p, err := readParams(f, maxName, "seed", 128)
	if err != nil {
		return err
	}
	r.items[0].params, r.items[0].lp = p, logprobs{start: -1}
	return nil
}

// readInput reads the texts or token ids of embeddings and classify.
func (r *request) readInput(f fields) error {
	input, err := f.required("input")
	if err != nil {
		return err
	}
	prompts, texts, list, err := readPrompt(input)
	if err != nil {
		return &fieldError{"input", "string_type", "Input should be a valid string", input}
	}
	if len(prompts) == 0 {
		return valueError("Input cannot be empty")
	}
	r.batch = list
	r.setPrompts(prompts, texts)
	return nil
}

// readRerank makes one item of each document, after the query.
func (r *request) readRerank(f fields) error {
	query, err := f.text("query")
	if err != nil {
		return err
	}
	if r.documents, err = f.texts("documents"); err != nil {
		return err
	}
	r.joined(query, r.documents)
	return nil
}

// readScore makes one item of each of the items, after the query.
func (r *request) readScore(f fields) error {
	query, err := f.text("query")
	if err != nil {
		return err
	}
	items, err := f.texts("items")
	if err != nil {
		return err
	}
	labels, err := f.required("label_token_ids")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(labels, &r.labels); err != nil {
		return &fieldError{"label_token_ids", "list_type", "Input should be a valid list", labels}
	}
	r.joined(query, items)
	return nil
}

// texts is a member that is a list of texts, not an empty one.
func (f fields) texts(name string) ([]string, error) {
	raw, err := f.required(name)
	if err != nil {
		return nil, err
	}
	var texts []string
	if err := json.Unmarshal(raw, &texts); err != nil {
		return nil, &fieldError{name, "list_type", "Input should be a valid list", raw}
	}
	if len(texts) == 0 {
		return nil, valueError(name + " cannot be empty")
	}
	return texts, nil
}

// joined makes one item of the query and each text.
func (r *request) joined(query string, texts []string) {
	prompts := make([][]int, len(texts))
	for i, text := range texts {
		prompts[i] = Tokenize(query + "\n" + text)
	}
	r.batch = true
	r.setPrompts(prompts, nil)
}
