package chaos

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/integration/simengine"
)

func TestTimeThatTheProcessLostDoesNotCount(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	s := newStalls(start)
	s.beat(at(beat))
	assert.Zero(t, s.lost(start, at(beat)))
	s.beat(at(time.Second))
	assert.Equal(t, time.Second-beat, s.lost(start, at(time.Second)))
	assert.Equal(t, 300*time.Millisecond, s.lost(at(500*time.Millisecond), at(800*time.Millisecond)), "the part that is asked for")
	assert.True(t, s.busy(at(time.Second)))
	for d := time.Second; d < 3*time.Second; d += beat {
		s.beat(at(d))
	}
	assert.False(t, s.busy(at(3*time.Second)))
	assert.Equal(t, 2*time.Second+beat, s.lost(at(3*time.Second-beat), at(5*time.Second)), "a beat that does not come")
	assert.Equal(t, time.Second-2*beat, s.longest())
	for i := range 3 * maxStalls {
		s.beat(at(time.Minute + time.Duration(i)*time.Second))
	}
	assert.LessOrEqual(t, len(s.spans), maxStalls)
}

func TestAFaultCountsForATimeAfterItsEnd(t *testing.T) {
	start := time.Now()
	at := func(d time.Duration) time.Time { return start.Add(d) }
	line := newTimeline()
	end := line.begin("p", spell{kind: "pause", from: at(10 * time.Second), paused: true})
	assert.True(t, line.faulty("p", at(0), at(10*time.Second)))
	assert.True(t, line.faulty("p", at(time.Hour), at(2*time.Hour)), "it lasts")
	assert.Equal(t, 5*time.Second, line.paused("p", at(0), at(15*time.Second)))
	end(at(20 * time.Second))
	assert.False(t, line.faulty("p", at(0), at(10*time.Second-1)))
	assert.True(t, line.faulty("p", at(20*time.Second+aftermath), at(time.Minute)))
	assert.False(t, line.faulty("p", at(20*time.Second+aftermath+1), at(time.Minute)))
	assert.False(t, line.faulty("d", at(0), at(time.Minute)), "another engine")
	assert.Equal(t, 10*time.Second, line.paused("p", at(0), at(time.Minute)))
	assert.Regexp(t, "^p: pause from .* for 10s$", line.between(at(20*time.Second), at(time.Minute)))
	assert.Empty(t, line.between(at(21*time.Second), at(time.Minute)))
	line.begin("d", spell{from: at(0), harmless: true})
	assert.False(t, line.faulty("d", at(0), at(time.Minute)))
}

func TestAPlanIsDecidedByItsSeedAndLeavesNoKindOut(t *testing.T) {
	deal := func(seed uint64, role simengine.Role) [][]episode {
		return plan(rand.New(rand.NewPCG(seed, 1)), role, 4, 2*time.Minute)
	}
	assert.Equal(t, deal(1, simengine.Prefill), deal(1, simengine.Prefill))
	assert.NotEqual(t, deal(1, simengine.Prefill), deal(2, simengine.Prefill))
	for _, role := range []simengine.Role{simengine.Prefill, simengine.Decode} {
		seen := map[string]bool{}
		for _, engine := range deal(1, role) {
			var length time.Duration
			for _, e := range engine {
				seen[e.kind.name] = true
				assert.False(t, e.kind.prefillOnly && role == simengine.Decode)
				length += e.well + e.ill
			}
			assert.GreaterOrEqual(t, length, 2*time.Minute)
		}
		for _, k := range kinds {
			assert.Equal(t, role == simengine.Prefill || !k.prefillOnly, seen[k.name], "%s: %s", role, k.name)
		}
	}
}
