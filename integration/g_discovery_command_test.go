package integration

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tandem is the command, built.
type tandem string

func built(t *testing.T) tandem {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "tandem")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/tandem").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return tandem(binary)
}

// started is a command that runs, with the calls of a stack.
type started struct {
	*stack
	stop func() // ends it well; more than once does nothing
}

// start starts a router. It knows of no cluster but that of its flags and of env.
func (binary tandem) start(t *testing.T, env []string, args ...string) *started {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "tandem.log"))
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command(string(binary), append(args, "--host", "127.0.0.1", "--port", "0")...)
	cmd.Env = append([]string{"HOME=" + t.TempDir()}, env...)
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(said)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if _, base, ok := strings.Cut(lines.Text(), "listens on "); ok {
				said <- base
			}
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	stop := sync.OnceFunc(func() {
		client.CloseIdleConnections()
		assert.NoError(t, cmd.Process.Signal(os.Interrupt))
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		reading.Wait()
		assert.NoError(t, cmd.Wait(), "it ends well")
	})
	t.Cleanup(func() {
		stop()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the end of the router's log:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	base := within(t, said, "the router's address")
	require.NotEmpty(t, base, "it ended before it listened")
	return &started{&stack{t: t, url: base, client: client}, stop}
}

// of is the router in a part of a test.
func (r *started) of(t *testing.T) *started {
	return &started{&stack{t: t, url: r.url, client: r.client}, r.stop}
}
