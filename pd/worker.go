package pd

import (
	"net/http"
	"strings"
)

// WorkerID names a worker in logs, errors and answers; it stands in for the
// worker's address wherever a client could see it.
type WorkerID string

// Role is the part a worker plays for a request.
type Role uint8

// The two roles of a pair, and that of an engine which does the whole work.
const (
	Prefill Role = iota
	Decode
	Regular
)

var roleNames = [...]string{"prefill", "decode", "regular"}

// String is "prefill", "decode" or "regular".
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return "unknown"
}

// ParseRole is the role of that name.
func ParseRole(name string) (Role, bool) {
	for i, known := range roleNames {
		if name == known {
			return Role(i), true
		}
	}
	return 0, false
}

// Worker is one engine, or one data-parallel rank of one. A *Worker is immutable and
// shared.
type Worker struct {
	ID   WorkerID
	Role Role
	URL  string // scheme://host:port, no trailing slash

	// BootstrapHost and BootstrapPort are where decode workers find a prefill
	// worker's bootstrap server. IPv6 hosts are bracketed. Port 0 is sent as
	// null, which makes decode use its own default.
	BootstrapHost string
	BootstrapPort int

	// APIKey replaces the client's Authorization on every call to this worker.
	APIKey string
	// CloseOnly drops a leg by closing its socket alone, without an abort call.
	CloseOnly bool
	// DPSize is the number of data-parallel ranks, 0 or 1 when there is one.
	DPSize int
	// Rank is the one data-parallel rank that this worker stands for, where each
	// rank is a target of its own; nil for all of them.
	Rank *int

	// Model is the name of the model that is served; empty while it is not known,
	// and then it may be any.
	Model string
	// KVTokens is the room of the engine's KV cache in tokens, and PageSize the
	// tokens in one of its pages; 0 while they are not known.
	KVTokens, PageSize int

	// Unchecked has nobody look at the worker's health: it takes part from the
	// start, and always.
	Unchecked bool

	// Priority, Cost and Labels are what operators say of the worker. Nothing is
	// decided by them; a policy of one's own may.
	Priority int
	Cost     float64
	Labels   map[string]string
}

// Authorize sets the worker's own key in the header of a call to it, if it has one.
func (w *Worker) Authorize(h http.Header) {
	if w.APIKey != "" {
		h.Set("Authorization", "Bearer "+w.APIKey)
	}
}

// Addr is the host:port of the worker's URL.
func (w *Worker) Addr() string {
	_, rest, ok := strings.Cut(w.URL, "://")
	if !ok {
		rest = w.URL
	}
	addr, _, _ := strings.Cut(rest, "/")
	return addr
}
