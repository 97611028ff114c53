package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/policy"
	"github.com/tandem-pd/tandem/pools/registry"
)

// config is what a router is built from. [commandLine] fills it in.
type config struct {
	host string
	port int

	prefill, decode             []*pd.Worker
	regular                     bool         // the workers are whole engines
	whole                       []*pd.Worker // those, where they are
	policy                      string       // theirs
	prefillPolicy, decodePolicy string

	requestIDHeaders []string
	maxPayload       int64
	maxBodyMemory    int64
	maxEvent         int
	maxSamples       int

	failure  failure
	policies policies
	found    found

	closeOnly bool   // engines are freed by closing alone
	dpAware   bool   // each data-parallel rank is a target
	stateFile string // where what the API has added is kept; empty for nowhere

	apiKey     string         // that clients must have; empty for none
	workerKey  string         // that workers are sent; empty for the client's
	origins    []string       // whose pages may call
	serverCert *keyPair       // shown to clients; nil for no TLS
	clientCert *keyPair       // shown to workers
	roots      *x509.CertPool // trusted in workers; nil for the system's

	connect    time.Duration
	request    time.Duration
	firstEvent time.Duration
	streamIdle time.Duration
	writeStall time.Duration
	settle     time.Duration
	grace      time.Duration

	logLevel, logDir string

	miniLB     bool // a line per request on stdout
	externalDP bool // the dialect names data-parallel ranks

	warnings []string // said once, before listening
}

func defaultConfig() *config {
	return &config{
		host: "0.0.0.0", port: 30000,
		policy: policy.Default, prefillPolicy: policy.Default, decodePolicy: policy.Default,
		requestIDHeaders: []string{"x-request-id", "x-correlation-id", "x-trace-id", "request-id"},
		maxPayload:       512 << 20,
		maxBodyMemory:    4 << 30,
		maxEvent:         64 << 20,
		maxSamples:       128,
		failure:          defaultFailure(),
		policies:         defaultPolicies(),
		found:            defaultFound(),
		connect:          2 * time.Second,
		request:          1800 * time.Second,
		firstEvent:       60 * time.Second,
		streamIdle:       300 * time.Second,
		writeStall:       300 * time.Second,
		settle:           5 * time.Second,
		grace:            180 * time.Second,
		logLevel:         "info",
	}
}

// workers lists all of them, of pairs prefill first.
func (c *config) workers() []*pd.Worker { return slices.Concat(c.prefill, c.decode, c.whole) }

func (c *config) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// addWorker adds a worker, which is named by its role and place: an id shows in
// answers and must not be an address.
func addWorker(pool *[]*pd.Worker, w *pd.Worker) error {
	for _, other := range *pool {
		if other.URL == w.URL {
			return errors.New("this worker is given twice")
		}
	}
	w.ID = pd.WorkerID(fmt.Sprintf("%s-%d", w.Role, len(*pool)))
	*pool = append(*pool, w)
	return nil
}

// prefillValue is URL [PORT|HOST:PORT|none].
func prefillValue(pool *[]*pd.Worker) *flagValue {
	return &flagValue{typ: "URL [PORT|none]", words: true, parse: func(text string) error {
		words := strings.Fields(text)
		switch {
		case len(words) > 2 && strings.Contains(words[2], "://"):
			return errors.New("want URL [PORT|HOST:PORT|none]; each worker has a --prefill of its own")
		case len(words) == 0 || len(words) > 2:
			return errors.New("want URL [PORT|HOST:PORT|none]")
		}
		base, err := registry.ParseURL(words[0])
		if err != nil {
			return err
		}
		at := ""
		if len(words) == 2 {
			at = words[1]
		}
		host, port, err := bootstrap.Resolve(base, at)
		if err != nil {
			return err
		}
		return addWorker(pool, &pd.Worker{Role: pd.Prefill, URL: base, BootstrapHost: host, BootstrapPort: port})
	}}
}

// decodeValue is one URL.
func decodeValue(pool *[]*pd.Worker) *flagValue {
	return &flagValue{typ: "URL", parse: func(text string) error {
		base, err := registry.ParseURL(text)
		if err != nil {
			return err
		}
		return addWorker(pool, &pd.Worker{Role: pd.Decode, URL: base})
	}}
}

// urlsValue is a list of URLs, to which each further one adds.
func urlsValue(dst *[]string) *flagValue {
	return &flagValue{typ: "URL ...", words: true, parse: func(text string) error {
		*dst = append(*dst, strings.Fields(text)...)
		return nil
	}}
}
