package simengine

// endStream ends the stream of a call well: streams of named events end with
// their last event.
func (c *call) endStream() {
	if c.req.ep == epResponses || c.req.ep == epMessages {
		c.out.finish()
		return
	}
	c.out.done()
}

// emit sends one event of a stream whose events have names.
func (c *call) emit(name string, data anyMap) {
	data["type"] = name
	if c.req.ep == epResponses {
		data["sequence_number"] = c.sequence
		c.sequence++
	}
	c.out.named(name, mustJSON(data))
}

// namedProgress sends what is new in the first n tokens.
func (c *call) namedProgress(it *item, n int) {
	c.namedStart(it)
	text := it.out.visible(n)
	if len(text) <= it.sentText {
		return
	}
	delta := text[it.sentText:]
	it.sentText, it.sentToks = len(text), n
	if c.req.ep == epMessages {
		c.emit("content_block_delta", anyMap{"index": 0, "delta": anyMap{"type": "text_delta", "text": delta}})
		return
	}
	c.emit("response.output_text.delta", place(it, anyMap{"delta": delta}))
}

// place adds to an event of a response where in the output it belongs.
func place(it *item, event anyMap) anyMap {
	event["item_id"], event["output_index"], event["content_index"] = "msg_"+it.rid, 0, 0
	return event
}

// namedStart sends the events ahead of the text, once.
func (c *call) namedStart(it *item) {
	if it.framed {
		return
	}
	it.framed = true
	if c.req.ep == epMessages {
		c.emit("message_start", anyMap{"message": c.message(it, nil)})
		c.emit("content_block_start", anyMap{"index": 0, "content_block": anyMap{"type": "text", "text": ""}})
		return
	}
	c.emit("response.created", anyMap{"response": c.response(it, nil)})
	c.emit("response.output_item.added", anyMap{"output_index": 0, "item": outputMessage(it, "in_progress")})
	c.emit("response.content_part.added", place(it, anyMap{"part": outputText(it, 0)}))
}

// namedEnd sends the end of a stream: its last text and how it ended, or an
// error event.
func (c *call) namedEnd(it *item, e end) {
	if e.status != 0 {
		c.emit("error", anyMap{"error": anyMap{"type": "api_error", "message": e.message, "code": e.status}})
		return
	}
	c.namedProgress(it, e.tokens)
	if c.req.ep == epMessages {
		reason, sequence := it.stopReason()
		c.emit("content_block_stop", anyMap{"index": 0})
		c.emit("message_delta", anyMap{
			"delta": anyMap{"stop_reason": reason, "stop_sequence": sequence}, "usage": c.messageUsage(it, e.tokens),
		})
		c.emit("message_stop", anyMap{})
		return
	}
	c.keepResponse(it, e)
	c.emit("response.output_text.done", place(it, anyMap{"text": it.out.visible(e.tokens)}))
	c.emit("response.content_part.done", place(it, anyMap{"part": outputText(it, e.tokens)}))
	c.emit("response.output_item.done", anyMap{"output_index": 0, "item": outputMessage(it, "completed", outputText(it, e.tokens))})
	c.emit("response.completed", anyMap{"response": c.response(it, &e)})
}
