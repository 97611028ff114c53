package integration

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// generated is an answer of /generate, or one event of its stream.
type generated struct {
	Text      string
	Index     int
	OutputIDs []int `json:"output_ids"`
	Meta      struct {
		ID               string
		PromptTokens     int                    `json:"prompt_tokens"`
		CompletionTokens int                    `json:"completion_tokens"`
		InputLogprobs    []any                  `json:"input_token_logprobs"`
		OutputLogprobs   []any                  `json:"output_token_logprobs"`
		InputTop         []any                  `json:"input_top_logprobs"`
		OutputTop        []any                  `json:"output_top_logprobs"`
		InputIDs         []any                  `json:"input_token_ids_logprobs"`
		OutputIDs        []any                  `json:"output_token_ids_logprobs"`
		Finish           *struct{ Type string } `json:"finish_reason"`
		Sim              struct {
			Room    int64
			Prefill string
		}
	} `json:"meta_info"`
}

// completion is an answer of an OpenAI endpoint, or one event of its stream.
type completion struct {
	ID      string
	Created int64
	Choices []struct {
		Index        int
		Text         string
		Message      struct{ Content string }
		Delta        struct{ Content string }
		FinishReason *string `json:"finish_reason"`
		Logprobs     *struct {
			Tokens        []string
			TokenLogprobs []*float64 `json:"token_logprobs"`
			TopLogprobs   []any      `json:"top_logprobs"`
			TextOffset    []int      `json:"text_offset"`
		}
	}
	Usage *usage
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// data are the events of a stream that ended well, before its [DONE].
func data(t *testing.T, r reply) []string {
	t.Helper()
	require.Equal(t, http.StatusOK, r.status, "%.500s", r.body)
	require.NoError(t, r.err)
	events := r.events()
	require.NotEmpty(t, events)
	require.Equal(t, "[DONE]", events[len(events)-1])
	require.NotContains(t, events[:len(events)-1], "[DONE]")
	return events[:len(events)-1]
}

// textOf is the text of an answer, plain or streamed, by index.
func textOf(t *testing.T, path string, r reply) map[int]string {
	t.Helper()
	texts := map[int]string{}
	documents, stream := []string{r.body}, r.header.Get("Content-Type") != "application/json"
	if stream {
		documents = data(t, r)
	}
	for _, doc := range documents {
		if path == generatePath {
			items := []generated{}
			if doc[0] == '[' {
				items = decoded[[]generated](t, doc)
			} else {
				items = append(items, decoded[generated](t, doc))
			}
			for i, item := range items {
				if stream {
					i = item.Index
				}
				texts[i] = item.Text // a stream's events are cumulative
			}
			continue
		}
		for _, choice := range decoded[completion](t, doc).Choices {
			texts[choice.Index] += choice.Text + choice.Message.Content + choice.Delta.Content
		}
	}
	return texts
}
