package registry

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
)

// What an operator who says nothing has said, as the gateway has it.
const (
	DefaultPriority = 50
	DefaultCost     = 1.0
)

// maxHost bounds a worker's HOST:PORT, in bytes: a name has 253 at most, an address
// less, and a port 6 with its colon.
const maxHost = 253 + 6

// Spec is a worker as a source describes it. Two specs with one URL are the same
// worker.
type Spec struct {
	// ID names the worker; empty for one that is made of the URL.
	ID   pd.WorkerID
	URL  string // scheme://host:port, see [ParseURL]
	Role pd.Role
	// Bootstrap is where a prefill's bootstrap server is, if not at the URL's host
	// and a port that is not known: PORT, HOST:PORT or none, see
	// [bootstrap.Resolve].
	Bootstrap string
	// DPSize is the number of the engine's data-parallel ranks; 0 for what the
	// engine says.
	DPSize int
	// Model is the name by which requests ask for the worker; empty for what the
	// engine says.
	Model  string
	APIKey string // of the worker; empty for the registry's
	// Priority, Cost and Labels are shown, and given to the worker.
	Priority int
	Cost     float64
	Labels   map[string]string
	// Unchecked has the worker take part from the start, and always: nobody looks
	// at its health, and nothing is learned of it.
	Unchecked bool
}

// A Source says which workers there are.
type Source interface {
	// Name stands for the source in logs, in metrics and with its workers.
	Name() string
	// Run calls apply with all workers that the source knows of: when it knows
	// them first, and whenever that changes. Applying the same list again does
	// nothing. It returns when ctx has ended and everything that it has started.
	// What goes wrong on the way is the source's to report and to try again; what
	// it returns before ctx ends is final.
	Run(ctx context.Context, apply func([]Spec)) error
}

// ParseURL is the scheme://host:port of a worker, in lower case: one form for each
// address, since the URL is what a worker is known by. Its errors show nothing of the
// text, which may hold a password.
func ParseURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return "", errors.New("want http://HOST:PORT or https://HOST:PORT")
	}
	switch u.Scheme {
	case "http", "https":
	case "grpc":
		return "", errors.New("gRPC workers are not supported by this version: want http:// or https://")
	default:
		return "", errors.New("want a URL that starts with http:// or https://")
	}
	if len(u.Host) > maxHost {
		return "", errors.New("its host is too long to be one")
	}
	if u.User != nil {
		return "", errors.New("a worker's URL must hold no credentials")
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("a worker's URL must end after HOST:PORT")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return "", errors.New("want a port from 1 to 65535")
		}
	}
	if _, err := bootstrap.Host(text); err != nil {
		return "", err
	}
	base := url.URL{Scheme: u.Scheme, Host: strings.ToLower(strings.TrimSuffix(u.Host, ":"))}
	return base.String(), nil
}
