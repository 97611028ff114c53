package policy

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func BenchmarkCacheAware(b *testing.B) {
	for _, members := range []int{4, 64, 1024} {
		for _, kib := range []int{0, 8, 48, 400} {
			r := newRig(b, members, CacheAwareOptions{})
			p, pool := NewCacheAware(CacheAwareOptions{}), prefills(r)
			p.Follow(pool)
			for i := range 2 * members {
				p.Chosen(promptRequest(b, r.cold(48<<10)), pool[i/2])
			}
			req := promptRequest(b, r.cold(kib<<10+100))
			p.Chosen(req, pool[members/2])
			b.Run(fmt.Sprintf("Pick/members=%d/KiB=%d", members, kib), func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						p.Pick(req, pool)
					}
				})
			})
			if members == 64 {
				b.Run(fmt.Sprintf("Chosen/members=%d/KiB=%d", members, kib), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						p.Chosen(req, pool[members/2])
					}
				})
			}
		}
	}
}

// BenchmarkPrompt is what it takes to read a prompt out of a body.
func BenchmarkPrompt(b *testing.B) {
	for _, kib := range []int{8, 48, 400} {
		b.Run(fmt.Sprintf("KiB=%d", kib), func(b *testing.B) {
			body, err := json.Marshal(map[string]string{"text": distinct("a", kib<<10)})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				req, err := pd.NewRequest(pd.Generate, body)
				require.NoError(b, err)
				b.StartTimer()
				req.Prompt()
			}
		})
	}
}
