//go:build realengine

// Package realengine runs Tandem with one SGLang prefill engine and one decode
// engine that compute and move KV on this machine's CPU. It owns the engines
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
	startEngines(t)
	b := cases.Backend{Router: startRouter(t), Prefill: prefill, Decode: decode, Real: true}
	t.Run("both backends", func(t *testing.T) { cases.Run(t, b, cases.All()) })
	t.Run("real engines", func(t *testing.T) { cases.Run(t, b, onRealEngines()) })
	t.Run("departures", func(t *testing.T) { departures(t, b) })
	cases.RequireIdle(t, b, 5*time.Second)
}

// startEngines starts the engines in TANDEM_E2E_DIR, or where engines.sh keeps
// them, unless they run. Only what it started does it stop.
func startEngines(t *testing.T) {
	script := func(ctx context.Context, command string) error {
		cmd := exec.CommandContext(ctx, "./engines.sh", command)
		if dir := os.Getenv("TANDEM_E2E_DIR"); dir != "" {
			cmd.Args = append(cmd.Args, dir)
		}
		out, err := cmd.CombinedOutput()
		t.Logf("engines.sh %s: %s", command, out)
		return err
	}
	if script(t.Context(), "status") == nil {
		return
	}
	t.Cleanup(func() { assert.NoError(t, script(context.Background(), "stop")) })
	ctx, cancel := context.WithTimeout(t.Context(), enginesStart)
	defer cancel()
	require.NoError(t, script(ctx, "start"))
}

// startRouter builds Tandem, starts it on a free port before the engines, and
// returns its URL. At the end it has to leave in order.
func startRouter(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "tandem")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/tandem").CombinedOutput()
	require.NoError(t, err, "%s", out)

	cmd := exec.Command(
		binary, "--pd-disaggregation", "--prefill", prefill, strconv.Itoa(bootstrapPort), "--decode", decode,
		"--host", "127.0.0.1", "--port", "0",
	)
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
