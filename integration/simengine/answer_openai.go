package simengine

import "time"

// answerOpenAI is the body of a plain chat or completions call.
func (c *call) answerOpenAI(ends []end) []byte {
	var j jsonBuilder
	chat := c.req.ep == epChat
	j.open('{')
	j.kstr("id", c.req.items[0].rid)
	j.kstr("object", objectName(chat, false))
	j.kint("created", time.Now().Unix())
	j.kstr("model", c.req.model)
	j.key("choices")
	j.open('[')
	completion := 0
	for i, it := range c.req.items {
		completion += ends[i].tokens
		text := it.out.visible(ends[i].tokens)
		j.open('{')
		j.kint("index", int64(it.index))
		if chat {
			j.key("message")
			j.open('{')
			j.kstr("role", "assistant")
			j.kstr("content", text)
			j.kraw("reasoning_content", "null")
			j.close('}')
			j.key("logprobs")
			it.chatLogprobs(&j, 0, ends[i].tokens)
		} else {
			if c.req.echo {
				text = it.text + text
			}
			j.kstr("text", text)
			j.key("logprobs")
			it.completionLogprobs(&j, 0, ends[i].tokens, c.req.echo)
		}
		it.finish(&j, ends[i])
		j.close('}')
	}
	j.close(']')
	j.key("usage")
	c.usageObject(&j, completion, true)
	j.key("metadata")
	j.open('{')
	j.kstr("weight_version", weightVersion)
	j.kraw("weight_versions", weightVersions(ends[0].tokens))
	j.tail("}}")
	return j.b
}

func objectName(chat, stream bool) string {
	switch {
	case chat && stream:
		return "chat.completion.chunk"
	case chat:
		return "chat.completion"
	}
	return "text_completion"
}

// finish writes finish_reason and matched_stop.
func (it *item) finish(j *jsonBuilder, e end) {
	reason, matched := it.out.Finish, it.out.Matched
	if e.aborted {
		reason, matched = "abort", nil
	}
	j.kstr("finish_reason", reason)
	j.kraw("matched_stop", matchedJSON(matched))
}

// usageObject counts each prompt once. Stream frames of completions have no
// details of their completion tokens.
func (c *call) usageObject(j *jsonBuilder, completion int, details bool) {
	prompt, cached := 0, 0
	for i := 0; i < len(c.req.items); i += c.req.samples() {
		prompt += len(c.req.items[i].prompt)
		cached += c.req.items[i].cached
	}
	j.open('{')
	j.kint("prompt_tokens", int64(prompt))
	j.kint("total_tokens", int64(prompt+completion))
	j.kint("completion_tokens", int64(completion))
	j.key("prompt_tokens_details")
	j.open('{')
	j.kint("cached_tokens", int64(cached))
	j.close('}')
	j.kint("reasoning_tokens", 0)
	if details {
		j.kraw("completion_tokens_details", "null")
	}
	j.close('}')
}

// chunk starts a frame of an item and leaves its choice to fill; usage counts
// the item's tokens, where every frame is to have it.
func (c *call) chunk(it *item, tokens int, fill func(j *jsonBuilder)) {
	var j jsonBuilder
	chat := c.req.ep == epChat
	j.open('{')
	j.kstr("id", it.rid)
	j.kstr("object", objectName(chat, true))
	j.kint("created", time.Now().Unix())
	if chat {
		j.kstr("model", c.req.model)
	}
	j.key("choices")
	j.open('[')
	if fill != nil {
		j.open('{')
		j.kint("index", int64(it.index))
		fill(&j)
		j.close('}')
	}
	j.close(']')
	if !chat {
		j.kstr("model", c.req.model)
	}
	switch {
	case c.req.usageAlways || fill == nil:
		j.key("usage")
		c.usageObject(&j, tokens, chat)
	case !chat:
		j.kraw("usage", "null")
	}
	j.close('}')
	c.out.event(j.b)
}

// openAIProgress sends what is new in the first n tokens.
func (c *call) openAIProgress(it *item, n int) {
	if c.req.ep == epCompletions {
		c.completionFrame(it, n, nil)
		return
	}
	c.chatRole(it)
	text := it.out.visible(n)
	if len(text) > it.sentText {
		c.chunk(it, n, func(j *jsonBuilder) {
			j.kraw("delta", `{"reasoning_content":null,"content":`+string(appendString(nil, text[it.sentText:]))+`}`)
			j.key("logprobs")
			it.chatLogprobs(j, it.sentToks, n)
			unfinished(j)
		})
		it.sentText, it.sentToks = len(text), n
	}
}

// chatRole sends the first frame of a chat stream, once.
func (c *call) chatRole(it *item) {
	if it.framed {
		return
	}
	it.framed = true
	c.chunk(it, 0, func(j *jsonBuilder) {
		j.kraw("delta", `{"reasoning_content":null,"role":"assistant","content":""}`)
		j.kraw("logprobs", "null")
		unfinished(j)
	})
}

func unfinished(j *jsonBuilder) {
	j.kraw("finish_reason", "null")
	j.kraw("matched_stop", "null")
}

// completionFrame sends what is new in the first n tokens, and the end if it is.
func (c *call) completionFrame(it *item, n int, e *end) {
	text := it.out.visible(n)
	delta := text[min(it.sentText, len(text)):]
	echo := c.req.echo && !it.framed
	if echo {
		delta = it.text + delta
	}
	c.chunk(it, n, func(j *jsonBuilder) {
		j.kstr("text", delta)
		j.key("logprobs")
		it.completionLogprobs(j, it.sentToks, n, echo)
		if e == nil {
			unfinished(j)
		} else {
			it.finish(j, *e)
		}
	})
	it.framed, it.sentText, it.sentToks = true, len(text), n
}

// openAIEnd sends the end of an item: its last text and reason, or an error
// frame; after the last item the usage, if asked for.
func (c *call) openAIEnd(it *item, e end) {
	switch {
	case e.status != 0:
		c.out.event(append(append([]byte(`{"error":`), FlatError(e.message, statusName(e.status), e.status)...), '}'))
	case c.req.ep == epCompletions:
		c.completionFrame(it, e.tokens, &e)
	default:
		c.openAIProgress(it, e.tokens)
		c.chunk(it, e.tokens, func(j *jsonBuilder) {
			j.kraw("delta", `{"reasoning_content":null}`)
			j.kraw("logprobs", "null")
			it.finish(j, e)
		})
	}
	it.sentToks = e.tokens
	c.endedItems++
	if c.endedItems < len(c.req.items) || !c.req.usage {
		return
	}
	total := 0
	for _, one := range c.req.items {
		total += one.sentToks
	}
	c.chunk(it, total, nil)
}
