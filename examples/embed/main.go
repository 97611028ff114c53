// Command embed serves /generate over one prefill/decode pair with net/http and
// Tandem as a library: no flags but the workers' addresses, no framework.
//
//	embed http://127.0.0.1:30001 8998 http://127.0.0.1:30002
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

const maxBody = 64 << 20

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: embed PREFILL-URL BOOTSTRAP-PORT DECODE-URL")
	}
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	handler, err := newHandler(os.Args[1], port, os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "127.0.0.1:30080", Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	log.Print("POST http://127.0.0.1:30080/generate")
	log.Fatal(server.ListenAndServe())
}

// newHandler builds the orchestrator: workers, a policy for each role, the
// dialect, and two transports, one of which never reuses a connection.
func newHandler(prefillURL string, bootstrapPort int, decodeURL string) (http.Handler, error) {
	host, err := bootstrap.Host(prefillURL)
	if err != nil {
		return nil, err
	}
	twoChoices, err := policy.ByName("power_of_two")
	if err != nil {
		return nil, err
	}
	set, err := pools.New([]*pd.Worker{
		{ID: "prefill-0", Role: pd.Prefill, URL: prefillURL, BootstrapHost: host, BootstrapPort: bootstrapPort},
		{ID: "decode-0", Role: pd.Decode, URL: decodeURL},
	}, pools.Options{Policies: pools.Share(twoChoices, twoChoices)})
	if err != nil {
		return nil, err
	}
	transport := pd.NewTransport(2*time.Second, true)
	orchestrator := &pd.Orchestrator{
		Planner:  set,
		Dialect:  &sglang.Dialect{Rooms: new(bootstrap.Rooms), Aborts: &legs.Aborter{Transport: transport}},
		Upstream: pd.Upstream{Transport: transport, Fresh: pd.NewTransport(2*time.Second, false)},
		Workers:  set.Workers,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) { generate(orchestrator, w, r) })
	return mux, nil
}

// generate serves one request. Its context ends when the client leaves, and
// with it both legs.
func generate(o *pd.Orchestrator, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, pd.InvalidField("", "the body cannot be read"))
		return
	}
	req, err := pd.NewRequest(pd.Generate, body)
	if err != nil {
		fail(w, err)
		return
	}
	req.Header = pd.Outbound(r.Header)
	resp, err := o.Serve(r.Context(), req)
	if err != nil {
		fail(w, err)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.Status)
	if err := stream(w, resp.Body); err != nil {
		panic(http.ErrAbortHandler) // a cut answer must look cut
	}
}

// stream flushes every read, so that no event waits for the next one.
func stream(w http.ResponseWriter, body io.Reader) error {
	buf := make([]byte, 16<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return fmt.Errorf("write to the client: %w", err)
			}
			w.(http.Flusher).Flush()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func fail(w http.ResponseWriter, err error) {
	e := pd.AsError(err)
	w.Header().Set("Content-Type", "application/json")
	if e.RetryAfter != "" {
		w.Header().Set("Retry-After", e.RetryAfter)
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.JSON(pd.Generate)) // a client that has left hears nothing
}
