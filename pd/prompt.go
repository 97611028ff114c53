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
// prompt. It is read once and belongs to the request.
func (r *Request) Prompt() []byte {
	if r.prompt == nil {
		r.prompt = r.readPromptText()
	}
	return r.prompt
}

func (r *Request) readPromptText() []byte {
	out := make([]byte, 0, len(r.Doc.Bytes()))
	for _, name := range []string{"model", "lora_path", "cache_salt", "extra_key"} {
		out = append(out, markTurn)
		if v, ok := r.Doc.Get(name); ok {
			out = appendPart(out, v)
		}
	}
	if r.Endpoint == Chat {
		return r.appendConversation(out)
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
	messages, ok := r.Doc.Get("messages")
	if !ok {
		return out
	}
	for _, message := range messages.All() {
		out = append(out, markTurn)
		turn, err := message.Object()
		if err != nil {
			out = append(out, message.Raw...) // the engine will say what it is
			continue
		}
		for _, name := range []string{"role", "name", "content", "tool_calls", "tool_call_id"} {
			if v, ok := turn.Get(name); ok {
				out = appendContent(append(out, markPart), v)
			}
		}
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
		if text, ok := object.Get("text"); ok {
			out = appendPart(out, text)
			continue
		}
		out = append(out, part.Raw...)
	}
	return out
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
