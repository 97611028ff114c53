//go:build realengine

package realengine

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/integration/cases"
)

const (
	// heardWithin is how soon a client, or another engine, hears of an engine that
	// refuses connections or has cut one. Without Tandem decode says nothing for
	// 10 to 16 s, and prefill for 300 s.
	heardWithin = 2 * time.Second
	// probed is the suite's --health-check-interval-secs, and backWithin how soon
	// after an engine is healthy it has work again: one interval, two probes of
	// 1 s each, 1 s between them, and as much again for a busy machine.
	probed     = 5 * time.Second
	backWithin = 2 * (probed + 3*time.Second)
	// stopped is how long an engine is stopped at least.
	stopped = 20 * time.Second
	// noticed is how soon a call is answered whose prefill has fallen silent, of
	// which decode takes 16 s to say so, and passedOver how soon no call goes
	// there any more: three probes of 5 s, an interval before each.
	noticed    = 30 * time.Second
	passedOver = 60 * time.Second
)

// streamed is added to a body whose answer is to be a stream.
func streamed() cases.Body { return cases.Body{"stream": true} }

// failures are what happens to calls when engines fail. There are two prefill
// engines, so that one can take over, and one decode engine.
type failures struct{ router string }

func (f failures) run(t *testing.T) {
	t.Run("prefill killed", f.prefillKilled)
	t.Run("prefill killed in the middle of transfers", f.prefillKilledMidway)
	t.Run("decode killed", f.decodeKilled)
	t.Run("prefill stopped for a while", f.prefillStopped)
	t.Run("decode stopped for a while", f.decodeStopped)
}

func (f failures) prefillKilled(t *testing.T) {
	var killed engine
	t.Run("a call whose decode waits for room goes to another", func(t *testing.T) {
		calls, empty := fill(t)
		waiting := begin(t, f.generate(500, 600, 4))
		cases.Await(t, decode, patience, func(l cases.Load) bool { return l.Waiting > calls })
		var other engine
		killed, other = holder(t)
		dead := killed.kill(t)
		cases.Await(t, other.url, heardWithin, func(l cases.Load) bool { return l.Waiting > 0 })
		t.Logf("measured: %s has the call %s later", other.name, time.Since(dead).Round(time.Millisecond))
		empty()
		waiting.requireTokens(t, 4)
		requireIdle(t, other, onlyDecode)
	})
	t.Run("calls that come when it is dead go to another at once", func(t *testing.T) {
		for i := range 6 {
			c := begin(t, f.generate(510+i, 100, 4))
			c.requireTokens(t, 4)
			assert.Less(t, c.took(), heardWithin)
		}
	})
	t.Run("it has work again when it is back", func(t *testing.T) { f.requireWork(t, killed, killed.start(t)) })
}

