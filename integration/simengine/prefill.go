package simengine

import (
	"fmt"
	"net/http"
	"time"
)

// fakeHost as bootstrap_host means no peer: warm-up and health probes use it.
const fakeHost = "2.2.2.2"

// maxTopLogprobs is the width of the metadata buffer between the two sides.
const maxTopLogprobs = 128

// checkRouting is what a scheduler makes of the pairing fields, on both sides.
func (l *life) checkRouting(it *item) (end, bool) {
	if it.role == Regular {
		it.room, it.host = "", "" // as if they were not there
		return l.checkSize(it)
	}
	if it.call.req.listForOne {
		l.crash(fmt.Errorf("request %s: TypeError: a list as bootstrap field of a single request", it.rid))
		return end{gone: true}, false
	}
	if it.room == "" {
		return failed(http.StatusBadRequest,
			"Invalid request: Disaggregated request received without bootstrap room id. req.rid='%s'", it.rid), false
	}
	return l.checkSize(it)
}

// checkSize refuses a prompt that the KV budget can never hold, and gives any
// other its rank.
func (l *life) checkSize(it *item) (end, bool) {
	if size := len(it.prompt); size > l.cfg.MaxTotalTokens {
		return failed(http.StatusBadRequest,
			"Request %s exceeds the maximum number of tokens: %d > %d", it.rid, size, l.cfg.MaxTotalTokens), false
	}
	it.rank = l.rankFor(it)
	return end{}, true
}

// rankFor is the data parallel rank of this server that serves the item.
func (l *life) rankFor(it *item) int {
	switch {
	case it.forced != nil:
		return *it.forced
	case l.cfg.DPSize == 1:
		return 0
	case it.role != Regular && l.cfg.LoadBalance == FollowBootstrapRoom:
		return it.room.rank(l.cfg.DPSize)
	}
	return int((l.nextRank.Add(1) - 1) % int64(l.cfg.DPSize))
}

// prefillItem waits for decode's metadata, computes one token, moves the KV and
// only then lets the call answer.
func (l *life) prefillItem(it *item) end {
	if it.host == fakeHost {
		return l.compute(it)
	}
	if follow := l.cfg.LoadBalance == FollowBootstrapRoom; follow && it.prefillDP == nil && it.rank != it.room.rank(l.cfg.DPSize) {
		return it.transferError("bootstrap", fmt.Sprintf(
			"follow_bootstrap_room conflict: routed_dp_rank=%d, bootstrap_room %% dp_size=%d", it.rank, it.room.rank(l.cfg.DPSize)))
	} else if !follow && it.prefillDP == nil && l.cfg.DPSize > 1 {
		l.dpRanks.register(it.room, it.rank)
	}
	it.enter(stateBootstrap)
	room, err := l.rooms.open(it.room, it.rank)
	if err != nil {
		l.crash(err)
		return end{gone: true}
	}
	defer l.rooms.close(it.room)
	meta, e, ok := l.handshake(it, room)
	if !ok {
		return e
	}
	l.used.Add(int64(len(it.prompt)))
	defer l.used.Add(-int64(len(it.prompt)))
	if err := it.kills(); err != nil {
		l.crash(err)
		return end{gone: true}
	}
	if e := l.compute(it); e.aborted || e.gone {
		return e
	}
	return l.transfer(it, room, meta)
}

// handshake waits for decode's metadata.
func (l *life) handshake(it *item, room *prefillRoom) (metadata, end, bool) {
	limit := l.cfg.scaled(l.cfg.Timers.BootstrapTimeout)
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case meta := <-room.meta:
		if l.rooms.left(room) {
			return metadata{}, it.transferError("bootstrap", causeOtherRank), false
		}
		return meta, end{}, true
	case <-room.aborted:
		return metadata{}, it.transferError("bootstrap", causeOtherRank), false
	case <-it.ctx.Done():
		if it.down() {
			return metadata{}, end{gone: true}, false
		}
		return metadata{}, it.transferError("bootstrap", causeAborted), false
	case <-t.C:
		l.pass()
		cause := fmt.Sprintf(causeTimeout, it.room, l.cfg.Timers.BootstrapTimeout.Seconds()+0.1, "Bootstrapping")
		return metadata{}, it.transferError("bootstrap", cause), false
	}
}

