package simengine

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNothingIsLeftOfManyCallsThatEndInManyWays(t *testing.T) {
	p := newPair(t, func(a, d *Config) {
		a.TimeScale, d.TimeScale = 0.01, 0.01
		d.MaxTotalTokens = 400
		d.Speed.TokenInterval = time.Millisecond
	})
	p.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := p.routed(1+10*i, object{"text": []string{"a", "b"}, "stream": i%2 == 0, "rid": newID(), "sampling_params": object{"max_new_tokens": 20}})
			if i%3 == 0 {
				body["text"] = "a"
			}
			pre, dec := p.start(ctx, p.prefill, "/generate", body), p.start(ctx, p.decode, "/generate", body)
			switch i % 4 {
			case 1:
				time.Sleep(rand.N(30 * time.Millisecond))
				cancel()
			case 2:
				time.Sleep(rand.N(30 * time.Millisecond))
				for _, e := range []*Engine{p.prefill, p.decode} {
					p.post(t.Context(), e, "/abort_request", object{"rid": body["rid"]})
				}
			}
			<-pre
			<-dec
		})
	}
	wg.Wait()
	for _, e := range []*Engine{p.prefill, p.decode} {
		require.NoError(t, e.WaitIdle(t.Context()))
		require.NoError(t, e.Fatal())
		loads := e.Loads()
		loads.Served = 0
		require.Equal(t, Loads{}, loads)
	}
	l := p.decode.current()
	require.Equal(t, 400, l.budget.free)
	require.Empty(t, l.live.m)
	require.Empty(t, l.peers.live)
	require.Empty(t, p.prefill.current().live.m)
	require.Empty(t, p.prefill.current().rooms.live)
}

func BenchmarkPair(b *testing.B) {
	prefill, err := Start(Config{Role: Prefill, KeepRecords: -1})
	require.NoError(b, err)
	defer prefill.Close()
	decode, err := Start(Config{Role: Decode, KeepRecords: -1})
	require.NoError(b, err)
	defer decode.Close()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	p := &pair{prefill: prefill, decode: decode, client: &http.Client{Transport: transport}}
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			body := p.routed(rand.Int64(), object{"text": "hello world", "sampling_params": object{"max_new_tokens": 8}})
			pre := p.start(context.Background(), prefill, "/generate", body)
			if got := p.post(context.Background(), decode, "/generate", body); got.status != http.StatusOK {
				b.Errorf("decode: %d %v", got.status, got.err)
			}
			<-pre
		}
	})
}
