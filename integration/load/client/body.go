package client

import (
	"fmt"
	"io"
	"strings"
)

// Body describes the request of a job.
type Body struct {
	Path    string // /generate, /v1/chat/completions or /v1/completions
	Bytes   int    // size of the JSON
	Stream  bool
	Chunked bool // Transfer-Encoding: chunked instead of a Content-Length
}

// fillBlock is the unit large bodies are written in: a body is never held whole.
const fillBlock = 64 << 10

// edges are the JSON before and after the text that fills the body up.
func (b Body) edges() (head, tail string) {
	stream := fmt.Sprintf(`"stream":%t`, b.Stream)
	switch b.Path {
	case "/v1/chat/completions":
		return `{"model":"bench","messages":[{"role":"user","content":"`, `"}],"max_tokens":64,` + stream + `}`
	case "/v1/completions":
		return `{"model":"bench","prompt":"`, `","max_tokens":64,` + stream + `}`
	default:
		return `{"text":"`, `","sampling_params":{"max_new_tokens":64},` + stream + `}`
	}
}

// write sends the request, head and body, to w.
func (b Body) write(w io.Writer, host string) error {
	head, tail := b.edges()
	fill := max(0, b.Bytes-len(head)-len(tail))
	framing := fmt.Sprintf("Content-Length: %d", len(head)+fill+len(tail))
	if b.Chunked {
		framing = "Transfer-Encoding: chunked"
	}
	start := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n", b.Path, host, framing)
	if _, err := io.WriteString(w, start); err != nil {
		return err
	}
	pieces := []string{head}
	block := strings.Repeat("a", min(fill, fillBlock))
	for ; fill > 0; fill -= len(block) {
		block = block[:min(fill, len(block))]
		pieces = append(pieces, block)
	}
	for _, p := range append(pieces, tail) {
		if b.Chunked {
			p = fmt.Sprintf("%x\r\n%s\r\n", len(p), p)
		}
		if _, err := io.WriteString(w, p); err != nil {
			return err
		}
	}
	if b.Chunked {
		_, err := io.WriteString(w, "0\r\n\r\n")
		return err
	}
	return nil
}
