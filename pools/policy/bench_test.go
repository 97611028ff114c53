package policy

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools"
)

// benched is a policy with a pool that has worked for a while and has two requests
// in flight for each worker.
func benched(b *testing.B, build builder, n int) (pools.Policy, []*pools.Member) {
	b.Helper()
	p := build(b)
	set := fleet(b, n, p)
	reqs := visits(b, min(n, 100))
	for i := range 2 * n {
		send(b, set, reqs[i%len(reqs)])
	}
	for range minSeen {
		send(b, set, visit(b, 0)).End(pd.Success, pd.Success)
	}
	return p, decoders(set)
}

// large are two requests with prompts of so many KiB, and keys.
func large(b *testing.B, kib int) [2]*pd.Request {
	b.Helper()
	var reqs [2]*pd.Request
	for i := range reqs {
		reqs[i] = promptRequest(b, distinct(fmt.Sprintf("large %d ", i), kib<<10))
		reqs[i].Header.Set(headerRoutingKey, fmt.Sprintf("0f8fad5b-d9cb-469f-a165-7086772895%d", i))
		reqs[i].Prompt()
	}
	return reqs
}

// BenchmarkPick is of requests with a key and a prompt of 48 KiB.
func BenchmarkPick(b *testing.B) {
	for _, name := range append(Names(), "manual") {
		for _, n := range []int{4, 64, 1024} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p, members := benched(b, builders()[name], n)
				reqs := large(b, 48) // in turn, so that nothing is kept from the last one
				if f, ok := p.(pools.Follower); ok {
					f.Chosen(reqs[0], members[n/2])
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					p.Pick(reqs[i%2], members)
				}
			})
		}
	}
}

// BenchmarkPickTargeted is of requests that name a worker.
func BenchmarkPickTargeted(b *testing.B) {
	for _, n := range []int{4, 64, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, p := Targeted(Random{}, Random{})
			set := fleet(b, n, p)
			members, req := decoders(set), targeting(fmt.Sprintf("decode-%d", n/2))
			b.ReportAllocs()
			for b.Loop() {
				p.Pick(req, members)
			}
		})
	}
}

// BenchmarkPickAndChosen is all that a policy does for a request.
func BenchmarkPickAndChosen(b *testing.B) {
	for _, kib := range []int{8, 48, 400} {
		b.Run(fmt.Sprintf("cache_aware/KiB=%d", kib), func(b *testing.B) {
			p, members := benched(b, builders()["cache_aware"], 64)
			reqs := large(b, kib)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req := reqs[i%2]
				p.(pools.Follower).Chosen(req, p.Pick(req, members))
			}
		})
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
