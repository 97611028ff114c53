package patch

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// benchBodies are request bodies of ordinary fields and a prompt, as one long text or as token ids.
func benchBodies() map[string][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	bodies := make(map[string][]byte)
	for size, n := range map[string]int{"1KB": 1 << 10, "100KB": 100 << 10, "10MB": 10 << 20} {
		const fields = `{"model":"m","stream":true,"rid":null,"sampling_params":{"max_new_tokens":128,"temperature":0.7,"n":1},` +
			`"return_logprob":false,"user":"someone","%s":%s}`
		var text, ids strings.Builder
		for text.Len() < n-200 {
			text.WriteString("Words of a prompt, with \\\"quotes\\\", line feeds\\n and the odd word in caf\u00e9 spelling. ")
		}
		for ids.Len() < n-200 {
			ids.WriteString(strconv.Itoa(random.IntN(150_000)) + ",")
		}
		bodies[size+"/text"] = fmt.Appendf(nil, fields, "text", `"`+text.String()+`"`)
		bodies[size+"/ids"] = fmt.Appendf(nil, fields, "input_ids", "["+strings.TrimSuffix(ids.String(), ",")+"]")
	}
	return bodies
}

var benchNames = []string{"1KB/text", "1KB/ids", "100KB/text", "100KB/ids", "10MB/text", "10MB/ids"}

// bareScan is the least that reading the top level takes: the decoder alone, in the mode that Scan uses.
func bareScan(tb testing.TB, body []byte) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := decoder.ReadToken(); err != nil {
		tb.Fatal(err)
	}
	for decoder.PeekKind() == '"' {
		if _, err := decoder.ReadToken(); err != nil {
			tb.Fatal(err)
		}
		if _, err := decoder.ReadValue(); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := decoder.ReadToken(); err != nil {
		tb.Fatal(err)
	}
	if _, err := decoder.ReadToken(); err != io.EOF {
		tb.Fatal(err)
	}
}

// editAndSend is a request's whole way through the package: scan, edit, write three members, read all of it.
func editAndSend(tb testing.TB, body, buf []byte) {
	doc, err := Scan(body)
	if err != nil {
		tb.Fatal(err)
	}
	e := doc.Edit()
	e.Cut("bootstrap_host", "bootstrap_port", "bootstrap_room")
	p := e.Payload(
		Member{"bootstrap_host", []byte(`"10.0.0.1"`)},
		Member{"bootstrap_port", []byte(`8998`)},
		Member{"bootstrap_room", []byte(`1234567890123456789`)},
	)
	r := p.NewReader()
	read := int64(0)
	for {
		n, err := r.Read(buf)
		read += int64(n)
		if err == io.EOF {
			break
		}
	}
	if read != p.Len() {
		tb.Fatal(read, p.Len())
	}
}

func BenchmarkBareScan(b *testing.B) {
	bodies := benchBodies()
	for _, name := range benchNames {
		body := bodies[name]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				bareScan(b, body)
			}
		})
	}
}

func BenchmarkEdit(b *testing.B) {
	bodies := benchBodies()
	buf := make([]byte, 64<<10)
	for _, name := range benchNames {
		body := bodies[name]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				editAndSend(b, body, buf)
			}
		})
	}
}

// BenchmarkRatio takes turns between the two, so that a change of the machine's speed meets both alike, and reports how
// much of a bare scan the whole way takes.
func BenchmarkRatio(b *testing.B) {
	bodies := benchBodies()
	buf := make([]byte, 64<<10)
	for _, name := range benchNames {
		body := bodies[name]
		turns := max(1, (64<<10)/len(body))
		b.Run(name, func(b *testing.B) {
			var bare, edit time.Duration
			for b.Loop() {
				start := time.Now()
				for range turns {
					bareScan(b, body)
				}
				middle := time.Now()
				for range turns {
					editAndSend(b, body, buf)
				}
				bare += middle.Sub(start)
				edit += time.Since(middle)
			}
			b.ReportMetric(float64(edit)/float64(bare), "edit/bare")
		})
	}
}

// BenchmarkLen counts the elements of long arrays.
func BenchmarkLen(b *testing.B) {
	ids := "[" + strings.Repeat("12345,", 1<<17) + "1]"
	for name, raw := range map[string]string{
		"ids":     ids,
		"batch":   "[" + ids + "," + ids + "]",
		"prompts": "[" + strings.Repeat(`"Words of a prompt, with \"quotes\".",`, 1<<14) + `""]`,
	} {
		v := Value{Raw: []byte(raw)}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				v.Len()
			}
		})
	}
}
