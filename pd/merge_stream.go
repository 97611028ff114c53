package pd

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-pd/tandem/pd/patch"
	"github.com/tandem-pd/tandem/pd/sse"
)

// doneEvent closes a merged stream whose samples all closed theirs so.
const doneEvent = "data: [DONE]\n\n"

// sampleEvent is one event of a sample's stream, whose payload is a JSON object.
type sampleEvent struct {
	raw        []byte
	start, end int // of the payload in raw
	doc        *patch.Doc
}

// readEvent finds the payload of an event. ok is false for an event without
// data, such as a comment. The error is one of an event that cannot be given to
// its sample: of several data lines, or with a payload that is no JSON object.
func readEvent(raw []byte) (e sampleEvent, ok bool, err error) {
	start, end, one := sse.DataSpan(raw)
	if !one {
		if sse.Data(raw) == nil {
			return e, false, nil
		}
		return e, false, errors.New("an event has several data lines")
	}
	doc, err := patch.Scan(raw[start:end:end])
	if err != nil {
		return e, false, fmt.Errorf("payload of an event: %w", err)
	}
	return sampleEvent{raw: raw, start: start, end: end, doc: doc}, true, nil
}

// isError reports whether the event says that its sample has failed.
func (e sampleEvent) isError() bool {
	if _, ok := e.doc.Get("error"); ok {
		return true
	}
	object, _ := e.doc.Get("object")
	text, _ := object.Text()
	return text == "error"
}

// isUsage reports whether the event brings nothing but an OpenAI stream's usage.
func (e sampleEvent) isUsage() bool {
	usage, ok := e.doc.Get("usage")
	choices, _ := e.doc.Get("choices")
	return ok && usage.Kind() == '{' && choices.Len() == 0
}

// with is a copy of the event with another payload.
func (e sampleEvent) with(payload *patch.Payload) []byte {
	size := len(e.raw) - (e.end - e.start) + int(payload.Len())
	dst := bytes.NewBuffer(make([]byte, 0, size))
	dst.Write(e.raw[:e.start])
	writeTo(dst, payload)
	dst.Write(e.raw[e.end:])
	return dst.Bytes()
}

// event is sample j's event as it stands in the merged stream: renumbered, and
// on OpenAI endpoints with the one id and created. created nil leaves that as it
// is. The result is a copy.
func (m merging) event(e sampleEvent, j int, created []byte) ([]byte, error) {
	edit := e.doc.Edit()
	if !m.endpoint.OpenAI() {
		index, err := m.moved(e.doc, j)
		if err != nil {
			return nil, err
		}
		return e.with(withMember(edit, "index", index)), nil
	}
	m.envelope(edit, created)
	var bad error
	err := edit.ReplaceNested("choices", "index", func(_ int, old patch.Value) []byte {
		i, ok := old.Int()
		index, err := m.index(i, j)
		if !ok {
			err = errors.New("the index of a choice is no integer")
		}
		bad = errors.Join(bad, err)
		return index
	})
	if err := errors.Join(bad, err); err != nil {
		return nil, err
	}
	return e.with(edit.Payload()), nil
}

// moved is the merged index of a /generate event. A single prompt's has none.
func (m merging) moved(doc *patch.Doc, j int) ([]byte, error) {
	v, ok := doc.Get("index")
	if !ok {
		return m.index(0, j)
	}
	i, ok := v.Int()
	if !ok {
		return nil, errors.New("the index of an event is no integer")
	}
	return m.index(i, j)
}

func (m merging) envelope(edit *patch.Edit, created []byte) {
	edit.Replace("id", m.id)
	if created != nil {
		edit.Replace("created", created)
	}
}

// usage merges the samples' usage events into one; each may be nil. nil means
// that no sample sent one.
func (m merging) usage(events [][]byte, created []byte) ([]byte, error) {
	var first sampleEvent
	var docs []*patch.Doc
	for _, raw := range events {
		if raw == nil {
			continue
		}
		e, _, err := readEvent(raw)
		if err != nil {
			return nil, err
		}
		if docs == nil {
			first = e
		}
		docs = append(docs, e.doc)
	}
	if docs == nil {
		return nil, nil
	}
	usage, err := mergeUsage(docs)
	if err != nil {
		return nil, err
	}
	edit := first.doc.Edit()
	m.envelope(edit, created)
	edit.Replace("usage", usage)
	return first.with(edit.Payload()), nil
}

// streamMerge merges the events of n samples as they come. It holds what belongs
// to the end of the stream. Any number of samples may use it at a time.
type streamMerge struct {
	merging

	mu      sync.Mutex
	created []byte   // that of the first event, for all
	usages  [][]byte // each sample's last usage event, nil before
	done    []bool   // the sample's stream ended with [DONE]
}

func newStreamMerge(m merging) *streamMerge {
	return &streamMerge{merging: m, usages: make([][]byte, m.n), done: make([]bool, m.n)}
}

// take returns what sample j's event becomes in the merged stream, in memory of
// its own; nil when the event is held back for the end. Events without data pass
// as they came, and so do those that say that the sample has failed.
func (s *streamMerge) take(j int, raw []byte) (event []byte, failed bool, err error) {
	if sse.IsDone(raw) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done[j] = true
		return nil, false, nil
	}
	e, ok, err := readEvent(raw)
	switch {
	case err != nil:
		return nil, false, err
	case !ok:
		return bytes.Clone(raw), false, nil
	case e.isError():
		return bytes.Clone(raw), true, nil
	case s.endpoint.OpenAI() && e.isUsage():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.usages[j] = bytes.Clone(raw)
		return nil, false, nil
	}
	event, err = s.event(e, j, s.createdOf(e.doc))
	return event, false, err
}

func (s *streamMerge) createdOf(doc *patch.Doc) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := doc.Get("created"); ok && s.created == nil {
		s.created = bytes.Clone(v.Raw)
	}
	return s.created
}

// tail is the end of a merged stream that nothing went wrong in: the usage of
// all samples if one of them told its own, and [DONE] if all of them said so.
func (s *streamMerge) tail() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tail, err := s.usage(s.usages, s.created)
	if err != nil {
		return nil, err
	}
	for _, done := range s.done {
		if !done {
			return tail, nil
		}
	}
	return append(tail, doneEvent...), nil
}
