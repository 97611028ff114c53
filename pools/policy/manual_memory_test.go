package policy

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestManualMemoryIsBounded(t *testing.T) {
	const sessions, bound = 1_000_000, 1 << 16
	members := idle(t, 4)
	hit, other := 0, ""
	p := newManual(t, members, ManualOptions{MaxKeys: bound, Bound: func(name string) {
		if hit++; name != "manual_keys" {
			other = name
		}
	}})
	regular := ofSession(0)
	home := p.Pick(regular, members)
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before, start := heap(), time.Now()
	for i := 1; i < sessions; i++ {
		p.Pick(ofSession(i), members)
		if i%(bound/2) == 0 {
			require.Same(t, home, p.Pick(regular, members), "who comes again stays")
		}
	}
	t.Logf("%d sessions, %.0f ns each, %d bytes for each that is remembered",
		sessions, float64(time.Since(start).Nanoseconds())/sessions, (heap()-before)/bound)
	assert.Len(t, p.known, bound)
	assert.Equal(t, sessions-bound, hit)
	assert.Empty(t, other)
	assert.Less(t, (heap()-before)/bound, int64(300))
	soundManual(t, p)
}

func BenchmarkManual(b *testing.B) {
	const sessions = 100_000
	requests := make([]*pd.Request, sessions)
	for i := range requests {
		requests[i] = ofSession(i)
	}
	for _, n := range []int{4, 64, 1024} {
		members := idle(b, n)
		b.Run(fmt.Sprintf("known/members=%d", n), func(b *testing.B) {
			p := newManual(b, members, ManualOptions{})
			picks(b, p, sessions, members)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(sessions); pb.Next(); i++ {
					p.Pick(requests[i%sessions], members)
				}
			})
		})
		for _, how := range assignments {
			b.Run(fmt.Sprintf("new/%s/members=%d", how, n), func(b *testing.B) {
				p := newManual(b, members, ManualOptions{Assignment: how, MaxKeys: sessions / 2})
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					p.Pick(requests[i%sessions], members)
				}
			})
		}
	}
}
