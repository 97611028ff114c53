package pd

import "strings"

// WorkerID names a worker in logs, errors and answers; it stands in for the
// worker's address wherever a client could see it.
type WorkerID string

// Role is the part a worker plays in a pair.
type Role uint8

// The two roles of a pair.
const (
	Prefill Role = iota
	Decode
)

// String is "prefill" or "decode".
func (r Role) String() string {
	if r == Prefill {
		return "prefill"
	}
	return "decode"
}

// Worker is one engine. A *Worker is immutable and shared.
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
