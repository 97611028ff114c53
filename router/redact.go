package router

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tandem-pd/tandem/pd"
)

// secret reports whether a member of an engine's description must not be shown.
// The names are those under which an engine holds keys and passwords; a limit
// such as max_total_tokens is none.
func secret(name string) bool {
	name = strings.ToLower(name)
	for _, end := range []string{
		"api_key", "access_key", "secret_key", "private_key", "password", "passwd", "secret",
		"hf_token", "auth_token", "access_token", "bearer_token", "api_token", "secret_token", "credentials",
	} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return name == "token" || name == "authorization"
}

// publicJSON is what worker from says, without its secrets, at any depth, and
// with ids in the place of the workers' addresses. Order and numbers stay.
func publicJSON(doc []byte, from *pd.Worker, workers []*pd.Worker) ([]byte, error) {
	mask := addressMask(from, workers)
	in := jsontext.NewDecoder(bytes.NewReader(doc), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
		jsontext.PreserveRawStrings(true))
	for {
		kind, length := in.StackIndex(in.StackDepth())
		isName := kind == '{' && length%2 == 0
		token, err := in.ReadToken()
		if errors.Is(err, io.EOF) && out.Len() > 0 {
			return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
		}
		if err != nil {
			return nil, err
		}
		if token.Kind() == '"' {
			text := token.String()
			if isName && secret(text) {
				if err := in.SkipValue(); err != nil {
					return nil, err
				}
				continue
			}
			if masked := mask(text); masked != text {
				token = jsontext.String(masked)
			}
		}
		if err := enc.WriteToken(token); err != nil {
			return nil, err
		}
	}
}

// addressMask replaces the workers' addresses in a text by their ids: URLs and
// host:port wherever they stand, a bare host where it is the whole text. A host
// that several workers share is taken for that of the one that speaks.
func addressMask(from *pd.Worker, workers []*pd.Worker) func(string) string {
	type naming struct{ text, id string }
	var names []naming
	hosts := make(map[string]string)
	for _, w := range workers {
		id := string(w.ID)
		names = append(names, naming{w.URL, id}, naming{w.Addr(), id})
		hosts[bareHost(w)] = id
	}
	hosts[bareHost(from)] = string(from.ID)
	delete(hosts, "")
	// The longest first: port 3000 is how port 30000 begins.
	slices.SortStableFunc(names, func(a, b naming) int { return len(b.text) - len(a.text) })
	var pairs []string
	for _, n := range names {
		pairs = append(pairs, n.text, n.id)
	}
	replacer := strings.NewReplacer(pairs...)
	return func(s string) string {
		if id, ok := hosts[s]; ok {
			return id
		}
		return replacer.Replace(s)
	}
}

// bareHost is the host of a worker's address, without its port.
func bareHost(w *pd.Worker) string {
	addr := w.Addr()
	if i := strings.LastIndexByte(addr, ':'); i >= 0 {
		return addr[:i]
	}
	return addr
}
