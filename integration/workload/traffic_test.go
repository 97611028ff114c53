package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/assert"
)

// form is how a prompt is asked for.
type form string

// The forms.
const (
	asText form = "/generate, text"
	asIDs  form = "/generate, token ids"
	asChat form = "/v1/chat/completions"
)

func (f form) path() string {
	if f == asChat {
		return string(asChat)
	}
	return "/generate"
}

// tokens is how many tokens of a simulated engine stand for one. The router takes
// four bytes of a text for a token, as they are in English, and these engines each
// byte; so a text has four times the tokens, and the engines four times the room.
func (f form) tokens() int {
	if f == asIDs {
		return 1
	}
	return 4
}

// words is a text of n tokens that nothing else begins with.
func (f form) words(r *rand.Rand, n int) string {
	size := n * f.tokens()
	text := make([]byte, 0, size+16)
	for len(text) < size {
		text = append(strconv.AppendUint(text, r.Uint64(), 36), ' ')
	}
	return string(text[:size])
}

// outTokens is what every request asks for.
const outTokens = 8

// body asks for outTokens behind a prompt that has a head and a rest.
func (f form) body(head, rest string) []byte {
	switch f {
	case asChat:
		return fmt.Appendf(nil, `{"model":"tiny","messages":[{"role":"system","content":"%s"},{"role":"user","content":"%s"}],"max_tokens":%d,"ignore_eos":true}`, head, rest, outTokens)
	case asIDs:
		body := append(make([]byte, 0, 4*(len(head)+len(rest))), fmt.Sprintf(`{"sampling_params":{"max_new_tokens":%d,"ignore_eos":true},"input_ids":[`, outTokens)...)
		for i, b := range []byte(head + rest) {
			if i > 0 {
				body = append(body, ',')
			}
			body = strconv.AppendInt(body, 3+int64(b), 10)
		}
		return append(body, "]}"...)
	default:
		return fmt.Appendf(nil, `{"text":"%s%s","sampling_params":{"max_new_tokens":%d,"ignore_eos":true}}`, head, rest, outTokens)
	}
}

// request is one of a workload.
type request struct {
	form       form
	head, rest string
	key        string // X-SMG-Routing-Key
}

// usage is what an answer says of its prompt.
type usage struct{ prompt, cached int64 }

// ask sends a request and reads what the engines say of it.
func (f *fleet) ask(ctx context.Context, r request) (usage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.router.URL+r.form.path(), bytes.NewReader(r.form.body(r.head, r.rest)))
	if err != nil {
		return usage{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if r.key != "" {
		req.Header.Set("X-Smg-Routing-Key", r.key)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return usage{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return usage{}, err
	}
	if resp.StatusCode != http.StatusOK {
		return usage{}, fmt.Errorf("status %d: %.300s", resp.StatusCode, body)
	}
	var answer struct {
		Meta struct {
			Prompt int64 `json:"prompt_tokens"`
			Cached int64 `json:"cached_tokens"`
		} `json:"meta_info"`
		Usage struct {
			Prompt  int64 `json:"prompt_tokens"`
			Details struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return usage{}, err
	}
	u := usage{answer.Meta.Prompt + answer.Usage.Prompt, answer.Meta.Cached + answer.Usage.Details.Cached}
	if u.prompt == 0 {
		return usage{}, fmt.Errorf("no usage in %.300s", body)
	}
	return u, nil
}

// run sends the requests in order, so many at a time, and returns the share of
// their tokens that the engines had in their caches. Every one must be answered.
func (f *fleet) run(atOnce int, requests []request) (hits float64) {
	f.t.Helper()
	var prompt, cached, next atomic.Int64
	var clients sync.WaitGroup
	for range atOnce {
		clients.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(requests)); i = next.Add(1) - 1 {
				u, err := f.ask(f.t.Context(), requests[i])
				if !assert.NoError(f.t, err) {
					return
				}
				prompt.Add(u.prompt)
				cached.Add(u.cached)
			}
		})
	}
	clients.Wait()
	return float64(cached.Load()) / float64(max(1, prompt.Load()))
}
