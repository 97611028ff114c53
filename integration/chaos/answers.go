package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// outcome is what became of a request.
type outcome string

const (
	right      outcome = "right"      // the whole answer that was expected, or a 400 that was
	refused    outcome = "refused"    // an error status
	broken     outcome = "broken"     // a 200 that then said, or showed, that it failed
	left       outcome = "left"       // the client did not wait
	aborted    outcome = "aborted"    // an answer cut short by the client's own abort
	unanswered outcome = "unanswered" // a connection closed without a byte of an answer
	wrong      outcome = "wrong"      // a 200 or a 400 that is not true: never right
)

// answer is what a client has read.
type answer struct {
	status int // 0 if none came
	header http.Header
	body   []byte
	err    error // why the body, or the answer, ended before its time
	left   bool  // because the client left
}

// code names the failure: the status, and the router's own code if it has one.
func (a *answer) code() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", a.status, a.header.Get("X-Tandem-Error")))
}

// result is the judgement of an answer: what it is, and why.
type result struct {
	outcome outcome
	why     string
}

// judge says what an answer to k is. It is the checker of what an answer may say.
func judge(k *call, a *answer) result {
	switch {
	case a.status == 0 && a.left:
		return result{left, ""}
	case a.status == 0:
		return result{unanswered, fmt.Sprint(a.err)}
	case a.status == http.StatusBadRequest && k.manner == errs:
		return result{right, ""}
	case k.unsent:
		return result{wrong, fmt.Sprintf("bad input is answered with %d, not 400", a.status)}
	case a.status == http.StatusBadRequest:
		return result{wrong, "good input is answered with 400: " + tail(a.body)}
	case a.status >= http.StatusBadRequest:
		return result{refused, a.code()}
	case a.status != http.StatusOK:
		return result{wrong, fmt.Sprintf("status %d", a.status)}
	case k.manner == errs:
		return result{wrong, "bad input is served"}
	}
	r := newReading(k)
	if k.stream {
		r.readStream(a)
	} else if a.err == nil {
		r.document(a.body)
	}
	return r.judge(a)
}

// reading is what an answer says so far.
type reading struct {
	k        *call
	texts    []string // by index
	finishes []string
	failed   string // an error event
	done     int    // [DONE]s
	bad      string // what cannot be part of a right answer
	torn     string // an event that was cut short: an error event must follow
}

func newReading(k *call) *reading {
	return &reading{k: k, texts: make([]string, len(k.want)), finishes: make([]string, len(k.want))}
}

func (r *reading) wrong(format string, args ...any) {
	if r.bad == "" {
		r.bad = fmt.Sprintf(format, args...)
	}
}

// tear notes what is not JSON.
func (r *reading) tear(format string, args ...any) {
	if r.torn == "" {
		r.torn = fmt.Sprintf(format, args...)
	}
}

// judge compares what was read with what was expected.
func (r *reading) judge(a *answer) result {
	complete, abort := true, false
	for i, want := range r.k.want {
		if !strings.HasPrefix(want.Text, r.texts[i]) {
			r.wrong("index %d says %q, want %q", i, r.texts[i], want.Text)
		}
		abort = abort || r.finishes[i] == "abort"
		complete = complete && r.texts[i] == want.Text && r.finishes[i] == want.Finish
	}
	clean := a.err == nil // the answer has the end of a whole one
	if r.torn != "" && (!r.k.stream || r.failed == "") {
		r.wrong("%s", r.torn)
	}
	switch {
	case r.bad != "":
		return result{wrong, r.bad}
	case a.left:
		return result{left, ""}
	case r.failed != "":
		return result{broken, r.failed}
	case !clean:
		return result{broken, a.err.Error()}
	case r.k.stream && r.done != 1 && (r.done > 1 || slices.Contains(r.finishes, "")): // the reasons say of all that they end
		return result{wrong, fmt.Sprintf("a stream that ends well has %d [DONE]s: %s", r.done, tail(a.body))}
	case abort && r.k.manner == aborts:
		return result{aborted, ""}
	case !complete:
		return result{wrong, fmt.Sprintf("ends well and is not whole: finish reasons %q: %s", r.finishes, tail(a.body))}
	}
	return result{right, ""}
}

