package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"time"
)

// Child is a process this run started, with those it starts itself.
type Child struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been waited for
}

// Start runs argv with in as its input and its output going to out; nil stands
// for nothing and nowhere.
func Start(name string, in io.Reader, out io.Writer, argv ...string) (*Child, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	// A group of its own: a ^C at the terminal reaches the bench alone, which
	// then ends its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &Child{Name: name, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, and Stop waits for it
		defer close(c.done)
		// How it ended is told by what was asked of it.
		_ = cmd.Wait()
	}()
	return c, nil
}

// Pid is the process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// stopGrace is how long a process has between SIGTERM and SIGKILL.
const stopGrace = 3 * time.Second

// Stop ends the process and its descendants, each by its pid, and waits.
func (c *Child) Stop() {
	tree, err := Tree(c.Pid())
	if err != nil {
		tree = []int{c.Pid()}
	}
	select {
	case <-c.done:
		return
	default:
	}
	c.signal(tree[:1], syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(stopGrace):
	}
	c.signal(tree, syscall.SIGKILL)
	<-c.done
}

// signal sends s to those of pids that still belong to the child's group: a
// pid that was reused meanwhile does not.
func (c *Child) signal(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		if pgid, err := syscall.Getpgid(pid); err == nil && pgid == c.Pid() {
			// The only failure left is that it has just ended by itself.
			_ = syscall.Kill(pid, s)
		}
	}
}

// pollEvery is the time between two looks at a process that is starting.
const pollEvery = 50 * time.Millisecond

// WaitHTTP waits until GET url answers 200, the process ends, or ctx does.
func (c *Child) WaitHTTP(ctx context.Context, url string) error {
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s ended before it was ready", c.Name)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", c.Name, err)
		case <-poll.C:
		}
	}
}

// FreePorts returns n loopback ports that were free a moment ago.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close() // after the loop: the ports must differ
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// RaiseFiles raises the open-file limit, which children inherit, to the hard
// limit, and further where the process may.
func RaiseFiles(want uint64) (uint64, error) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return 0, err
	}
	if lim.Max < want {
		raised := syscall.Rlimit{Cur: want, Max: want}
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			return want, nil
		}
	}
	// Set even if it is so already: Go restores the soft limit it was started
	// with in children unless the program has chosen one.
	lim.Cur = lim.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return 0, err
	}
	return lim.Cur, nil
}
