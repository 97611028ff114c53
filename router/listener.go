package router

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Waits after an accept that failed for want of something, such as file
// descriptors: the server goes on, it does not die of a full table.
const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// Watch wraps a listener so that an [App] learns of a client's departure while
// it waits for an engine. Its connections must be TCP or Unix sockets; WatchTLS
// puts TLS around them. On Linux the kernel reports departures; elsewhere, a
// goroutine per request in progress reads ahead. An error of setting that up is
// the first Accept's.
func Watch(ln net.Listener) net.Listener {
	w, err := newWatcher()
	return &listener{Listener: ln, watcher: w, err: err, closing: make(chan struct{})}
}

// listener accepts watched connections.
type listener struct {
	net.Listener
	watcher *watcher
	err     error
	closing chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	if l.err != nil {
		return nil, l.err
	}
	pause := acceptPauseMin
	for {
		nc, err := l.Listener.Accept()
		if err == nil {
			c := &conn{Conn: nc}
			if err = l.watcher.add(c); err == nil {
				return c, nil
			}
			_ = nc.Close()
		}
		if !passing(err) {
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.closing:
			timer.Stop()
			return nil, net.ErrClosed
		}
		pause = min(2*pause, acceptPauseMax)
	}
}

// Close closes the listener; its connections are watched until they end.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() {
		close(l.closing)
		if l.err == nil {
			l.watcher.release()
		}
	})
	return err
}

// passing reports whether an accept may succeed later.
func passing(err error) bool {
	for _, e := range []error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ENOSPC,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
