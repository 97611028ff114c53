package pd

import (
	"net/http"
	"strings"
)

// hopByHop are the headers that concern one connection only.
var hopByHop = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// Outbound is the set of a client's headers that go to the engines: the
// end-to-end ones, less Expect, Accept-Encoding (identity is asked for) and the
// headers by which an engine would override the router's own body fields. The
// result is a copy.
func Outbound(in http.Header) http.Header {
	out := in.Clone()
	if out == nil {
		out = make(http.Header)
	}
	dropHops(out)
	for name := range out {
		lower := strings.ToLower(name)
		if !strings.HasPrefix(lower, "x-override-") {
			continue
		}
		field := strings.TrimPrefix(lower, "x-override-")
		if field == "rid" || strings.HasPrefix(field, "bootstrap-") || strings.HasSuffix(field, "dp-rank") {
			delete(out, name)
		}
	}
	for _, name := range []string{"Expect", "Host", "Content-Length"} {
		out.Del(name)
	}
	out.Set("Accept-Encoding", "identity")
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // keeps net/http from naming itself
	}
	return out
}

// Inbound is the set of an engine's headers that go to the client; the result
// is a copy without Content-Length, which is the server's to set. A name with a
// space, which net/http lets through, is left out: "Content-Length " is nothing
// here and may be a length to whoever comes next.
func Inbound(in http.Header) http.Header {
	out := in.Clone()
	dropHops(out)
	out.Del("Content-Length")
	for name := range out {
		if strings.Contains(name, " ") {
			delete(out, name)
		}
	}
	return out
}

func dropHops(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		h.Del(name)
	}
}
