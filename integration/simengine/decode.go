package simengine

import (
	"container/list"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// rankQueryInterval is how often decode asks where a room is.
const rankQueryInterval = 20 * time.Millisecond

// decodeItem finds the prefill, waits for KV space, announces the room, waits
// for the KV and generates. progress is told of every token but the last.
func (l *life) decodeItem(it *item, progress func(tokens int)) end {
	it.enter(statePrealloc)
	if it.host == fakeHost {
		it.out = generate(it.hash, it.params)
		return l.generate(it, progress)
	}
	if !it.hasHost {
		l.crash(fmt.Errorf("request %s: AttributeError: no bootstrap host", it.rid))
		return end{gone: true}
	}
	at, err := l.peers.at(l.bootstrapAddrOf(it))
	if err != nil {
		return it.transferError("handshake", causeAborted)
	}
	room, err := l.peers.open(it.room, at)
	if err != nil {
		l.crash(err)
		return end{gone: true}
	}
	defer l.peers.close(it.room)
	link, e, ok := l.reach(it, room)
	if !ok {
		return e
	}
	need := min(len(it.prompt)+it.params.MaxNewTokens, l.cfg.MaxTotalTokens)
	if !l.budget.take(it.ctx, room.lost, need) {
		if it.ctx.Err() != nil {
			link.send(message{Kind: kindAbort, Room: it.room})
		}
		return l.leave(it, room, "handshake")
	}
	return l.decodeInto(it, room, link, need, progress)
}

// decodeInto has the KV moved into need tokens of space, which it gives back,
// and generates.
func (l *life) decodeInto(it *item, room *decodeRoom, link *wire, need int, progress func(tokens int)) end {
	held := int64(len(it.prompt)) // what is generated counts once it is
	l.used.Add(held)
	give := func() {
		l.used.Add(-held)
		l.budget.give(need)
	}
	it.enter(stateTransfer)
	link = l.announce(it, room, link)
	done, e, ok := l.receiveKV(it, room)
	if !ok && !e.gone && done.Kind != kindFail {
		l.letGo(it, link, give)
		return e
	}
	defer give()
	if !ok {
		return e
	}
	l.used.Add(int64(need) - held)
	held = int64(need)
	it.out = outputFrom(it, done)
	it.cached, it.prefill = done.Cached, done.Prefill
	return l.generate(it, progress)
}

// letGo tells prefill that decode has left a room. The KV that prefill may
// still write into is given back at its answer, or without it after some time,
// which the item does not wait for.
func (l *life) letGo(it *item, link *wire, give func()) {
	drained := l.peers.drain(it.room)
	link.send(message{Kind: kindAbort, Room: it.room})
	release := l.e.records.linger()
	wait := func() {
		defer release()
		defer give()
		limit := l.cfg.Timers.DeferredRelease
		t := time.NewTimer(l.cfg.scaled(limit))
		defer t.Stop()
		select {
		case <-drained:
		case <-l.ctx.Done():
		case <-t.C:
			l.pass()
			l.peers.undrain(it.room)
			l.logf("room %s: KV given back without prefill's word after %s", it.room, limit)
		}
	}
	if !l.spawn(wait) {
		wait() // the life is over: it waits for nothing
	}
}

// bootstrapAddrOf is where the body says that the prefill's bootstrap server is.
func (l *life) bootstrapAddrOf(it *item) string {
	port := it.port
	if port == 0 {
		port = l.cfg.DefaultBootstrapPort
	}
	return net.JoinHostPort(strings.Trim(it.host, "[]"), strconv.Itoa(port))
}

// reach finds the channel to the rank of the prefill that holds the room. It is
// nil, and what is sent is lost, if a prefill that was known cannot be reached.
func (l *life) reach(it *item, room *decodeRoom) (*wire, end, bool) {
	topo, ok := room.peer.look(it)
	if !ok {
		return nil, l.leave(it, room, "handshake"), false
	}
	if topo == nil {
		return nil, it.transferError("handshake", causeAborted), false
	}
	rank, ok := l.prefillRank(it, room, topo)
	if !ok {
		return nil, l.leave(it, room, "handshake"), false
	}
	it.prefillDP = &rank
	return l.link(it, room, nil), end{}, true
}

// link is the item's channel to its prefill, nil if there is none.
func (l *life) link(it *item, room *decodeRoom, broken *wire) *wire {
	link, err := room.peer.link(*it.prefillDP, broken)
	if err != nil {
		l.logf("room %s: %v", it.room, err)
	}
	return link
}

// announce tells the prefill of the room. The channel may be that to a prefill
// which has ended since, and is there again: the result is the one that served.
func (l *life) announce(it *item, room *decodeRoom, link *wire) *wire {
	m := message{Kind: kindMetadata, Room: it.room, Rank: *it.prefillDP}
	if link != nil && !link.send(m) {
		link = l.link(it, room, link)
		link.send(m)
	}
	return link
}

// prefillRank is the prefill's data parallel rank of the item; it may have to
// be asked for until the prefill has the request.
func (l *life) prefillRank(it *item, room *decodeRoom, topo *topology) (int, bool) {
	switch {
	case it.prefillDP != nil:
		return *it.prefillDP, true
	case topo.DPSize == 1:
		return 0, true
	case topo.Follow:
		return it.room.rank(topo.DPSize), true
	}
	for {
		if rank, ok := room.peer.queryRank(it.room); ok {
			return rank, true
		}
		if isClosed(room.lost) || !sleep(it.ctx, rankQueryInterval) || !l.pass() {
			return 0, false
		}
	}
}

// receiveKV waits for the KV of a room. In room 0 it never comes: that value in
// the metadata means that nothing was written yet.
func (l *life) receiveKV(it *item, room *decodeRoom) (message, end, bool) {
	if it.call.fault.Die == DieAfterHandshake {
		l.crash(ErrScripted)
		return message{}, end{gone: true}, false
	}
	limit := l.cfg.Timers.WaitingTimeout
	t := time.NewTimer(l.cfg.scaled(limit))
	defer t.Stop()
	expired, kv := t.C, room.kv
	if it.room == "0" {
		expired, kv = nil, nil
	}
	select {
	case m := <-kv:
		if m.Kind == kindFail {
			return m, it.transferError("transfer", causeDeadPrefill), false
		}
		return m, end{}, true
	case <-room.lost:
	case <-it.ctx.Done():
	case <-expired:
		l.pass()
		return message{}, it.transferError("transfer", fmt.Sprintf(causeTimeout, it.room, limit.Seconds(), "WaitingForInput")), false
	}
	return message{}, l.leave(it, room, "transfer"), false
}

// leave words the end of a waiting item that was aborted or lost its prefill.
func (l *life) leave(it *item, room *decodeRoom, stage string) end {
	if it.down() {
		return end{gone: true}
	}
	if it.ctx.Err() == nil {
		return it.transferError(stage, fmt.Sprintf(causeLost, room.peer.addr))
	}
	return it.transferError(stage, causeAborted)
}

// outputFrom is what decode makes of the KV it was sent: of another prompt's
// KV, something else than either prompt's output.
func outputFrom(it *item, done message) Output {
	hash := it.hash
	if done.Hash != hash {
		hash = mix(hash ^ done.Hash)
	}
	return generate(hash, it.params)
}

// generate paces the output. An abort ends it with what there is.
func (l *life) generate(it *item, progress func(tokens int)) end {
	it.enter(stateRunning)
	if it.forward.IsZero() { // decode computes no prompt
		it.forward = time.Now()
	}
	total, interval := len(it.out.IDs), l.cfg.Speed.TokenInterval
	it.first = time.Now()
	began := l.worked()
	if it.call.req.stream {
		for n := 1; n < total; n++ {
			progress(n)
			if !it.workUntil(began + time.Duration(n)*interval) {
				return it.stopped(n)
			}
		}
		return end{tokens: total}
	}
	if !it.workUntil(began + time.Duration(total-1)*interval) {
		n := total
		if interval > 0 {
			n = min(total, 1+int((l.worked()-began)/interval))
		}
		return it.stopped(n)
	}
	return end{tokens: total}
}

func (it *item) stopped(n int) end {
	if it.down() {
		return end{gone: true}
	}
	return end{tokens: n, aborted: true, message: "Aborted"}
}

// budget is a number of things, as the tokens of KV space, given out first come, first served.
type budget struct {
	mu    sync.Mutex
	free  int
	queue list.List // of *claim
}

type claim struct {
	need  int
	given chan struct{}
}

func newBudget(tokens int) *budget { return &budget{free: tokens} }

// take waits for space; false if ctx or lost ended first.
func (b *budget) take(ctx context.Context, lost <-chan struct{}, need int) bool {
	b.mu.Lock()
	if b.queue.Len() == 0 && b.free >= need {
		b.free -= need
		b.mu.Unlock()
		return true
	}
	c := &claim{need: need, given: make(chan struct{})}
	at := b.queue.PushBack(c)
	b.mu.Unlock()
	select {
	case <-c.given:
		return true
	case <-ctx.Done():
	case <-lost:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if isClosed(c.given) {
		b.free += need
	} else {
		b.queue.Remove(at)
	}
	b.grantLocked()
	return false
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	b.grantLocked()
}

func (b *budget) grantLocked() {
	for at := b.queue.Front(); at != nil && at.Value.(*claim).need <= b.free; at = b.queue.Front() {
		c := b.queue.Remove(at).(*claim)
		b.free -= c.need
		close(c.given)
	}
}
