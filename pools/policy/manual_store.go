package policy

import (
	"context"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// Store is where the routers of a fleet agree on the workers of a session. They
// must call the workers by the same ids, and each role needs a store of its own.
//
// The store is asked at four moments: by the first request of a key that this
// router does not know; when this router has sent a session to another worker; when
// a session is used and was asked about more than 5 s ago, which is when a change by
// another router is seen; and again, until it answers, where it has not. Only the
// first keeps a request waiting. When the store is slow or down the router decides
// alone; what it has decided is told when the store is back, and gives way to what
// another router was faster to tell.
type Store interface {
	// Swap makes next the workers of key if they are prev, or if none are stored, and
	// has the key live on for as long as keys are remembered. It returns the workers
	// that are stored then: next, or what another router has put there. It returns
	// when ctx ends, and is called from many goroutines at once. It keeps no slice.
	Swap(ctx context.Context, key string, prev, next []pd.WorkerID) (stored []pd.WorkerID, err error)
}

const (
	storeQueue   = 1 << 16         // keys that wait for the store to be told or asked
	storeTries   = 3               // calls to the store for one key, at once
	storeRefresh = 5 * time.Second // what was heard longer ago is asked again
	storePause   = time.Second     // behind a failure nobody waits for the store so long
	storePatient = time.Second     // a call that no request waits for may take so long
)

// synced is what is known of a session's place in the store.
type synced struct {
	stored candidates    // what the store held when it was last heard
	at     time.Duration // when that was
	queued bool
}

// shared is the part of a policy that speaks with the store. Sessions are read and
// changed under the policy's lock, the store is called under none.
type shared struct {
	p      *Manual
	ctx    context.Context // ends all that is done here
	cancel context.CancelFunc
	writer sync.WaitGroup
	queue  chan sessionKey
	mute   atomic.Int64 // instant until which no request waits for the store
}

// share starts the writer.
func share(ctx context.Context, p *Manual) *shared {
	sh := &shared{p: p, queue: make(chan sessionKey, storeQueue)}
	sh.ctx, sh.cancel = context.WithCancel(ctx)
	sh.writer.Go(func() {
		for sh.ctx.Err() == nil {
			sh.write()
		}
	})
	return sh
}

func (sh *shared) close() {
	sh.cancel()
	sh.writer.Wait()
}

// ask has a key that is not known learnt from the store, or assigned there. When
// that fails the key stays unknown.
func (sh *shared) ask(key sessionKey, members []*pools.Member) {
	if int64(sh.p.now()) < sh.mute.Load() {
		sh.p.opt.Bound("manual_store")
		return
	}
	ctx, cancel := context.WithTimeout(sh.ctx, sh.p.opt.StoreTimeout)
	defer cancel()
	stored, err := sh.agree(ctx, key, members)
	if err != nil {
		sh.p.opt.Bound("manual_store")
		return
	}
	sh.p.mu.Lock()
	s, dropped := sh.p.session(key, sh.p.now())
	s.workers, s.synced.stored, s.synced.at = stored, stored, sh.p.now()
	sh.p.mu.Unlock()
	if dropped {
		sh.p.opt.Bound("manual_keys")
	}
}

// agree is candidates for a key that the store holds, one of whom is offered here.
// Where routers are at odds for too long it is what the store held last.
func (sh *shared) agree(ctx context.Context, key sessionKey, members []*pools.Member) (candidates, error) {
	var held candidates
	for range storeTries {
		sh.p.mu.Lock()
		next := held
		if sh.p.usable(held, members) == nil {
			next = held.with(sh.p.assign(members).Worker.ID)
		}
		sh.p.mu.Unlock()
		if next == held {
			break
		}
		stored, err := sh.swap(ctx, key, held, next)
		if err != nil {
			return candidates{}, err
		}
		held = stored
	}
	return held, nil
}

// follow has the store told or asked of a session that was just used, if that is
// due. False when there is no place in the queue. The caller holds the lock.
func (sh *shared) follow(s *session) bool {
	if s.synced.queued || s.workers == s.synced.stored && s.at-s.synced.at < storeRefresh {
		return true
	}
	select {
	case sh.queue <- s.key:
		s.synced.queued = true
	default:
	}
	return s.synced.queued
}

// write tells and asks the store of the sessions in the queue until ctx ends, or
// until something panics. One that fails goes to the end of the queue.
func (sh *shared) write() {
	defer func() {
		if value := recover(); value != nil {
			sh.p.opt.Panic(value, debug.Stack())
		}
	}()
	pause := time.NewTimer(storePause)
	defer pause.Stop()
	for {
		select {
		case <-sh.ctx.Done():
			return
		case key := <-sh.queue:
			if sh.sync(key) == nil {
				continue
			}
			sh.again(key)
		}
		pause.Reset(storePause)
		select {
		case <-sh.ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// sync tells the store of the workers of a session and takes over what it holds.
func (sh *shared) sync(key sessionKey) error {
	for range storeTries {
		sh.p.mu.Lock()
		s := sh.p.known[key]
		if s == nil {
			sh.p.mu.Unlock()
			return nil
		}
		prev, next := s.synced.stored, s.workers
		sh.p.mu.Unlock()

		ctx, cancel := context.WithTimeout(sh.ctx, storePatient)
		stored, err := sh.swap(ctx, key, prev, next)
		cancel()
		if err != nil {
			return err
		}
		sh.mute.Store(0)

		sh.p.mu.Lock()
		s.synced.stored, s.synced.at = stored, sh.p.now()
		if s.workers == next {
			s.workers = stored
		}
		agreed := s.workers == stored // else requests have moved it meanwhile
		s.synced.queued = false
		sh.p.mu.Unlock()
		if agreed {
			return nil
		}
	}
	return nil
}

// again puts a key back into the queue.
func (sh *shared) again(key sessionKey) {
	select {
	case sh.queue <- key:
		return
	default:
	}
	sh.p.mu.Lock()
	if s := sh.p.known[key]; s != nil {
		s.synced.queued = false // the next request of the session queues it
	}
	sh.p.mu.Unlock()
	sh.p.opt.Bound("manual_store")
}

// swap calls the store. A failure keeps requests from waiting for it for a while.
func (sh *shared) swap(ctx context.Context, key sessionKey, prev, next candidates) (stored candidates, err error) {
	defer func() {
		if value := recover(); value != nil {
			sh.p.opt.Panic(value, debug.Stack())
			err = fmt.Errorf("policy manual: the store panicked: %T", value)
		}
		if err != nil && sh.ctx.Err() == nil {
			sh.mute.Store(int64(sh.p.now() + storePause))
			sh.p.opt.StoreFailed(err)
		}
	}()
	ids, err := sh.p.opt.Store.Swap(ctx, hex.EncodeToString(key[:]), prev.list(), next.list())
	if err != nil {
		return candidates{}, err
	}
	copy(stored[:], ids)
	return stored, nil
}

// list is the candidates there are.
func (c candidates) list() []pd.WorkerID {
	n := 0
	for n < len(c) && c[n] != "" {
		n++
	}
	return c[:n]
}
