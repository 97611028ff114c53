package single

import (
	"bytes"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

// observerMax bounds what the observer holds, in bytes: one event, or a plain
// answer. Beyond it the observer stops looking; the answer goes on.
const observerMax = 64 << 10

// observer reads a committed answer on the side: tokens, errors, whether a stream
// has come to its end. It changes nothing and delays nothing.
type observer struct {
	req     *pd.Request
	stream  bool
	framer  sse.Framer
	plain   []byte // a plain answer so far
	blind   bool
	done    atomic.Bool // the stream has said that it is over
	reasons int         // events that have told why a text ends
	outcome pd.Outcome
	tail    []byte // the last bytes of the stream, four at most

	prompt, completion, cached, events int
}

func newObserver(req *pd.Request, stream bool) *observer {
	return &observer{req: req, stream: stream, framer: sse.Framer{Max: observerMax}, outcome: pd.Success}
}

func (o *observer) see(p []byte) {
	o.tail = append(o.tail, p[max(0, len(p)-4):]...)
	o.tail = append(o.tail[:0], o.tail[max(0, len(o.tail)-4):]...)
	switch {
	case o.blind:
	case o.stream:
		o.blind = o.framer.Push(p, o.event) != nil
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
	if f, ok := sglang.EventFailure(data); ok {
		switch {
		case f.Aborted:
			o.outcome = pd.Left
		case f.Status < 500:
			o.outcome = pd.ClientFlaw
		default:
			o.outcome = pd.Fault
		}
	}
	if ended || o.req.Endpoint != pd.Generate {
		o.count(data)
	}
	return nil
}

// count reads token counts. Those of /generate stand in every event, of which
// only the last of each text comes here; those of other streams are totals.
func (o *observer) count(data []byte) {
	prompt, completion, cached, ok := sglang.Usage(data)
	switch {
	case !ok:
	case o.req.Endpoint == pd.Generate:
		o.prompt, o.completion, o.cached = o.prompt+prompt, o.completion+completion, o.cached+cached
	default:
		o.prompt, o.completion, o.cached = prompt, completion, cached
	}
}

// finish reports what was seen and returns the leg's outcome.
func (o *observer) finish() pd.Outcome {
	if !o.stream && !o.blind {
		o.count(o.plain)
	}
	o.report()
	return o.outcome
}

// report tells the request's report what was counted. On /generate each sample of
// a prompt tells the prompt's tokens again.
func (o *observer) report() {
	samples := 1
	if o.req.Endpoint == pd.Generate {
		samples = o.req.N
	}
	o.req.Count(o.prompt/samples, o.completion, o.cached/samples, o.events)
}

// cut reports whether a stream that ends here has not come to its end: nothing in
// it has said so. [DONE] does, and for each item the reason why its text ends; so
// does a failure. How other APIs end is not known, and their word is taken.
func (o *observer) cut() bool {
	return o.stream && !o.blind && o.req.Endpoint != pd.Other && o.outcome == pd.Success &&
		o.reasons < o.req.Items && !o.done.Load() && !sse.IsDone(o.framer.Pending())
}

// boundary reports whether the stream so far ends with a whole event.
func (o *observer) boundary() bool {
	for _, end := range []string{"\n\n", "\r\n\r\n", "\r\r"} {
		if bytes.HasSuffix(o.tail, []byte(end)) {
			return true
		}
	}
	return false
}

// hasReason reports whether an event holds a finish_reason other than null. Within
// a text its quotes would be escaped.
func hasReason(data []byte) bool {
	for {
		_, rest, found := bytes.Cut(data, []byte(`"finish_reason":`))
		if !found {
			return false
		}
		if value := bytes.TrimLeft(rest, " "); len(value) > 0 && value[0] != 'n' {
			return true
		}
		data = rest
	}
}