// kills is why this item is the end of the engine once it is computed.
func (it *item) kills() error {
	switch {
	case it.call.fault.Die == DieAfterHandshake:
		return ErrScripted
	case it.room.negative():
		return fmt.Errorf("room %s: OverflowError: can't convert negative int to unsigned", it.room)
	case it.role == Prefill && it.lp.top > maxTopLogprobs:
		return fmt.Errorf("request %s: %d top logprobs do not fit the metadata buffer of %d", it.rid, it.lp.top, maxTopLogprobs)
	}
	for _, id := range it.prompt {
		if id < 0 || id >= vocabSize {
			return fmt.Errorf("request %s: a token outside the vocabulary of %d", it.rid, vocabSize)
		}
	}
	return nil
}

// compute makes the first token.
func (l *life) compute(it *item) end {
	it.enter(stateForward)
	if perToken := l.cfg.Speed.PrefillPerToken; perToken > 0 {
		if !l.gpu.take(it.ctx, nil, 1) {
			return it.notComputed()
		}
		defer l.gpu.give(1)
	}
	it.forward = time.Now()
	it.cached = l.cache.match(it.prompt)
	uncached := time.Duration(len(it.prompt) - it.cached)
	if !it.workUntil(l.worked() + l.cfg.Speed.PrefillDelay + uncached*l.cfg.Speed.PrefillPerToken) {
		return it.notComputed()
	}
	l.prompts.Add(int64(len(it.prompt)))
	l.hits.Add(int64(it.cached))
	p := it.params
	p.MaxNewTokens, p.Stop = 1, nil
	it.out = generate(it.hash, p)
	it.out.Finish, it.out.Matched = "length", nil
	it.computed, it.first, it.prefill = time.Now(), time.Now(), l.e.cfg.ID
	l.cache.add(it.prompt)
	return end{tokens: 1}
}

// notComputed is the end of an item that ended before its first token.
func (it *item) notComputed() end {
	if it.down() {
		return end{gone: true}
	}
	return end{aborted: true, message: "Abort in waiting queue"}
}

// transfer moves the KV to decode and tells it.
func (l *life) transfer(it *item, room *prefillRoom, meta metadata) end {
	it.enter(stateInflight)
	sendFailed := fmt.Sprintf(causeSendFailed, it.room, meta.from.addr)
	deadDecode := fmt.Sprintf(causeDeadDecode, meta.from.addr)
	dead := isClosed(meta.from.gone)
	l.move(it, room, meta)
	switch {
	case it.down():
		return end{gone: true}
	case it.ctx.Err() != nil:
		return it.transferError("transfer", causeAborted)
	case isClosed(room.aborted):
		return it.transferError("transfer", causeOtherRank)
	case dead:
		return it.transferError("transfer", deadDecode)
	case isClosed(meta.from.gone):
		return it.transferError("transfer", sendFailed)
	case l.rooms.broken(meta.from.session):
		meta.from.send(message{Kind: kindFail, Room: it.room})
		return it.transferError("transfer", deadDecode)
	case it.call.fault.FailTransfer:
		l.rooms.breakPair(meta.from.session)
		meta.from.send(message{Kind: kindFail, Room: it.room})
		return it.transferError("transfer", sendFailed)
	}
	meta.from.send(message{
		Kind: kindDone, Room: it.room, Cached: it.cached,
		Hash: it.hash, Prefill: l.e.cfg.ID,
	})
	return end{tokens: 1}
}

// move takes the time of a transfer, unless something ends it.
func (l *life) move(it *item, room *prefillRoom, meta metadata) {
	stopped := func() bool { return isClosed(room.aborted) || isClosed(meta.from.gone) || it.ctx.Err() != nil }
	end := l.gate.ran() + l.cfg.Speed.TransferDelay
	for left := l.cfg.Speed.TransferDelay; left > 0 && !stopped(); left = end - l.gate.ran() {
		t := time.NewTimer(left)
		select {
		case <-t.C:
		case <-room.aborted:
		case <-meta.from.gone:
		case <-it.ctx.Done():
		}
		t.Stop()
		l.pass()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
