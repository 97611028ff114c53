package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/load/client"
)

// TestMain lets the test binary stand for the bench's own processes, and for a
// router: "router PORT PREFILL DECODE".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "router" {
		panic(http.ListenAndServe("127.0.0.1:"+os.Args[2], twoLegs(os.Args[3], os.Args[4])))
	}
	if len(os.Args) > 1 && (os.Args[1] == "engine" || os.Args[1] == "client") {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// twoLegs is the least a router does: the same body to both, decode's answer
// back, and either leg ended by the other's failure or the client's leaving.
func twoLegs(prefill, decode string) http.Handler {
	to, err := url.Parse(decode)
	if err != nil {
		panic(err)
	}
	toDecode := httputil.NewSingleHostReverseProxy(to)
	toDecode.FlushInterval = -1
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil || req.Method != http.MethodPost {
			return
		}
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			leg, _ := http.NewRequestWithContext(ctx, http.MethodPost, prefill+req.URL.Path, bytes.NewReader(body))
			resp, err := http.DefaultClient.Do(leg)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				cancel()
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.TransferEncoding = nil
		rec := &statusWriter{ResponseWriter: w}
		toDecode.ServeHTTP(rec, req.WithContext(ctx))
		if rec.status != http.StatusOK {
			cancel()
		}
		<-done
	})
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestARunMeasuresARouterFromEndToEnd(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "report.json")
	var out, progress strings.Builder
	code := run(t.Context(), []string{
		"-rounds", "2", "-slice", "200ms", "-settle", "100ms", "-large-mb", "1", "-large-clients", "2", "-fault-runs", "3", "-streams", "20",
		"-run", "post-1k,sse-flat,latency,large-chunked,stalled,faults", "-routers", "two-legs", "-out", file,
		"-router", "two-legs /health " + self + " router {port} {prefill} {decode}",
	}, nil, &out, &progress)
	require.Zero(t, code, progress.String())
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var got report
	require.NoError(t, json.Unmarshal(b, &got))
	require.Len(t, got.Load, 4, "three scenarios, and the direct calls of latency")
	for _, l := range got.Load {
		assert.Zero(t, l.Summary.Errors, l.Scenario)
		assert.Len(t, l.Slices, 2, l.Scenario)
		assert.Positive(t, l.Slices[0].Result.Requests, l.Scenario)
	}
	require.Len(t, got.Large, 1)
	assert.Equal(t, 2, got.Large[0].Result.Requests)
	assert.Equal(t, int64(2<<20), got.Large[0].Payload)
	require.Len(t, got.Stalled, 1)
	assert.Equal(t, 20, got.Stalled[0].Result.Requests)
	require.Len(t, got.Faults, 5)
	for _, f := range got.Faults {
		// A machine that stops for two seconds makes a miss, not three.
		assert.NotEmpty(t, f.Result.Freed, "%s: %v", f.Fault, f.Result.Samples)
	}
	assert.Contains(t, out.String(), "| post-1k | two-legs |")
}

func TestFlagsThatCannotBeMeantAreRefusedTogether(t *testing.T) {
	_, err := parseFlags([]string{"-rounds", "0", "-run", "post-1k,tea", "-slice", "1ms", "-routers", "bus", "more"}, io.Discard)
	for _, want := range []string{"-rounds: 0", `"tea"`, "-slice: 1ms", `"bus"`, `"more"`} {
		assert.ErrorContains(t, err, want)
	}
}

func TestRouterCommandLinesAreTemplates(t *testing.T) {
	r, err := parseRouter("mine /ready /bin/mine --port {port} --prefill {prefill} none --x={dir}/{admin}")
	require.NoError(t, err)
	assert.Equal(t, "mine", r.name)
	assert.Equal(t, "/ready", r.ready)
	assert.Equal(t, []string{"/bin/mine", "--port", "1", "--prefill", "http://p", "none", "--x=/d/2"},
		r.fill(map[string]string{"port": "1", "admin": "2", "prefill": "http://p", "dir": "/d"}))
	for _, bad := range []string{"", "mine", "mine ready /bin/mine", "mine /ready"} {
		_, err := parseRouter(bad)
		assert.Error(t, err, bad)
	}
}

func TestPeersAreThoseThatAreInstalled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "smg", "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "smg", "bin", "smg"), nil, 0o755))
	var names []string
	for _, r := range builtIn(dir) {
		names = append(names, r.name)
	}
	assert.Equal(t, []string{"tandem", "nginx", "smg"}, names)
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	row := func(cpu ...time.Duration) *loadRow {
		l := &loadRow{}
		for _, c := range cpu {
			l.Slices = append(l.Slices, slice{CPU: c, Result: client.Result{Requests: 1000, Elapsed: time.Second}})
		}
		return l
	}
	// The machine halves its speed after the first round, for both alike.
	got := row(100*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond).
		summarize(row(50*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond))
	assert.Equal(t, number(200), got.CPUPerUnit)
	assert.Equal(t, number(2), got.CPUOverNginx)
	assert.Equal(t, number(1000), got.Rate)
	assert.Equal(t, "-", got.P50.text(1), "only a paced scenario has latencies")
}

func TestARowWithoutItsBaselineHasNoRatio(t *testing.T) {
	l := &loadRow{Slices: []slice{{Result: client.Result{Errors: 3, Elapsed: time.Second}}}}
	got := l.summarize(nil)
	assert.Equal(t, 3, got.Errors)
	assert.True(t, math.IsNaN(float64(got.CPUPerUnit)))
	b, err := json.Marshal(got)
	require.NoError(t, err)
	assert.Contains(t, string(b), `"CPUOverNginx":null`)
}
