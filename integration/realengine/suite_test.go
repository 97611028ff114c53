//go:build realengine

// Package realengine runs Tandem with one SGLang prefill engine and one decode
// engine that compute and move KV on this machine's CPU, and with a second
// prefill engine where engines are made to fail. It owns the engines
// (engines.sh) and the tandem process under test; what a client must see is in
// package cases, and here for what only real engines show.
//
// It is built with the tag realengine and run by run.sh: the engines need about
// nine gigabytes of disk and some minutes, so no other test run includes it.
package realengine

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// Where engines.sh starts the engines.
const (
	prefill       = "http://127.0.0.1:8300"
	decode        = "http://127.0.0.1:8301"
	bootstrapHost = "127.0.0.1"
	bootstrapPort = 8998

	secondBootstrapPort = 8999
)

// Bounds of starting and stopping.
const (
	enginesStart = 20 * time.Minute // both, on a busy machine
	routerStart  = 2 * time.Minute
	routerStop   = 30 * time.Second
)

// TestTandemWithRealEngines runs every case, one after the other, and requires
// the engines to be idle and Tandem to end in order afterwards.
func TestTandemWithRealEngines(t *testing.T) {
	startEngines(t, firstPrefill, onlyDecode)
	b := cases.Backend{Router: startRouter(t), Prefill: prefill, Decode: decode, Real: true}
	t.Run("both backends", func(t *testing.T) { cases.Run(t, b, cases.All()) })
	t.Run("real engines", func(t *testing.T) { cases.Run(t, b, onRealEngines()) })
	t.Run("departures", func(t *testing.T) { departures(t, b) })
	cases.RequireIdle(t, b, 5*time.Second)
}

// TestTandemWhenEnginesFail runs what happens to calls when engines die or fall
// silent, with a second prefill engine to go to.
func TestTandemWhenEnginesFail(t *testing.T) {
	startEngines(t, firstPrefill, secondPrefill, onlyDecode)
	f := failures{router: startRouter(
		t, "--prefill", secondPrefill.url, strconv.Itoa(secondBootstrapPort),
		"--policy", "round_robin", "--health-check-interval-secs", strconv.Itoa(int(probed.Seconds())),
	)}
	f.run(t)
}

// startEngines starts those engines that do not run, and stops them at the end.
func startEngines(t *testing.T, list ...engine) {
	var names []string
	for _, e := range list {
		if _, err := engines(t.Context(), "status", e.name); err != nil {
			names = append(names, e.name)
		}
	}
	if len(names) == 0 {
		return
	}
	t.Cleanup(func() {
		out, err := engines(context.Background(), "stop", names...)
		assert.NoError(t, err, out)
	})
	ctx, cancel := context.WithTimeout(t.Context(), enginesStart)
	defer cancel()
	out, err := engines(ctx, "start", names...)
	require.NoError(t, err, out)
	t.Logf("engines.sh start: %s", out)
}

// startRouter builds Tandem, starts it on a free port before the first pair of
// engines and what more its arguments name, and returns its URL. At the end it
// has to leave in order.
func startRouter(t *testing.T, more ...string) string {
	binary := filepath.Join(t.TempDir(), "tandem")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/tandem").CombinedOutput()
	require.NoError(t, err, "%s", out)

	cmd := exec.Command(
		binary, "--pd-disaggregation", "--prefill", prefill, strconv.Itoa(bootstrapPort), "--decode", decode,
		"--host", "127.0.0.1", "--port", "0",
	)
	cmd.Args = append(cmd.Args, more...)
	log, err := os.Create(filepath.Join(t.TempDir(), "tandem.log"))
	require.NoError(t, err)
	defer log.Close()
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make(chan string, 1)
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if _, url, ok := strings.Cut(lines.Text(), "listens on "); ok {
				said <- url
			}
		}
	}()
	t.Cleanup(func() {
		stopRouter(t, cmd, said)
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the end of Tandem's log:\n%s", text[max(0, len(text)-20_000):])
		}
	})

	select {
	case url := <-said:
		require.NotEmpty(t, url, "tandem ended before it listened")
		for end := time.Now().Add(routerStart); cases.Get(t, url+"/readiness").Status != http.StatusOK; {
			require.True(t, time.Now().Before(end), "tandem is not ready")
			time.Sleep(200 * time.Millisecond)
		}
		return url
	case <-time.After(routerStart):
		require.Fail(t, "tandem does not listen")
		return ""
	}
}

// stopRouter tells Tandem to end and requires it to do so without an error.
func stopRouter(t *testing.T, cmd *exec.Cmd, said <-chan string) {
	assert.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	kill := time.AfterFunc(routerStop, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	for range said { // until its output ends, which Wait must not cut
	}
	assert.NoError(t, cmd.Wait(), "tandem did not end in order")
}
