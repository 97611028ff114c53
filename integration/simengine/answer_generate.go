package simengine

import (
	"net/http"
	"strconv"
	"time"
)

// weightVersion is the same in every answer.
const weightVersion = "default"

// answer is the body of a plain call.
func (c *call) answer(ends []end) []byte {
	switch c.req.ep {
	case epGenerate:
	case epChat, epCompletions:
		return c.answerOpenAI(ends)
	default:
		return c.answerWhole(ends)
	}
	var j jsonBuilder
	if !c.req.batch {
		c.generateObject(&j, c.req.items[0], ends[0], true)
		return j.b
	}
	j.open('[')
	for i, it := range c.req.items {
		c.generateObject(&j, it, ends[i], true)
	}
	j.close(']')
	return j.b
}

// sendProgress sends the frame of a stream that shows the first n tokens.
func (c *call) sendProgress(it *item, n int) {
	if !c.req.stream {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.req.ep {
	case epGenerate:
	case epResponses, epMessages:
		c.namedProgress(it, n)
		return
	default:
		c.openAIProgress(it, n)
		return
	}
	var j jsonBuilder
	c.generateObject(&j, it, end{tokens: n}, false)
	c.out.event(j.b)
}

// sendEnd sends the last frames of an item of a stream.
func (c *call) sendEnd(it *item, e end) {
	if e.gone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.req.ep {
	case epGenerate:
	case epResponses, epMessages:
		c.namedEnd(it, e)
		return
	default:
		c.openAIEnd(it, e)
		return
	}
	var j jsonBuilder
	c.generateObject(&j, it, e, true)
	c.out.event(j.b)
}

// generateObject is one answer of /generate, or one frame of its stream.
func (c *call) generateObject(j *jsonBuilder, it *item, e end, final bool) {
	fromText, fromTok := 0, 0
	if c.req.stream && c.l.cfg.Incremental {
		fromText, fromTok = it.sentText, it.sentToks
	}
	text := it.out.visible(e.tokens)
	j.open('{')
	j.kstr("text", text[min(fromText, len(text)):])
	j.key("output_ids")
	j.ints(it.out.ids(fromTok, e.tokens))
	j.key("meta_info")
	c.metaInfo(j, it, e, final, fromTok)
	if c.req.batch && c.req.stream {
		j.kint("index", int64(it.index))
	}
	j.close('}')
	it.framed, it.sentText, it.sentToks = true, len(text), e.tokens
}

// visible is the text of the first n tokens.
func (o *Output) visible(n int) string {
	if n == 0 || len(o.ends) == 0 {
		return ""
	}
	return o.Text[:o.ends[min(n, len(o.ends))-1]]
}

func (o *Output) ids(from, to int) []int {
	to = min(to, len(o.IDs))
	return o.IDs[min(from, to):to]
}

func (c *call) metaInfo(j *jsonBuilder, it *item, e end, final bool, fromTok int) {
	prefill := it.role != Decode
	j.open('{')
	j.kstr("id", it.rid)
	j.key("finish_reason")
	c.finishReason(j, it, e, final)
	j.kint("prompt_tokens", int64(len(it.prompt)))
	j.kstr("weight_version", weightVersion)
	j.kint("num_retractions", 0)
	if prefill {
		j.kfloat("storage_prefetch_wait", 0)
		j.kfloat("storage_staging_wait", 0)
	}
	j.kfloat("forward_entry_time", seconds(it.forward))
	if prefill {
		j.kfloat("prefill_finished_time", seconds(it.computed))
	}
	j.kfloat("queue_time", it.forward.Sub(it.arrived).Seconds())
	if it.lp.on {
		c.logprobFields(j, it, e.tokens, fromTok)
	}
	j.kint("reasoning_tokens", 0)
	j.kint("completion_tokens", int64(e.tokens))
	j.kint("cached_tokens", int64(it.cached))
	if final {
		j.kraw("weight_versions", weightVersions(e.tokens))
	}
	j.key("cached_tokens_details")
	if it.cached > 0 {
		j.raw(`{"device":` + strconv.Itoa(it.cached) + `,"host":0}`)
	} else {
		j.null()
	}
	j.key("dp_rank")
	if c.l.cfg.DPSize > 1 {
		j.int(int64(it.rank))
	} else {
		j.null()
	}
	c.times(j, it, e, final)
	if !c.l.cfg.HideDebug {
		j.key("sim")
		j.open('{')
		j.kraw("room", orNull(string(it.room)))
		j.kstr("prefill", it.prefill)
		j.close('}')
	}
	j.close('}')
}

// times are the members that only some frames have.
func (c *call) times(j *jsonBuilder, it *item, e end, final bool) {
	now := time.Now()
	if final {
		j.kfloat("e2e_latency", now.Sub(it.arrived).Seconds())
		j.kfloat("request_received_ts", seconds(it.arrived))
		j.kfloat("first_token_latency", it.first.Sub(it.arrived).Seconds())
		j.kfloat("api_server_dispatch_finish_ts", seconds(it.arrived))
		j.kfloat("request_finished_ts", seconds(now))
		if c.req.stream && e.tokens > 1 {
			j.kfloat("decode_throughput", float64(e.tokens)/max(now.Sub(it.first).Seconds(), 1e-6))
		}
	}
	if final || !it.framed {
		j.kfloat("response_sent_to_client_ts", seconds(now))
	}
}

func (c *call) finishReason(j *jsonBuilder, it *item, e end, final bool) {
	switch {
	case !final:
		j.null()
	case e.status != 0 || e.aborted:
		j.open('{')
		j.kstr("type", "abort")
		j.kstr("message", e.message)
		status := "null"
		if e.status != 0 {
			status = strconv.Itoa(e.status)
		}
		j.kraw("status_code", status)
		j.kraw("err_type", "null")
		j.close('}')
	case it.out.Finish == "stop":
		j.open('{')
		j.kstr("type", "stop")
		j.kraw("matched", matchedJSON(it.out.Matched))
		j.close('}')
	default:
		length := e.tokens
		if it.role == Prefill && it.host != fakeHost {
			length = 0
		}
		j.raw(`{"type":"length","length":` + strconv.Itoa(length) + `}`)
	}
}

func matchedJSON(v any) string {
	if v == nil {
		return "null"
	}
	return string(mustJSON(v))
}

func weightVersions(tokens int) string {
	return `[{"version":"` + weightVersion + `","start":0,"end":` + strconv.Itoa(tokens) + `}]`
}

func orNull(s string) string {
	if s == "" {
		return "null"
	}
	return s
}

// seconds is a time as the engine writes it, zero for none.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

// statusName is the name of a status in error frames of the OpenAI streams.
func statusName(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BAD_REQUEST"
	case http.StatusServiceUnavailable:
		return "SERVICE_UNAVAILABLE"
	}
	return "INTERNAL_SERVER_ERROR"
}
