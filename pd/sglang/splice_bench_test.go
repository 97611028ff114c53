package sglang_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pd/sglang"
	"github.com/tandem-pd/tandem/pd/sse"
)

func BenchmarkEventFailure(b *testing.B) {
	chat := sse.Data(eventsOf(b, golden(b, "frames", "chat.sse"))[1])
	long := []byte(`{"text":"` + strings.Repeat("an error, \\\"error\\\", ", 1<<12) + `","meta_info":{"finish_reason":null}}`)
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"chat event", chat},
		{"generate event", sse.Data(eventsOf(b, golden(b, "frames", "generate.sse"))[0])},
		{"long text that speaks of errors", long},
		{"error frame", sse.Data(eventsOf(b, golden(b, "frames", "lost_prefill_chat.sse"))[0])},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for b.Loop() {
				sglang.EventFailure(c.data)
			}
		})
	}
}

func BenchmarkUsage(b *testing.B) {
	events := eventsOf(b, golden(b, "frames", "chat.sse"))
	for _, c := range []struct {
		name string
		data []byte
	}{{"event without", sse.Data(events[1])}, {"event with", sse.Data(events[len(events)-2])}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sglang.Usage(c.data)
			}
		})
	}
}

func BenchmarkSplice(b *testing.B) {
	for _, tokens := range []int{100, 10_000, 1_000_000} {
		entries := strings.TrimSuffix(strings.Repeat("[-6.097808837890625,128,null],", tokens), ",")
		prefill := fmt.Appendf(nil, `{"text":"a","meta_info":{"id":"a","input_token_logprobs":[%s],"output_token_logprobs":[[-1,2,null]]}}`, entries)
		decode := []byte(`{"text":"a","meta_info":{"id":"a","input_token_logprobs":[],"output_token_logprobs":[[-1,2,null],[-1,3,null]]}}`)
		event := append(append([]byte("data: "), decode...), "\n\n"...)
		p, err := sglang.ReadPrompt(pd.Generate, prefill)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("read/%d tokens", tokens), func(b *testing.B) {
			b.SetBytes(int64(len(prefill)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = sglang.ReadPrompt(pd.Generate, prefill)
			}
		})
		b.Run(fmt.Sprintf("body/%d tokens", tokens), func(b *testing.B) {
			b.SetBytes(int64(len(prefill)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = p.Body(pd.Generate, decode)
			}
		})
		b.Run(fmt.Sprintf("event/%d tokens", tokens), func(b *testing.B) {
			b.SetBytes(int64(len(prefill)))
			b.ReportAllocs()
			for b.Loop() {
				_, _ = p.Event(pd.Generate, event)
			}
		})
	}
}
