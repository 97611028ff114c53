package pd

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pd/patch"
)

// Request is what the client sent, read once. Its body is never changed: the
// legs send the client's own bytes with edits laid over them.
type Request struct {
	ID       string // the request id, as in X-Request-Id
	Endpoint Endpoint
	Method   string      // POST, or PUT on /generate; any where the endpoint is Other
	Target   string      // path and query on the engine; empty for the endpoint's path
	Header   http.Header // end-to-end headers for the legs, see [Outbound]
	Start    time.Time

	// Doc is the body's object, nil for a body of Other that is none.
	Doc  *patch.Doc
	Edit *patch.Edit // edits laid over Doc so far; [Request.Sample] adds to a copy

	Model  string // as sent, empty when absent
	Stream bool
	N      int // samples asked for per prompt, 1 when absent
	// Batch says that the prompt is a list, even a list of one; Items is its
	// length, 1 for a single prompt.
	Batch bool
	Items int
	// Rid is the client's own request id when it is one string, Rids when it
	// is a list. Null and "" count as absent.
	Rid  string
	Rids []string

	// Attempt counts from 1, SampleIndex from 0; Serve sets both.
	Attempt, SampleIndex int

	body   []byte // as it came
	prompt []byte // see Prompt; nil before it is read

	live  *call  // the request's place among the live ones, set by Serve
	trace *trace // what happened so far, set by Serve
}

// NewRequest reads the body once, for engines that share the work. The error is an
// [Invalid] *Error: the body is not one JSON object, or a field that is acted on
// has not its plain JSON type. src is kept and must not change afterwards.
func NewRequest(ep Endpoint, src []byte) (*Request, error) {
	r := newRequest(ep, src)
	if err := r.scan(); err != nil {
		return nil, err
	}
	if err := r.read(r.readStream, r.readModel, r.readN, r.readPrompt, r.readRid); err != nil {
		return nil, err
	}
	return r, nil
}

// NewSingle reads the body once, for an engine that gets it as it came and handles
// n itself: n is for the engine to judge. So is all of a body of Other, which may
// be anything: what it says is read where it is a JSON object. src is kept and
// must not change afterwards.
func NewSingle(ep Endpoint, src []byte) (*Request, error) {
	r := newRequest(ep, src)
	if err := r.scan(); err != nil && ep != Other {
		return nil, err
	} else if err != nil {
		return r, nil
	}
	if r.readN() != nil {
		r.N = 1
	}
	if ep == Other {
		_, _ = r.readStream(), r.readModel()
		if r.readRid() != nil {
			r.Rid, r.Rids = "", nil
		}
		return r, nil
	}
	if err := r.read(r.readStream, r.readModel, r.readPrompt, r.readRid); err != nil {
		return nil, err
	}
	return r, nil
}

func newRequest(ep Endpoint, src []byte) *Request {
	return &Request{
		Endpoint: ep, Method: http.MethodPost, Header: make(http.Header), Start: time.Now(),
		N: 1, Items: 1, body: src,
	}
}

// scan takes the body as an object.
func (r *Request) scan() error {
	doc, err := patch.Scan(r.body)
	if err != nil {
		return syntaxError(err)
	}
	r.Doc, r.Edit = doc, doc.Edit()
	return nil
}