// tail is the end of a body, which holds no prompt of anybody's but ours.
func tail(body []byte) string {
	return fmt.Sprintf("...%q", body[max(0, len(body)-300):])
}

// readStream reads the events that came whole.
func (r *reading) readStream(a *answer) {
	if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		r.wrong("a stream has the content type %q", ct)
		return
	}
	rest := a.body
	for {
		frame, after, whole := bytes.Cut(rest, []byte("\n\n"))
		if !whole {
			if a.err == nil && !a.left && len(bytes.TrimSpace(frame)) > 0 {
				r.wrong("a stream that ends well ends with half an event: %s", tail(frame))
			}
			return
		}
		rest = after
		data, ok := bytes.CutPrefix(frame, []byte("data: "))
		switch {
		case !ok:
			r.wrong("not an event: %s", tail(frame))
		case string(data) == "[DONE]":
			r.done++
		case r.done > 0:
			r.wrong("an event after [DONE]: %s", tail(frame))
		default:
			r.document(data)
		}
	}
}

// generated is an answer of /generate, or one event of its stream.
type generated struct {
	Error json.RawMessage
	Text  string
	Index int
	Meta  struct {
		Completion int `json:"completion_tokens"`
		Finish     *struct {
			Type string
			Code int `json:"status_code"`
		} `json:"finish_reason"`
		Input  []json.RawMessage `json:"input_token_logprobs"`
		Output []json.RawMessage `json:"output_token_logprobs"`
	} `json:"meta_info"`
}

// completion is an answer of an OpenAI endpoint, or one event of its stream.
type completion struct {
	Error   json.RawMessage
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Content string }
		Delta   struct{ Content string }
		Finish  *string `json:"finish_reason"`
	}
}

// document reads a whole answer, or one event.
func (r *reading) document(data []byte) {
	if r.k.path == generatePath {
		r.generate(data)
		return
	}
	var c completion
	if err := json.Unmarshal(data, &c); err != nil {
		r.tear("%v: %s", err, tail(data))
		return
	}
	if c.Error != nil {
		r.failed = string(c.Error)
	}
	for _, choice := range c.Choices {
		if choice.Index < 0 || choice.Index >= len(r.texts) {
			r.wrong("there is no index %d", choice.Index)
			continue
		}
		r.texts[choice.Index] += choice.Text + choice.Message.Content + choice.Delta.Content
		if choice.Finish != nil {
			r.finishes[choice.Index] = *choice.Finish
		}
	}
}

func (r *reading) generate(data []byte) {
	items := make([]generated, 1)
	var err error
	if bytes.HasPrefix(data, []byte("[")) {
		err = json.Unmarshal(data, &items)
	} else {
		err = json.Unmarshal(data, &items[0])
	}
	if err != nil {
		r.tear("%v: %s", err, tail(data))
		return
	}
	if !r.k.stream && len(items) != len(r.texts) {
		r.wrong("%d items, want %d", len(items), len(r.texts))
		return
	}
	for i, item := range items {
		if item.Error != nil {
			r.failed = string(item.Error)
			continue
		}
		if r.k.stream {
			i = item.Index
		}
		r.item(i, &item)
	}
}

// item reads one item; a stream's are cumulative.
func (r *reading) item(i int, item *generated) {
	if i < 0 || i >= len(r.texts) {
		r.wrong("there is no index %d", i)
		return
	}
	if !strings.HasPrefix(item.Text, r.texts[i]) {
		r.wrong("index %d goes back from %q to %q", i, r.texts[i], item.Text)
	}
	r.texts[i] = item.Text
	if f := item.Meta.Finish; f != nil {
		r.finishes[i] = f.Type
		if f.Code >= http.StatusBadRequest {
			r.failed = fmt.Sprintf("finish reason with status %d", f.Code)
			return
		}
	}
	if r.k.prompts == nil {
		return
	}
	if got, want := len(item.Meta.Input), r.k.prompts[i]; got != want {
		r.wrong("index %d has %d prompt logprobs, want %d", i, got, want)
	}
	if got, want := len(item.Meta.Output), item.Meta.Completion; got != want {
		r.wrong("index %d has %d output logprobs, want %d", i, got, want)
	}
}
