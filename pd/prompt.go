package pd

import (
	"encoding/binary"

	"github.com/tandem-pd/tandem/pd/patch"
)

// Marks between the parts of a prompt: no text holds them in a way that matters,
// since equal prompts give equal bytes and that is all that is asked.
const (
	markTurn = 0x1e // before a turn, the tools, or what comes before the prompt
	markPart = 0x1f // between the role and the parts of a turn
)

// Prompt is the prompt as bytes: two requests that an engine reads the same
// beginning of begin with the same bytes here, however their JSON is written. It
// is all of a conversation in the order in which a chat template has it: tools,
// then every turn with its role, its text parts as text, other parts and tool
// calls as their JSON. Token ids are four bytes each, little-endian. What keeps
// caches apart comes first: model, adapter, cache salt. Of a batch it is the first
// prompt. Of a body of Other it is the fields that engines are known to read a
// prompt from, or else the whole of it. It is read once and belongs to the request.
func (r *Request) Prompt() []byte {
	if r.prompt == nil {
		r.prompt = r.readPromptText()
	}
	return r.prompt
}

func (r *Request) readPromptText() []byte {
	if r.Doc == nil {
		return r.body
	}
	out := make([]byte, 0, len(r.Doc.Bytes()))
	for _, name := range []string{"model", "lora_path", "cache_salt", "extra_key"} {
		out = append(out, markTurn)
		if v, ok := r.Doc.Get(name); ok {
			out = appendPart(out, v)
		}
	}
	switch r.Endpoint {
	case Chat:
		return r.appendConversation(out)
	case Other:
		return r.appendOther(out)
	}
	for _, name := range r.promptFields() {
		if v, ok := r.Doc.Get(name); ok {
			if r.Batch {
				v, _ = v.First()
			}
			return appendPrompt(append(out, markTurn), v)
		}
	}
	return out
}

func (r *Request) appendConversation(out []byte) []byte {
	if tools, ok := r.Doc.Get("tools"); ok {
		out = append(append(out, markTurn), tools.Raw...)
	}
	if messages, ok := r.Doc.Get("messages"); ok {
		return appendTurns(out, messages)
	}
	return out
}

// appendTurns appends what holds turns: a list of them, or of texts, or a text.
func appendTurns(out []byte, v patch.Value) []byte {
	if v.Kind() != '[' {
		return appendPart(append(out, markTurn), v)
	}
	for _, message := range v.All() {
		out = append(out, markTurn)
		turn, err := message.Object()
		if err != nil {
			out = appendPart(out, message) // a text, or what the engine will refuse
			continue
		}
		before := len(out)
		for _, name := range []string{"role", "name", "content", "tool_calls", "tool_call_id"} {
			if v, ok := turn.Get(name); ok {
				out = appendContent(append(out, markPart), v)
			}
		}
		if len(out) == before {
			out = appendObject(out, message, turn) // a part, a document
		}
	}
	return out
}

// appendOther appends the fields that hold a prompt somewhere, in the order in
// which a template would have them, or the whole body where there is none: that
// of a transcription or of an engine's own invention.
func (r *Request) appendOther(out []byte) []byte {
	known := false
	for _, name := range []string{
		"tools", "instructions", "system", "messages", // a conversation's
		"prompt", "text", "input", "input_ids", "query", // one prompt's
		"documents", "items", "tokens", // what it is held against, or what is to be read back
	} {
		v, ok := r.Doc.Get(name)
		if !ok {
			continue
		}
		known = true
		switch first, _ := v.First(); {
		case name == "tools":
			out = append(append(out, markTurn), v.Raw...)
		case v.Kind() == '[' && first.Kind() != '"' && first.Kind() != '{':
			out = appendPrompt(append(out, markTurn), v)
		default:
			out = appendTurns(out, v)
		}
	}
	if !known {
		return r.body
	}
	return out
}

// appendContent appends a member of a turn: a list of parts as its texts.
func appendContent(out []byte, v patch.Value) []byte {
	if v.Kind() != '[' {
		return appendPart(out, v)
	}
	for _, part := range v.All() {
		out = append(out, markPart)
		object, err := part.Object()
		if err != nil {
			out = append(out, part.Raw...)
			continue
		}
		out = appendObject(out, part, object)
	}
	return out
}

// appendObject appends the text of an object that has one, or else all of it.
func appendObject(out []byte, v patch.Value, object *patch.Doc) []byte {
	if text, ok := object.Get("text"); ok {
		return appendPart(out, text)
	}
	return append(out, v.Raw...)
}

// appendPrompt appends a prompt that is a text or a list of token ids.
func appendPrompt(out []byte, v patch.Value) []byte {
	if v.Kind() != '[' {
		return appendPart(out, v)
	}
	for _, token := range v.All() {
		id, ok := token.Int()
		if !ok {
			return append(out, v.Raw...) // embeddings, or what the engine will refuse
		}
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	return out
}

// appendPart appends a string's text, or any other value as it is written.
func appendPart(out []byte, v patch.Value) []byte {
	if out, ok := v.AppendText(out); ok {
		return out
	}
	return append(out, v.Raw...)
}
