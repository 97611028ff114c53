//go:build clients

package clients

import (
	"strings"

	"github.com/tandem-pd/tandem/integration/cases"
)

const (
	generatePath    = "/generate"
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"
)

// outcome is what must become of a call.
type outcome int

const (
	answered outcome = iota // whole, by the oracle
	refused                 // 400 and a reason, before any event
	freed                   // the client leaves, and the engines are free
)

// call is one call of a router.
type call struct {
	name    string
	path    string
	body    cases.Body
	outcome outcome
}

// What a body is given with [cases.Body.With].
var (
	stream    = cases.Body{"stream": true}
	withUsage = cases.Body{"stream": true, "stream_options": cases.Body{"include_usage": true}}
	logprobs  = cases.Body{"return_logprob": true, "logprob_start_len": 0}
	two       = cases.Body{"n": 2, "seed": 7} // the seed tells the samples apart
)

// text and ids are calls of /generate for exactly n tokens.
func text(prompt any, n int) cases.Body {
	return cases.Body{"text": prompt, "sampling_params": cases.Greedy(n)}
}

func ids(prompt any, n int) cases.Body {
	return cases.Body{"input_ids": prompt, "sampling_params": cases.Greedy(n)}
}

// calls are the plain calls that a router of pairs must get right.
func calls() []call {
	const hello = "Hello, you"
	texts := []string{"The first", "A second one", "Three"}
	one, batch := cases.Tokens(1, 12), [][]int{cases.Tokens(2, 9), cases.Tokens(3, 14)}
	tooLong := strings.Repeat("too long ", 200)
	const forLong = 900 // tokens, some seconds
	twice := cases.Body{"sampling_params": cases.Greedy(4).With(cases.Body{"n": 2, "sampling_seed": 7})}
	return []call{
		{"generate, text", generatePath, text(hello, 6), answered},
		{"generate, token ids", generatePath, ids(one, 6), answered},
		{"generate, text, stream", generatePath, text(hello, 6).With(stream), answered},
		{"generate, token ids, stream", generatePath, ids(one, 6).With(stream), answered},
		{"generate, until a stop string", generatePath, cases.Body{
			"text": hello, "sampling_params": cases.Body{"max_new_tokens": 64, "temperature": 0, "stop": []string{"a"}},
		}, answered},
		{"chat", chatPath, cases.Say(hello, 6), answered},
		{"chat, stream", chatPath, cases.Say(hello, 6).With(stream), answered},
		{"chat, stream with usage", chatPath, cases.Say(hello, 6).With(withUsage), answered},
		{"completions", completionsPath, cases.Complete(hello, 6), answered},
		{"completions, stream with usage", completionsPath, cases.Complete(hello, 6).With(withUsage), answered},
		{"completions, token ids", completionsPath, cases.Complete(one, 6), answered},
		{"completions, texts", completionsPath, cases.Complete(texts, 4), answered},
		{"batch of texts", generatePath, text(texts, 4), answered},
		{"batch of token ids", generatePath, ids(batch, 4), answered},
		{"batch of one", generatePath, text(texts[:1], 4), answered},
		{"batch of token ids, stream", generatePath, ids(batch, 4).With(stream), answered},
		{"log probabilities", generatePath, ids(one, 4).With(logprobs), answered},
		{"log probabilities of the answer alone", generatePath, ids(one, 4).With(cases.Body{"return_logprob": true}), answered},
		{"log probabilities, top 3", generatePath, ids(one, 4).With(logprobs).With(cases.Body{"top_logprobs_num": 3}), answered},
		{"log probabilities of chosen tokens", generatePath, ids(one, 4).With(logprobs).With(cases.Body{"token_ids_logprob": []int{7, 20}}), answered},
		{"log probabilities, batch", generatePath, ids(batch, 4).With(logprobs), answered},
		{"log probabilities, stream", generatePath, ids(one, 4).With(logprobs).With(stream), answered},
		{"log probabilities, top 3, stream", generatePath, ids(one, 4).With(logprobs).With(stream).With(cases.Body{"top_logprobs_num": 3}), answered},
		{"log probabilities, batch, stream", generatePath, ids(batch, 4).With(logprobs).With(stream), answered},
		{"chat, log probabilities", chatPath, cases.Say(hello, 4).With(cases.Body{"logprobs": true, "top_logprobs": 2}), answered},
		{"chat, log probabilities, stream", chatPath, cases.Say(hello, 4).With(stream).With(cases.Body{"logprobs": true, "top_logprobs": 2}), answered},
		{"completions, echo and log probabilities", completionsPath, cases.Complete(hello, 4).With(cases.Body{"echo": true, "logprobs": 2}), answered},
		{"n = 2, generate", generatePath, text(hello, 4).With(twice), answered},
		{"n = 2, generate, stream", generatePath, text(hello, 4).With(twice).With(stream), answered},
		{"n = 2, chat", chatPath, cases.Say(hello, 4).With(two), answered},
		{"n = 2, chat, stream with usage", chatPath, cases.Say(hello, 4).With(two).With(withUsage), answered},
		{"client's rid, generate", generatePath, text(hello, 4).With(cases.Body{"rid": "a-rid-of-mine"}), answered},
		{"client's rids, batch", generatePath, ids(batch, 4).With(cases.Body{"rid": []string{"rid-one", "rid-two"}}), answered},
		{"client's rid, chat, stream", chatPath, cases.Say(hello, 4).With(stream).With(cases.Body{"rid": "a-chat-of-mine"}), answered},
		{"prompt too long, generate", generatePath, text(tooLong, 4), refused},
		{"prompt too long, generate, stream", generatePath, text(tooLong, 4).With(stream), refused},
		{"prompt too long, generate, log probabilities", generatePath, text(tooLong, 4).With(logprobs), refused},
		{"prompt too long, chat", chatPath, cases.Say(tooLong, 4), refused},
		{"prompt too long, chat, stream", chatPath, cases.Say(tooLong, 4).With(stream), refused},
		{"client leaves, generate", generatePath, text(hello, forLong), freed},
		{"client leaves, generate, stream", generatePath, text(hello, forLong).With(stream), freed},
		{"client leaves, chat", chatPath, cases.Say(hello, forLong), freed},
		{"client leaves, chat, stream", chatPath, cases.Say(hello, forLong).With(stream), freed},
	}
}
