package sse_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/pd/sse"
)

func BenchmarkFramer(b *testing.B) {
	event := []byte("data: " + `{"text":"` + strings.Repeat("token ", 80) + `"}` + "\n\n")
	stream := bytes.Repeat(event, 64)
	for _, c := range []struct {
		name string
		size int // bytes per write
	}{{"one event per write", len(event)}, {"32 KiB per write", 32 << 10}, {"one byte per write", 1}} {
		b.Run(c.name, func(b *testing.B) {
			var f sse.Framer
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				done := 0
				for rest := stream; len(rest) > 0; {
					n := min(c.size, len(rest))
					_ = f.Push(rest[:n], func(event []byte) error {
						if sse.IsDone(event) {
							done++
						}
						return nil
					})
					rest = rest[n:]
				}
			}
		})
	}
}

func BenchmarkData(b *testing.B) {
	for name, event := range map[string][]byte{
		"short":      []byte("data: " + strings.Repeat("x", 300) + "\n\n"),
		"one MiB":    []byte("data: " + strings.Repeat("x", 1<<20) + "\n\n"),
		"in CR only": []byte(strings.Repeat("id: 1\r", 1<<10) + "data: x\r\r"),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for b.Loop() {
				sse.Data(event)
			}
		})
	}
}
