package cases

import (
	"encoding/json"
	"errors"
)

// Generated is an answer of /generate, or one event of its stream.
type Generated struct {
	Text      string `json:"text"`
	OutputIDs []int  `json:"output_ids"`
	Index     *int   `json:"index"`
	Meta      Meta   `json:"meta_info"`
}

// Meta is the meta_info of an answer of /generate.
type Meta struct {
	ID                string      `json:"id"`
	Finish            *Finish     `json:"finish_reason"`
	PromptTokens      int         `json:"prompt_tokens"`
	CompletionTokens  int         `json:"completion_tokens"`
	InputLogprobs     []Logprob   `json:"input_token_logprobs"`
	OutputLogprobs    []Logprob   `json:"output_token_logprobs"`
	InputTopLogprobs  [][]Logprob `json:"input_top_logprobs"`
	OutputTopLogprobs [][]Logprob `json:"output_top_logprobs"`
	InputIDsLogprobs  [][]Logprob `json:"input_token_ids_logprobs"`
	OutputIDsLogprobs [][]Logprob `json:"output_token_ids_logprobs"`
}

// Finish is why /generate stopped.
type Finish struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Logprob is an entry [logprob or null, token id, text or null].
type Logprob struct {
	Value *float64
	Token int
	Text  *string
}

// UnmarshalJSON reads the array that an entry is on the wire.
func (l *Logprob) UnmarshalJSON(data []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	if len(parts) != 3 {
		return errors.New("an entry of log probabilities has three members")
	}
	return errors.Join(
		json.Unmarshal(parts[0], &l.Value),
		json.Unmarshal(parts[1], &l.Token),
		json.Unmarshal(parts[2], &l.Text),
	)
}

// Completion is an answer of an OpenAI endpoint, or one event of its stream.
type Completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Choices []Choice `json:"choices"`
	Usage   *Usage   `json:"usage"`
}

// Choice is one sample of an OpenAI answer; Delta stands for Message in a stream.
type Choice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Message      Message         `json:"message"`
	Delta        Message         `json:"delta"`
	FinishReason *string         `json:"finish_reason"`
	Logprobs     *ChoiceLogprobs `json:"logprobs"`
}

// Message is what the assistant says.
type Message struct {
	Role    string  `json:"role"`
	Content *string `json:"content"`
}

// ChoiceLogprobs holds chat's Content, or the parallel lists of completions.
type ChoiceLogprobs struct {
	Content []struct {
		Token       string            `json:"token"`
		Logprob     float64           `json:"logprob"`
		TopLogprobs []json.RawMessage `json:"top_logprobs"`
	} `json:"content"`
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []*float64           `json:"token_logprobs"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"`
}

// Usage counts tokens as OpenAI does.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}
