//go:build realengine

package realengine

import (
	"context"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

// engine is one of those that engines.sh knows, by its name there.
type engine struct{ name, url string }

var (
	firstPrefill  = engine{"prefill", prefill}
	secondPrefill = engine{"prefill-b", "http://127.0.0.1:8302"}
	onlyDecode    = engine{"decode", decode}
)

// dies bounds the time from a SIGKILL to the end of an engine: its memory is
// given back before its sockets are closed.
const dies = 20 * time.Second

// engines runs engines.sh, which finds TANDEM_E2E_DIR in the environment.
func engines(ctx context.Context, command string, names ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "./engines.sh", append([]string{command}, names...)...).CombinedOutput()
	return string(out), err
}

// signal sends a signal to all the processes of an engine.
func (e engine) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	out, err := engines(context.Background(), "group", e.name)
	require.NoError(t, err, out)
	group, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(-group, s))
}

// kill ends an engine without a word to anybody, and returns when it was first
// seen that nobody listens there any more.
func (e engine) kill(t *testing.T) time.Time {
	t.Helper()
	e.signal(t, syscall.SIGKILL)
	sent := time.Now()
	for ; ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Logf("measured: %s refuses connections %s after SIGKILL", e.name, time.Since(sent).Round(time.Millisecond))
			return time.Now()
		}
		conn.Close()
		require.Less(t, time.Since(sent), dies)
	}
}

// pause stops an engine as a debugger does: it answers nothing, and its sockets
// stay open. The returned function, which may be called twice, lets it go on.
func (e engine) pause(t *testing.T) (resume func()) {
	t.Helper()
	e.signal(t, syscall.SIGSTOP)
	resume = sync.OnceFunc(func() { e.signal(t, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}

// start starts an engine again, and returns when it was healthy.
func (e engine) start(t *testing.T) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enginesStart)
	defer cancel()
	began := time.Now()
	out, err := engines(ctx, "start", e.name)
	require.NoError(t, err, out)
	t.Logf("measured: %s is healthy %s after it was started again", e.name, time.Since(began).Round(time.Second))
	return time.Now()
}

// requireIdle requires engines to be rid of all requests in time.
func requireIdle(t *testing.T, list ...engine) {
	t.Helper()
	began := time.Now()
	for _, e := range list {
		cases.Await(t, e.url, freeWithin-time.Since(began), func(l cases.Load) bool { return l.Total() == 0 })
	}
	t.Logf("measured: no request is left in the engines after %s", time.Since(began).Round(time.Millisecond))
}

// holder is the prefill engine that has most requests now, and the other one.
func holder(t *testing.T) (most, other engine) {
	t.Helper()
	first, second := cases.LoadOf(t, firstPrefill.url).Total(), cases.LoadOf(t, secondPrefill.url).Total()
	require.Positive(t, first+second, "no prefill engine has a request")
	if first >= second {
		return firstPrefill, secondPrefill
	}
	return secondPrefill, firstPrefill
}

// computed is how many tokens of prompts a prefill engine has computed since it
// began.
func computed(t *testing.T, e engine) int {
	t.Helper()
	var report struct {
		Loads []struct {
			Tokens int `json:"total_prefill_uncached_tokens"`
		} `json:"loads"`
	}
	cases.Get(t, e.url+"/v1/loads").Into(t, &report)
	require.Len(t, report.Loads, 1)
	return report.Loads[0].Tokens
}
