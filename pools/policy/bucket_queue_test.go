package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// queue is one engine that takes its prompts in turn.
type queue struct {
	free    time.Time // when it is done with all it has
	running []job
}

type job struct {
	end  time.Time
	plan *pd.Plan
}

// send has the engine compute a prompt of so many tokens, and returns how long it
// takes until that is done. Attention is quadratic.
func (q *queue) send(plan *pd.Plan, tokens int) time.Duration {
	now, n := time.Now(), float64(tokens)
	if q.free.Before(now) {
		q.free = now
	}
	q.free = q.free.Add(time.Duration((secondsPerRequest + n*secondsPerToken + n*n*1.5e-9) * 1e9))
	q.running = append(q.running, job{q.free, plan})
	return q.free.Sub(now)
}

// finish ends what is done by now.
func (q *queue) finish() {
	for len(q.running) > 0 && !q.running[0].end.After(time.Now()) {
		q.running[0].plan.End(pd.Success, pd.Success)
		q.running = q.running[1:]
	}
}

// ttft sends 3,000 prompts to four engines, nine of ten of them short, and returns
// how long it took until each kind was computed, sorted. Time is that of a bubble.
func ttft(t *testing.T, policy pools.Policy) (short, long []time.Duration) {
	t.Helper()
	const shortTokens, longTokens = 200, 32_000
	set := fleet(t, 4, policy)
	queues := map[pd.WorkerID]*queue{}
	for _, m := range decoders(set) {
		queues[m.Worker.ID] = new(queue)
	}
	r := rand.New(rand.NewPCG(76, 1))
	prompts := [2]*pd.Request{tokens(t, shortTokens), tokens(t, longTokens)}
	for range 3000 {
		time.Sleep(time.Duration(r.ExpFloat64() / 6 * float64(time.Second)))
		for _, q := range queues {
			q.finish()
		}
		if r.IntN(10) > 0 {
			plan := send(t, set, prompts[0])
			short = append(short, queues[plan.Decode.Worker.ID].send(plan, shortTokens))
		} else {
			plan := send(t, set, prompts[1])
			long = append(long, queues[plan.Decode.Worker.ID].send(plan, longTokens))
		}
	}
	slices.Sort(short)
	slices.Sort(long)
	return short, long
}

// F76: short prompts do not wait behind long ones, and those are served as well.
func TestShortPromptsAreQuickWhateverIsSentBesideThem(t *testing.T) {
	p95 := func(sorted []time.Duration) time.Duration { return sorted[len(sorted)*95/100] }
	run := func(policy func() pools.Policy) (short, long time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			all, large := ttft(t, policy())
			require.Greater(t, len(large), 200)
			short, long = p95(all), p95(large)
		})
		return short, long
	}
	turnsShort, turnsLong := run(func() pools.Policy { return new(RoundRobin) })
	short, long := run(func() pools.Policy { return NewBucket(BucketOptions{}) })
	t.Logf("95 %% of short prompts in %v, of long ones in %v; in turns %v and %v", short, long, turnsShort, turnsLong)
	assert.LessOrEqual(t, short, turnsShort*30/100)
	assert.LessOrEqual(t, long, 2*turnsLong)
}
