//go:build clients

// Package clients runs software that other people wrote against the command
// tandem: the OpenAI packages of npm and PyPI as its clients, requests as that of
// its operators, and mini_lb as another router over the same simulated engines.
// Its run.sh installs them and runs the tests, which need the build tag clients.
// Everything is a process of its own here but simulated engines, such as those
// that mini_lb and Tandem share.
package clients

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// startWithin is how long a process may take until it serves.
	startWithin = 60 * time.Second
	// endWithin is how long one may take to end when it is asked to.
	endWithin = 20 * time.Second
)

// installed is a path in the directory that run.sh has filled.
func installed(t *testing.T, elements ...string) string {
	t.Helper()
	dir := os.Getenv("TANDEM_CLIENTS")
	require.NotEmpty(t, dir, "integration/clients/run.sh installs the clients and runs these tests")
	path := filepath.Join(append([]string{dir}, elements...)...)
	require.FileExists(t, path)
	return path
}

// tandem is the built command.
func tandem(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/tandem")
	require.NoError(t, err)
	require.FileExists(t, path)
	return path
}

// process is a program that runs until it is ended.
type process struct {
	name  string
	cmd   *exec.Cmd
	lines chan string // of stdout and stderr, the last ones dropped if nobody reads

	mu     sync.Mutex
	output []string
}

// maxLines bounds what is kept of a process's output.
const maxLines = 4096

// run starts a program, whose output is shown if the test fails.
func run(t *testing.T, name, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), lines: make(chan string, maxLines)}
	out, in, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = in, in
	err = p.cmd.Start()
	in.Close()
	require.NoError(t, err)
	var reading sync.WaitGroup
	reading.Go(func() { p.read(out) })
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		reading.Wait()
		out.Close()
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, strings.Join(p.output, "\n"))
		}
	})
	return p
}

func (p *process) read(out *os.File) {
	defer close(p.lines)
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, maxLine)
	for scan.Scan() {
		p.mu.Lock()
		if len(p.output) < maxLines {
			p.output = append(p.output, scan.Text())
		}
		p.mu.Unlock()
		select {
		case p.lines <- scan.Text():
		default:
		}
	}
}

// word waits for a line that begins with a word and returns what follows it, up
// to the next space.
func (p *process) word(t *testing.T, first string) string {
	t.Helper()
	late := time.NewTimer(startWithin)
	defer late.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			require.True(t, ok, "%s ended before it wrote %q", p.name, first)
			if words := strings.Fields(line); len(words) > 1 && words[0] == first {
				return words[1]
			}
		case <-late.C:
			require.Fail(t, "late", "%s did not write %q", p.name, first)
		}
	}
}

// ready waits until a URL answers 200.
func (p *process) ready(t *testing.T, url string) {
	t.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	for end := time.Now().Add(startWithin); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		response, err := client.Get(url)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %d", response.StatusCode)
		}
		last = err
	}
	require.NoError(t, last, "%s is not ready", p.name)
}

// interrupt ends a process as a person at a terminal does, and requires that
// it ends well.
func (p *process) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	assert.NoError(t, p.cmd.Wait(), "%s ends well", p.name)
}

// freePort is a port of loopback that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
}
