package sglang

import (
	"bytes"
	"io"
	"sync/atomic"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sse"
)

// observerMax bounds what the observer holds, in bytes: one event, or a plain
// answer. Beyond it the observer stops looking; the answer goes on.
const observerMax = 64 << 10

// Observer reads a committed answer on the side: tokens, errors, whether a stream
// has come to its end. It changes nothing and delays nothing. But for Done it is
// for the one goroutine that reads the answer.
type Observer struct {
	req     *pd.Request
	stream  bool
	items   *items // are told of events; nil where nobody asks for them
	framer  sse.Framer
	plain   []byte // a plain answer so far
	blind   bool
	done    atomic.Bool // the stream has said that it is over
	reasons int         // events that have told why a text ends
	outcome pd.Outcome

	prompt, completion, cached, events int

	tail [4]byte // the last bytes of the stream, right-aligned
}

// NewObserver is for the answer to req, plain or a stream.
func NewObserver(req *pd.Request, stream bool) *Observer {
	return &Observer{req: req, stream: stream, framer: sse.Framer{Max: observerMax}, outcome: pd.Success}
}

// See looks at what the engine has sent, and reports whether it is at work: it has
// sent something, and has told of no failure.
func (o *Observer) See(p []byte) bool {
	if len(p) == 0 {
		return false
	}
	if keep := p[max(0, len(p)-len(o.tail)):]; len(keep) > 0 {
		copy(o.tail[:], o.tail[len(keep):])
		copy(o.tail[len(o.tail)-len(keep):], keep)
	}
	switch {
	case o.blind:
	case o.stream:
		if o.blind = o.framer.Push(p, o.event) != nil; o.blind {
			o.items.large()
		}
	case len(o.plain)+len(p) > observerMax:
		o.blind, o.plain = true, nil
	default:
		o.plain = append(o.plain, p...)
	}
	return o.outcome == pd.Success
}

// Done reports whether a stream has said that it is over. It may be called while
// the answer is read.
func (o *Observer) Done() bool { return o.done.Load() }

func (o *Observer) event(event []byte) error {
	data := sse.Data(event)
	if data == nil {
		return nil
	}
	if sse.IsDone(event) {
		o.done.Store(true)
		return nil
	}
	o.events++
	o.items.note(data)
	ended := hasReason(data)
	if ended {
		o.reasons++
	}
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
	if ended || o.req.Endpoint != pd.Generate {
		o.count(data)
	}
	return nil
}

// count reads token counts. Those of /generate stand in every event, of which
// only the last of each text comes here. Those of other streams are totals, which
// only grow; an event need not have all of them.
func (o *Observer) count(data []byte) {
	prompt, completion, cached, ok := Usage(data)
	switch {
	case !ok:
	case o.req.Endpoint == pd.Generate:
		o.prompt, o.completion, o.cached = o.prompt+prompt, o.completion+completion, o.cached+cached
	default:
		o.prompt, o.completion, o.cached = max(o.prompt, prompt), max(o.completion, completion), max(o.cached, cached)
	}
}

// Finish reports what was counted in an answer that has come to its end, and
// returns what it says of its engine.
func (o *Observer) Finish() pd.Outcome {
	if !o.stream && !o.blind {
		o.count(o.plain)
	}
	o.report()
	return o.outcome
}

// Break reports what was counted in an answer that cannot go on for err. It
// returns what the client is still to read, which is out and what comes behind it,
// and how its reading then ends. A stream ends with event, the error as its
// clients expect it, but for one whose client has left; one that has said that it
// is over lacks nothing any more.
func (o *Observer) Break(out []byte, err *pd.Error, event []byte) ([]byte, error) {
	o.report()
	switch {
	case o.stream && o.Done():
		return out, io.EOF
	case !o.stream, err.Kind == pd.Cancelled:
		return out, err
	case !o.boundary():
		out = append(out, "\n\n"...)
	}
	return append(out, event...), err
}

// report tells the request's report what was counted. On /generate each sample of
// a prompt tells the prompt's tokens again.
func (o *Observer) report() {
	samples := 1
	if o.req.Endpoint == pd.Generate {
		samples = o.req.N
	}
	o.req.Count(o.prompt/samples, o.completion, o.cached/samples, o.events)
}

// Cut reports whether a stream that ends here has not come to its end: nothing in
// it has said so. [DONE] does, and for each item the reason why its text ends; so
// does a failure. How other APIs end is not known, and their word is taken.
func (o *Observer) Cut() bool {
	return o.stream && !o.blind && o.req.Endpoint != pd.Other && o.outcome == pd.Success &&
		o.reasons < o.req.Items && !o.Done() && !sse.IsDone(o.framer.Pending())
}

// boundary reports whether the stream so far ends with a whole event, or is empty.
func (o *Observer) boundary() bool {
	t := o.tail[:]
	return o.tail == [len(o.tail)]byte{} || bytes.HasSuffix(t, []byte("\n\n")) || bytes.HasSuffix(t, []byte("\r\n\r\n")) || bytes.HasSuffix(t, []byte("\r\r"))
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
