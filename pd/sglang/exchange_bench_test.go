package sglang_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/legs"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/policy"
)

// instant is a transport whose workers answer at once, from memory.
type instant struct{ prefill, decode, contentType string }

func (i instant) RoundTrip(req *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, req.Body)
	_ = req.Body.Close()
	body := i.decode
	if strings.HasPrefix(req.URL.Host, "prefill") {
		body = i.prefill
	}
	return &http.Response{
		StatusCode: 200, ContentLength: int64(len(body)), Request: req,
		Header: http.Header{"Content-Type": {i.contentType}, "Server": {"uvicorn"}},
		Body:   io.NopCloser(strings.NewReader(body)),
	}, nil
}

func newBenchOrchestrator(b *testing.B, t http.RoundTripper) *pd.Orchestrator {
	p, err := policy.ByName("power_of_two")
	require.NoError(b, err)
	set, err := pools.New([]*pd.Worker{
		{ID: "prefill-0", Role: pd.Prefill, URL: "http://prefill:1", BootstrapHost: "prefill", BootstrapPort: 8998},
		{ID: "decode-0", Role: pd.Decode, URL: "http://decode:1"},
	}, pools.Options{Policies: pools.Share(p, p)})
	require.NoError(b, err)
	return &pd.Orchestrator{
		Planner:  set,
		Dialect:  &sglang.Dialect{Rooms: new(bootstrap.Rooms), Aborts: &legs.Aborter{Transport: t}},
		Upstream: pd.Upstream{Transport: t, Fresh: t},
	}
}

// BenchmarkExchange is what one request costs without a network: a body of 1 KB
// over a pair that answers at once, plain, and per event of a stream.
func BenchmarkExchange(b *testing.B) {
	text := strings.Repeat("lorem ipsum ", 80)
	header := pd.Outbound(http.Header{"Content-Type": {"application/json"}})
	run := func(b *testing.B, o *pd.Orchestrator, body []byte) {
		req, err := pd.NewRequest(pd.Generate, body)
		require.NoError(b, err)
		req.Header = header
		resp, err := o.Serve(b.Context(), req)
		require.NoError(b, err)
		_, err = io.Copy(io.Discard, struct{ io.Reader }{resp.Body})
		require.NoError(b, err)
	}
	b.Run("plain", func(b *testing.B) {
		o := newBenchOrchestrator(b, instant{prefillOK, decodeOK, "application/json"})
		body := []byte(`{"text":"` + text + `","sampling_params":{"max_new_tokens":8}}`)
		b.ReportAllocs()
		for b.Loop() {
			run(b, o, body)
		}
	})
	b.Run("stream", func(b *testing.B) {
		const events = 1000
		stream := bytes.Repeat([]byte(event1), events)
		o := newBenchOrchestrator(b, instant{event1 + done, string(stream) + done, "text/event-stream"})
		body := []byte(`{"text":"` + text + `","stream":true}`)
		start := time.Now()
		n := 0
		b.ReportAllocs()
		for b.Loop() {
			run(b, o, body)
			n += events
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(n), "ns/event")
	})
}