func (r *Request) read(fields ...func() error) error {
	for _, read := range fields {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// Path is where the engines are asked: path and query.
func (r *Request) Path() string {
	if r.Target != "" {
		return r.Target
	}
	return r.Endpoint.Path()
}

// Payload is the body with the edits so far, which are none on a whole engine's
// way.
func (r *Request) Payload() *patch.Payload {
	if r.Edit == nil {
		return patch.Raw(r.body)
	}
	return r.Edit.Payload()
}

// Size is the length of the client's body, in bytes.
func (r *Request) Size() int64 {
	if r.Doc != nil {
		return int64(len(r.Doc.Bytes()))
	}
	return int64(len(r.body))
}

func syntaxError(err error) *Error {
	e := invalid("", "the body is not a valid JSON object")
	e.Code = "invalid_json"
	var syn *patch.SyntaxError
	if errors.As(err, &syn) {
		e.Message = fmt.Sprintf("invalid JSON at byte %d: %s", syn.Offset, syn.Reason)
	}
	return e
}

// Bool reads a field that must be true, false, null or absent.
func (r *Request) Bool(name string) (bool, error) {
	v, ok := r.Doc.Get(name)
	if !ok {
		return false, nil
	}
	b, ok := v.Bool()
	if !ok {
		return false, invalid(name, "%s must be true or false", name)
	}
	return b, nil
}

func (r *Request) readStream() (err error) {
	r.Stream, err = r.Bool("stream")
	return err
}

func (r *Request) readModel() error {
	v, ok := r.Doc.Get("model")
	if !ok {
		return nil
	}
	s, ok := v.Text()
	if !ok {
		return invalid("model", "model must be a string")
	}
	r.Model = s
	return nil
}

// readN finds the number of samples: n on OpenAI endpoints, sampling_params.n
// on /generate, where a list of params must agree on it.
func (r *Request) readN() error {
	if r.Endpoint.OpenAI() {
		v, ok := r.Doc.Get("n")
		if !ok {
			return nil
		}
		return r.setN("n", v)
	}
	v, ok := r.Doc.Get("sampling_params")
	if !ok {
		return nil
	}
	switch v.Kind() {
	case '{':
		return r.readParamsN(v)
	case '[':
		for i, el := range v.All() {
			before := r.N
			r.N = 1
			if el.Kind() != '{' {
				return invalid("sampling_params", "sampling_params[%d] must be an object", i)
			}
			if err := r.readParamsN(el); err != nil {
				return err
			}
			if i > 0 && r.N != before {
				return invalid("sampling_params", "every element of sampling_params must have the same n")
			}
		}
		return nil
	default:
		return invalid("sampling_params", "sampling_params must be an object or a list of objects")
	}
}

func (r *Request) readParamsN(v patch.Value) error {
	doc, err := v.Object()
	if err != nil {
		return syntaxError(err)
	}
	if n, ok := doc.Get("n"); ok {
		return r.setN("sampling_params.n", n)
	}
	return nil
}

func (r *Request) setN(param string, v patch.Value) error {
	n, ok := v.Int()
	if !ok || n < 1 || n > 1<<20 {
		return invalid(param, "%s must be a positive integer", param)
	}
	r.N = int(n)
	return nil
}

// promptFields are the fields that hold the prompt, in the order in which the
// engine looks at them.
func (r *Request) promptFields() []string {
	switch r.Endpoint {
	case Generate:
		return []string{"text", "input_ids", "input_embeds"}
	case Completions:
		return []string{"prompt"}
	default:
		return nil // chat is always one prompt
	}
}

// readPrompt finds whether the prompt is a list, and how long. A flat list of
// token ids is one prompt; so is a two-level list of floats in input_embeds.
func (r *Request) readPrompt() error {
	for _, name := range r.promptFields() {
		v, ok := r.Doc.Get(name)
		if !ok {
			continue
		}
		if v.Kind() == '"' {
			if name == "input_ids" || name == "input_embeds" {
				return invalid(name, "%s must be a list", name)
			}
			return nil
		}
		if v.Kind() != '[' {
			return invalid(name, "%s must be a string or a list", name)
		}
		first, ok := v.First()
		if !ok {
			return invalid(name, "%s must not be empty", name)
		}
		if name == "input_embeds" {
			if first, ok = first.First(); !ok {
				return invalid(name, "input_embeds must be a list of lists of numbers")
			}
			r.Batch = first.Kind() == '['
		} else {
			r.Batch = first.Kind() == '"' || first.Kind() == '['
		}
		if r.Batch {
			r.Items = v.Len()
		}
		return nil
	}
	return nil // the engine says what is missing
}

func (r *Request) readRid() error {
	v, ok := r.Doc.Get("rid")
	if !ok {
		return nil
	}
	switch v.Kind() {
	case '"':
		s, ok := v.Text()
		if !ok {
			return invalid("rid", "rid must be a string or a list of strings")
		}
		r.Rid = s
	case '[':
		for _, el := range v.All() {
			s, ok := el.Text()
			if !ok || s == "" {
				return invalid("rid", "rid must be a string or a list of non-empty strings")
			}
			r.Rids = append(r.Rids, s)
		}
		if len(r.Rids) != r.Items || !r.Batch {
			return invalid("rid", "a list of rids must be as long as the batch")
		}
	default:
		return invalid("rid", "rid must be a string or a list of strings")
	}
	return nil
}
