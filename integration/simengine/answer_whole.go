package simengine

import (
	"cmp"
	"slices"
	"time"
)

// embeddingSize is the length of an embedding, labelCount that of a
// classification.
const (
	embeddingSize = 8
	labelCount    = 2
)

// answerWhole is the body of a plain call of an endpoint that only whole
// engines serve.
func (c *call) answerWhole(ends []end) []byte {
	switch c.req.ep {
	case epResponses:
		return c.keepResponse(c.req.items[0], ends[0])
	case epMessages:
		return mustJSON(c.message(c.req.items[0], &ends[0]))
	case epRerank:
		return mustJSON(c.rerank())
	case epScore:
		return mustJSON(c.signed(anyMap{"object": "scoring", "model": c.req.model, "scores": c.scores(), "usage": c.poolUsage()}))
	}
	data := make([]anyMap, len(c.req.items))
	for i, it := range c.req.items {
		if c.req.ep == epEmbeddings {
			data[i] = anyMap{"object": "embedding", "index": i, "embedding": it.fractions(embeddingSize)}
			continue
		}
		probs := it.fractions(1)
		data[i] = anyMap{"index": i, "label": "LABEL_0", "probs": []float{probs[0], 1 - probs[0]}, "num_classes": labelCount}
	}
	return mustJSON(c.signed(anyMap{
		"id": c.req.items[0].rid, "object": "list", "created": time.Now().Unix(),
		"model": c.req.model, "data": data, "usage": c.poolUsage(),
	}))
}

// signed adds the engine's id to an answer, as far as debug fields are wanted.
func (c *call) signed(answer anyMap) anyMap {
	if !c.l.cfg.HideDebug {
		answer["sim"] = anyMap{"engine": c.l.e.cfg.ID}
	}
	return answer
}

// fractions are n numbers from 0 to 1 that the prompt decides.
func (it *item) fractions(n int) []float {
	out := make([]float, n)
	for i := range out {
		out[i] = float(mix(it.hash+uint64(i))%4096) / 4096
	}
	return out
}

// counts are the tokens of all prompts, and how many of them were cached.
func (c *call) counts() (prompt, cached int) {
	for _, it := range c.req.items {
		prompt += len(it.prompt)
		cached += it.cached
	}
	return prompt, cached
}

func (c *call) poolUsage() anyMap {
	prompt, cached := c.counts()
	return anyMap{
		"prompt_tokens": prompt, "total_tokens": prompt, "completion_tokens": 0,
		"prompt_tokens_details": anyMap{"cached_tokens": cached},
	}
}

// rerank is a list, the best document first.
func (c *call) rerank() []anyMap {
	out := make([]anyMap, len(c.req.items))
	for i, it := range c.req.items {
		meta := anyMap{"id": it.rid, "prompt_tokens": len(it.prompt), "cached_tokens": it.cached}
		out[i] = anyMap{"score": it.fractions(1)[0], "document": c.req.documents[i], "index": i, "meta_info": c.signed(meta)}
	}
	slices.SortStableFunc(out, func(a, b anyMap) int { return cmp.Compare(b["score"].(float), a["score"].(float)) })
	return out
}

// scores has one number for each label of each item.
func (c *call) scores() [][]float {
	out := make([][]float, len(c.req.items))
	for i, it := range c.req.items {
		out[i] = make([]float, len(c.req.labels))
		for j, label := range c.req.labels {
			out[i][j] = float(mix(it.hash^uint64(label))%4096) / 4096
		}
	}
	return out
}

// keepResponse is the finished answer of /v1/responses, which can be read again
// unless the client does not want that.
func (c *call) keepResponse(it *item, e end) []byte {
	answer := mustJSON(c.response(it, &e))
	if !c.req.unstored {
		c.l.stored.put(responseID(it), answer)
	}
	return answer
}

func responseID(it *item) string { return "resp_" + it.rid }

// response is the object of /v1/responses; with no end, as it begins.
func (c *call) response(it *item, e *end) anyMap {
	answer := c.signed(anyMap{
		"id": responseID(it), "object": "response", "created_at": c.began.Unix(), "model": c.req.model,
		"status": "in_progress", "output": []anyMap{}, "usage": nil,
	})
	if e == nil {
		return answer
	}
	answer["status"] = "completed"
	if e.aborted {
		answer["status"] = "cancelled"
	} else if it.out.Finish == "length" {
		answer["status"] = "incomplete"
		answer["incomplete_details"] = anyMap{"reason": "max_output_tokens"}
	}
	answer["output"] = []anyMap{outputMessage(it, "completed", outputText(it, e.tokens))}
	answer["usage"] = anyMap{
		"input_tokens": len(it.prompt), "input_tokens_details": anyMap{"cached_tokens": it.cached},
		"output_tokens": e.tokens, "output_tokens_details": anyMap{"reasoning_tokens": 0},
		"total_tokens": len(it.prompt) + e.tokens,
	}
	return answer
}

// outputMessage is an item of a response's output.
func outputMessage(it *item, status string, content ...anyMap) anyMap {
	return anyMap{"type": "message", "id": "msg_" + it.rid, "role": "assistant", "status": status, "content": append([]anyMap{}, content...)}
}

func outputText(it *item, tokens int) anyMap {
	return anyMap{"type": "output_text", "text": it.out.visible(tokens), "annotations": []anyMap{}}
}

// message is the object of /v1/messages; with no end, as it begins.
func (c *call) message(it *item, e *end) anyMap {
	answer := c.signed(anyMap{
		"id": "msg_" + it.rid, "type": "message", "role": "assistant", "model": c.req.model,
		"content": []anyMap{}, "stop_reason": nil, "stop_sequence": nil, "usage": c.messageUsage(it, 0),
	})
	if e != nil {
		answer["content"] = []anyMap{{"type": "text", "text": it.out.visible(e.tokens)}}
		answer["stop_reason"], answer["stop_sequence"] = it.stopReason()
		answer["usage"] = c.messageUsage(it, e.tokens)
	}
	return answer
}

func (c *call) messageUsage(it *item, tokens int) anyMap {
	return anyMap{"input_tokens": len(it.prompt), "output_tokens": tokens, "cache_read_input_tokens": it.cached}
}

// stopReason is why the output ended, and the word that ended it, nil if none.
func (it *item) stopReason() (reason string, sequence any) {
	if it.out.Finish == "length" {
		return "max_tokens", nil
	}
	if word, ok := it.out.Matched.(string); ok {
		return "stop_sequence", word
	}
	return "end_turn", nil
}
