package sglang

import (
	"bytes"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sse"
)

// observerMax bounds what the observer holds, in bytes: one event, or a plain
// answer. Beyond it the observer stops looking; the answer goes on.
const observerMax = 64 << 10

// observer reads a committed answer on the side: tokens, errors, the items that
// have shown an event. It changes nothing and delays nothing.
type observer struct {
	x       *exchange
	stream  bool
	framer  sse.Framer
	plain   []byte // a plain answer so far
	blind   bool
	seen    map[int]struct{} // items of a batch, until all have been seen
	done    atomic.Bool      // the stream has said that it is over
	reasons int              // events that have told why a text ends
	outcome pd.Outcome

	prompt, completion, cached, events int

	tail [4]byte // the last bytes of the stream, right-aligned
}

func newObserver(x *exchange, stream bool) *observer {
	o := &observer{x: x, stream: stream, framer: sse.Framer{Max: observerMax}, outcome: pd.Success}
	if stream && x.req.Items > 1 {
		o.seen = make(map[int]struct{}, x.req.Items)
	}
	return o
}

func (o *observer) see(p []byte) {
	if len(p) == 0 {
		return
	}
	if keep := p[max(0, len(p)-len(o.tail)):]; len(keep) > 0 {
		copy(o.tail[:], o.tail[len(keep):])
		copy(o.tail[len(o.tail)-len(keep):], keep)
	}
	switch {
	case o.blind:
	case o.stream:
		if o.blind = o.framer.Push(p, o.event) != nil; o.blind && o.x.req.Items == 1 {
			o.x.seen.Store(1) // so much of an event shows as much as a whole one
		}
	case len(o.plain)+len(p) > observerMax:
		o.blind, o.plain = true, nil
	default:
		o.plain = append(o.plain, p...)
	}
}

func (o *observer) event(event []byte) error {
	data := sse.Data(event)
	if data == nil {
		return nil
	}
	if sse.IsDone(event) {
		o.done.Store(true)
		return nil
	}
	o.events++
	ended := hasReason(data)
	if ended {
		o.reasons++
	}
	o.item(data)
	if f, ok := EventFailure(data); ok {
		switch {
		case f.Aborted:
			o.outcome = pd.Left
		case f.Status < 500:
			o.outcome = pd.ClientFlaw
		default:
			o.outcome = pd.Fault
		}
	}
	if ended || o.x.req.Endpoint != pd.Generate {
		o.count(data)
	}
	return nil
}

// item notes that an item of the batch has shown an event.
func (o *observer) item(data []byte) {
	if o.x.req.Items == 1 {
		if o.events == 1 {
			o.x.seen.Store(1)
		}
		return
	}
	if o.seen == nil {
		return
	}
	if i := EventIndex(o.x.req.Endpoint, data); i >= 0 {
		o.seen[i] = struct{}{}
		o.x.seen.Store(int64(len(o.seen)))
		if len(o.seen) == o.x.req.Items {
			o.seen = nil
		}
	}
}

// count reads token counts. Those of /generate stand in every event, of which
// only the last of each item comes here; those of OpenAI streams are totals.
func (o *observer) count(data []byte) {
	generate := o.x.req.Endpoint == pd.Generate
	prompt, completion, cached, ok := Usage(data)
	switch {
	case !ok:
	case generate:
		o.prompt, o.completion, o.cached = o.prompt+prompt, o.completion+completion, o.cached+cached
	default:
		o.prompt, o.completion, o.cached = prompt, completion, cached
	}
}

// finish reports what was seen and returns decode's outcome.
func (o *observer) finish() pd.Outcome {
	if !o.stream && !o.blind {
		o.count(o.plain)
	}
	o.report()
	return o.outcome
}

// cut reports whether a stream that ends here has not come to its end: nothing in
// it has said so. [DONE] does, and for each item the reason why its text ends; so
// does a failure.
func (o *observer) cut() bool {
	return o.stream && !o.blind && o.outcome == pd.Success && o.reasons < o.x.req.Items &&
		!o.done.Load() && !sse.IsDone(o.framer.Pending())
}

// hasReason reports whether an event holds a finish_reason other than null. Within
// a text its quotes would be escaped.
func hasReason(data []byte) bool {
	const name = `"finish_reason":`
	for rest := data; ; {
		i := bytes.Index(rest, []byte(name))
		if i < 0 {
			return false
		}
		rest = bytes.TrimLeft(rest[i+len(name):], " ")
		if len(rest) > 0 && rest[0] != 'n' {
			return true
		}
	}
}

// report tells the request's report what was counted.
func (o *observer) report() {
	o.x.req.Count(o.prompt, o.completion, o.cached, o.events)
}

// boundary reports whether the stream so far ends with a whole event.
func (o *observer) boundary() bool {
	t := o.tail[:]
	return bytes.HasSuffix(t, []byte("\n\n")) || bytes.HasSuffix(t, []byte("\r\n\r\n")) || bytes.HasSuffix(t, []byte("\r\r"))
}