func (f failures) prefillKilledMidway(t *testing.T) {
	var running, crowd []*call
	for i := range 2 {
		c := begin(t, f.generate(520+i, 50, 900).with(streamed()))
		c.awaitFirst(t)
		running = append(running, c)
	}
	splice := cases.Body{"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 20}
	for i := range 14 {
		r := f.generate(530+i, 300+400*(i%2), 4)
		if i%4 < 2 {
			r = r.with(splice)
		}
		crowd = append(crowd, begin(t, r))
	}
	for !slices.ContainsFunc(crowd, (*call).over) {
		time.Sleep(time.Millisecond)
	}
	killed, other := holder(t)
	killed.kill(t)
	t.Run("streams whose KV has been moved go on to their end", func(t *testing.T) {
		for _, c := range running {
			require.False(t, c.over(), "it has ended before")
		}
		for _, c := range running {
			c.requireStream(t, 900)
		}
	})
	t.Run("the other calls are answered all the same", func(t *testing.T) {
		for _, c := range crowd {
			c.requireTokens(t, 4)
		}
		requireIdle(t, other, onlyDecode)
	})
	t.Run("no answer is made of another call's KV", func(t *testing.T) {
		for i, c := range crowd {
			again := begin(t, f.generate(530+i, 300+400*(i%2), 4))
			assert.Equal(t, again.requireTokens(t, 4), c.requireTokens(t, 4), "call %d", i)
		}
	})
	t.Run("it has work again when it is back", func(t *testing.T) { f.requireWork(t, killed, killed.start(t)) })
}

func (f failures) decodeKilled(t *testing.T) {
	stream := begin(t, f.generate(550, 50, 900).with(streamed()))
	stream.awaitFirst(t)
	chat := begin(t, f.chat(551, 50, 900).with(streamed()))
	chat.awaitFirst(t)
	plain := begin(t, f.generate(552, 50, 900))
	cases.Await(t, decode, patience, func(l cases.Load) bool { return l.Running == 3 })
	fill(t)
	waiting := begin(t, f.generate(553, 600, 4))
	waitingStream := begin(t, f.chat(554, 600, 4).with(streamed()))
	for waits := 0; waits < 2; {
		waits = cases.LoadOf(t, firstPrefill.url).Waiting + cases.LoadOf(t, secondPrefill.url).Waiting
		require.False(t, waiting.over() || waitingStream.over(), "a call that should wait does not")
	}
	dead := onlyDecode.kill(t)
	t.Run("streams end with an error and without an end", func(t *testing.T) {
		for _, c := range []*call{stream, chat} {
			c.requireCut(t)
			assert.WithinDuration(t, dead, c.ended, heardWithin)
		}
	})
	t.Run("calls that have not begun to answer get an error", func(t *testing.T) {
		for _, c := range []*call{plain, waiting, waitingStream} {
			c.requireError(t, http.StatusBadGateway, http.StatusServiceUnavailable)
			assert.WithinDuration(t, dead, c.ended, heardWithin)
		}
	})
	t.Run("nothing is left in prefill", func(t *testing.T) { requireIdle(t, firstPrefill, secondPrefill) })
	t.Run("calls that come when it is dead are refused at once", func(t *testing.T) {
		for i := range 4 {
			c := begin(t, f.generate(560+i, 100, 4))
			c.requireError(t, http.StatusServiceUnavailable)
			assert.NotEmpty(t, c.answer.Header.Get("Retry-After"))
			assert.Less(t, c.took(), heardWithin)
		}
		requireIdle(t, firstPrefill, secondPrefill)
	})
	t.Run("calls are answered again when it is back", func(t *testing.T) {
		healthy := onlyDecode.start(t)
		for begin(t, pinnedRequest(f.router)).status() != http.StatusOK {
			require.Less(t, time.Since(healthy), backWithin)
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("measured: decode has work %s after it is healthy", time.Since(healthy).Round(time.Millisecond))
		for range 4 { // through either prefill engine
			assert.Equal(t, pinned(), begin(t, pinnedRequest(f.router)).requireTokens(t, len(pinned())))
		}
	})
}

func (f failures) prefillStopped(t *testing.T) {
	var calls []*call
	stream := begin(t, f.generate(600, 50, 900).with(streamed()))
	stream.awaitFirst(t)
	for i := range 6 {
		calls = append(calls, begin(t, f.generate(601+i, 700, 4)))
	}
	cases.Await(t, firstPrefill.url, patience, func(l cases.Load) bool { return l.Total() > 0 })
	resume := firstPrefill.pause(t)
	since := time.Now()
	for i := range 6 {
		calls = append(calls, begin(t, f.generate(610+i, 100, 4)))
	}
	left := f.leave(t, 620)
	t.Run("calls from before and from meanwhile are answered by another", func(t *testing.T) {
		longest := time.Duration(0)
		for _, c := range calls {
			c.requireTokens(t, 4)
			longest = max(longest, c.took())
		}
		t.Logf("measured: the longest took %s", longest.Round(time.Millisecond))
		assert.Less(t, longest, noticed)
		stream.requireStream(t, 900)
		left()
		requireIdle(t, secondPrefill, onlyDecode)
	})
	t.Run("new ones are answered at once when Tandem knows", func(t *testing.T) {
		for f.state(t, "prefill-0") != "dead" {
			require.Less(t, time.Since(since), passedOver)
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("measured: passed over after %s", time.Since(since).Round(time.Millisecond))
		for i := range 4 {
			c := begin(t, f.generate(630+i, 100, 4))
			c.requireTokens(t, 4)
			assert.Less(t, c.took(), heardWithin)
		}
	})
	time.Sleep(stopped - time.Since(since))
	resume()
	t.Run("nothing is left when it goes on", func(t *testing.T) { requireIdle(t, firstPrefill, secondPrefill, onlyDecode) })
	t.Run("it has work again", func(t *testing.T) { f.requireWork(t, firstPrefill, time.Now()) })
}

func (f failures) decodeStopped(t *testing.T) {
	stream := begin(t, f.generate(650, 50, 900).with(streamed()))
	stream.awaitFirst(t)
	calls := []*call{begin(t, f.generate(651, 700, 4))}
	resume := onlyDecode.pause(t)
	since := time.Now()
	for i := range 4 {
		calls = append(calls, begin(t, f.generate(652+i, 100, 4)))
	}
	left := f.leave(t, 660)
	t.Run("clients that leave meanwhile leave nothing in prefill", func(t *testing.T) {
		left()
		held := func(e engine) int { return cases.LoadOf(t, e.url).Total() }
		require.Eventually(t, func() bool { return held(firstPrefill)+held(secondPrefill) <= len(calls) }, freeWithin, 50*time.Millisecond)
	})
	time.Sleep(stopped - time.Since(since))
	resume()
	t.Run("nothing is lost when it goes on", func(t *testing.T) {
		for _, c := range calls {
			c.requireTokens(t, 4)
		}
		stream.requireStream(t, 900)
		requireIdle(t, firstPrefill, secondPrefill, onlyDecode)
	})
	t.Run("calls are answered afterwards", func(t *testing.T) {
		c := begin(t, f.generate(670, 100, 4))
		c.requireTokens(t, 4)
		assert.Less(t, c.took(), heardWithin)
	})
}

// generate is a prompt of some tokens to be answered with some.
func (f failures) generate(seed, prompt, answer int) request {
	return request{f.router + "/generate", cases.Body{"input_ids": cases.Tokens(seed, prompt), "sampling_params": cases.Greedy(answer)}}
}

// chat is the same as a chat.
func (f failures) chat(seed, prompt, answer int) request {
	body := cases.Say("Tell me more", answer).With(cases.Body{"input_ids": cases.Tokens(seed, prompt)})
	return request{f.router + "/v1/chat/completions", body}
}

// pinnedRequest is the prompt whose answer is known.
func pinnedRequest(router string) request { return request{router + "/generate", pinnedBody()} }

// leave makes calls whose clients leave after a second or two. The returned
// function waits until they have.
func (f failures) leave(t *testing.T, seed int) (left func()) {
	var calls []*call
	for i := range 6 {
		c := begin(t, f.generate(seed+i, 100, 4).with(cases.Body{"stream": i%2 == 1}))
		time.AfterFunc(time.Duration(1+i%2)*time.Second, c.leave)
		calls = append(calls, c)
	}
	return func() {
		for _, c := range calls {
			<-c.done
		}
	}
}

// requireWork requires a prefill engine to compute prompts of calls in time.
func (f failures) requireWork(t *testing.T, e engine, healthy time.Time) {
	t.Helper()
	const tokens = 300 // more than probes of its health have
	for {
		before := computed(t, e)
		begin(t, f.generate(rand.IntN(500), tokens, 2)).requireTokens(t, 2)
		if computed(t, e) >= before+tokens {
			t.Logf("measured: %s has work %s after it is healthy", e.name, time.Since(healthy).Round(time.Millisecond))
			return
		}
		require.Less(t, time.Since(healthy), backWithin, "%s gets no work", e.name)
		time.Sleep(100 * time.Millisecond)
	}
}

// state is what Tandem says of a worker.
func (f failures) state(t *testing.T, id string) string {
	t.Helper()
	var list struct {
		Workers []struct{ ID, State string } `json:"workers"`
	}
	cases.Get(t, f.router+"/workers").Into(t, &list)
	for _, w := range list.Workers {
		if w.ID == id {
			return w.State
		}
	}
	require.Fail(t, "no such worker", id)
	return ""
}
