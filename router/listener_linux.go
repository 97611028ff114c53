//go:build linux && !tandem_portable

package router

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// eventBatch is how many departures one call takes from the kernel.
const eventBatch = 128

// ahead is empty here: the watch reads nothing.
type ahead struct{}

func (ahead) take([]byte) int { return 0 }

func (c *conn) startWatch() {}
func (c *conn) stopWatch()  {}

// watcher holds all connections of a listener in one epoll set, registered once
// for their whole life, and hears of each that its client has closed or half
// closed. It is itself known to Go's poller, so that waiting costs no thread.
// It ends when the listener and every connection have been closed.
type watcher struct {
	fd   int
	file *os.File // owns fd
	raw  syscall.RawConn
	done chan struct{}

	mu     sync.Mutex
	claims int // the listener and its connections
	token  uint64
	conns  map[uint64]*conn // by token: descriptors are reused, tokens never
}

func newWatcher() (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else Go's poller does not take it
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("watch connections: %w", err)
	}
	w := &watcher{fd: fd, file: file, raw: raw, done: make(chan struct{}), claims: 1, conns: make(map[uint64]*conn)}
	go w.run()
	return w, nil
}

// add begins to watch c, until c.forget.
func (w *watcher) add(c *conn) error {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("watch connections: %T is not a socket", c.Conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.token++
	token := w.token
	w.conns[token] = c
	w.claims++
	w.mu.Unlock()
	c.forget = func() {
		w.mu.Lock()
		delete(w.conns, token)
		w.mu.Unlock()
		w.release()
	}
	// A departure that has happened already is reported as well.
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(token), Pad: int32(token >> 32)}
	ctlErr := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &event))
	})
	if ctlErr != nil {
		err = ctlErr
	}
	if err != nil {
		c.forget()
	}
	return err
}

// release gives up one claim; the last one ends the watcher and waits for it.
func (w *watcher) release() {
	w.mu.Lock()
	w.claims--
	last := w.claims == 0
	w.mu.Unlock()
	if last {
		_ = w.file.Close()
		<-w.done
	}
}

func (w *watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, eventBatch)
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0) // an error leaves n at -1: wait again
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for _, event := range events[:n] {
			w.mu.Lock()
			c := w.conns[uint64(uint32(event.Fd))|uint64(uint32(event.Pad))<<32]
			w.mu.Unlock()
			if c != nil {
				c.hangup()
			}
		}
	}
}
