package router

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

// sizes serves a request by the size of its body.
func sizes(_ context.Context, req *pd.Request) (*pd.Response, error) {
	return whole(fmt.Sprint(len(req.Doc.Bytes()))), nil
}

// text is a JSON object of exactly n bytes.
func text(n int) string { return `{"text":"` + strings.Repeat("x", n-11) + `"}` }

func chunked(path string, chunks ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", path)
	for _, c := range chunks {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(c), c)
	}
	return b.String() + "0\r\n\r\n"
}

func TestBodiesOfEverySizeArriveWhole(t *testing.T) {
	r := start(t, Config{Server: serving(sizes)})
	for _, n := range []int{11, 4 << 10, 8<<10 + 1, 64 << 10, 1<<20 + 7} {
		resp, got := answered(t, r.dial(post("/generate", text(n))))
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, fmt.Sprint(n), got, "sized")
		resp, got = answered(t, r.dial(chunked("/generate", text(n)[:5], text(n)[5:])))
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, fmt.Sprint(n), got, "chunked")
	}
}

func TestBodyLimits(t *testing.T) {
	const limit = 10_000
	for _, c := range []struct {
		name, request string
		status        int
		code          string
	}{
		{"as large as allowed", post("/generate", text(limit)), 200, ""},
		{"chunked, as large as allowed", chunked("/generate", text(limit)), 200, ""},
		{"one byte more", post("/generate", text(limit+1)), 413, "payload_too_large"},
		{"chunked, one byte more", chunked("/generate", text(limit)+" "), 413, "payload_too_large"},
		{"announced and not sent", "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 10001\r\n\r\n", 413, "payload_too_large"},
		{"announced, waiting for permission", "POST /generate HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 10001\r\n\r\n", 413, "payload_too_large"},
		{"chunked without an end", "POST /generate HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n" + text(20_000), 413, "payload_too_large"},
		{"encoded", "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx", 415, "unsupported_content_encoding"},
		{"chunks that are none", "POST /generate HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, Config{Server: serving(sizes), MaxPayload: limit})
			resp, _ := answered(t, r.dial(c.request))
			assert.Equal(t, c.status, resp.StatusCode)
			assert.Equal(t, c.code, resp.Header.Get("X-Tandem-Error"))
			assert.Equal(t, c.status != 200, resp.Close, "what was not read cannot be followed by a request")
		})
	}
}

func TestRefusedUploadStillGetsItsAnswer(t *testing.T) {
	r := start(t, Config{Server: serving(sizes), MaxPayload: 60_000_000})
	const upload = " HTTP/1.1\r\nHost: t\r\nContent-Length: 50000000\r\n\r\n"
	for _, c := range []struct {
		name, head string
		status     int
	}{
		{"too large", "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 70000000\r\n\r\n", 413},
		{"no such path", "POST /nothing" + upload, 404},
		{"another method", "PATCH /generate" + upload, 405},
		{"no such endpoint here", "POST /v1/embeddings" + upload, 501},
		{"a body that is encoded", "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Encoding: gzip\r\nContent-Length: 900\r\n\r\n", 415},
		{"a header without end", "POST /generate HTTP/1.1\r\nHost: t\r\nX-A: ", 431},
	} {
		t.Run(c.name, func(t *testing.T) {
			begun := time.Now()
			conn := r.dial(c.head)
			for range 50 { // a client that sends for a while before it looks
				if _, err := conn.Write(bytes.Repeat([]byte("x"), 16<<10)); err != nil {
					assert.Greater(t, time.Since(begun), lingerTime, "a reset may destroy the answer")
					break
				}
				time.Sleep(time.Millisecond)
			}
			resp, _ := answered(t, conn)
			assert.Equal(t, c.status, resp.StatusCode)
		})
	}
}

func TestExpectedBodyIsAskedFor(t *testing.T) {
	r := start(t, Config{Server: serving(sizes)})
	c := r.dial("POST /generate HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n")
	buf := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 100 Continue\r\n\r\n", string(buf))
	_, err = io.WriteString(c, text(11))
	require.NoError(t, err)
	_, got := answered(t, c)
	assert.Equal(t, "11", got)
}

func TestBodyMemoryIsTakenBeforeReadingAndHeldToTheAnswersEnd(t *testing.T) {
	bodies := make(chan *fakeBody, 1)
	bounds := make(chan string, 8)
	r := start(t, Config{
		MaxBodyMemory: 10_000,
		Bound:         func(name string) { bounds <- name },
		Server: serving(func(ctx context.Context, req *pd.Request) (*pd.Response, error) {
			if !req.Stream {
				return sizes(ctx, req)
			}
			b := newFakeBody(ctx)
			bodies <- b
			return stream(b), nil
		}),
	})
	c := r.dial(post("/generate", `{"stream":true,"text":"`+strings.Repeat("x", 6000)+`"}`))
	body := within(t, bodies, "the stream")

	for _, request := range []string{post("/generate", text(6000)), chunked("/generate", text(6000))} {
		resp, _ := answered(t, r.dial(request))
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "1", resp.Header.Get("Retry-After"))
		assert.Equal(t, "body_memory_exhausted", resp.Header.Get("X-Tandem-Error"))
		assert.Equal(t, "body_memory", within(t, bounds, "the bound"))
	}
	resp, _ := answered(t, r.dial("POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 9000\r\n\r\n{"))
	assert.Equal(t, 503, resp.StatusCode, "refused before the body has come")
	_, got := answered(t, r.dial(post("/generate", text(3000))))
	assert.Equal(t, "3000", got, "what fits is served")

	close(body.chunks)
	_, _ = answered(t, c)
	within(t, body.gone, "the stream's end")
	require.Eventually(t, func() bool {
		_, got := answered(t, r.dial(post("/generate", text(6000))))
		return got == "6000"
	}, patience, 10*time.Millisecond)
}

func TestSilentUploadTimesOut(t *testing.T) {
	for name, request := range map[string]string{
		"in the headers": "POST /generate HTTP/1.1\r\nHos",
		"before a body":  "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 20000\r\n\r\n",
		"in a body":      "POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat(" ", 10_000),
		"in a chunk":     "POST /generate HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Server: serving(nil), BodyIdle: 100 * time.Millisecond})
			resp, _ := answered(t, r.dial(request))
			assert.Equal(t, http.StatusRequestTimeout, resp.StatusCode)
			assert.Equal(t, "request_timeout", resp.Header.Get("X-Tandem-Error"))
			assert.True(t, resp.Close)
		})
	}
}

func TestSlowUploadThatMovesIsServed(t *testing.T) {
	r := start(t, Config{Server: serving(sizes), BodyIdle: 2 * time.Second})
	c := r.dial("POST /generate HTTP/1.1\r\nHost: t\r\nContent-Length: 11\r\n\r\n")
	for _, b := range text(11) { // 3.3 s in all
		time.Sleep(300 * time.Millisecond)
		_, err := io.WriteString(c, string(b))
		require.NoError(t, err)
	}
	_, got := answered(t, c)
	assert.Equal(t, "11", got)
}

func TestBudgetNeverExceedsItsLimit(t *testing.T) {
	b := budget{limit: 10}
	assert.True(t, b.take(10))
	assert.False(t, b.take(1))
	b.give(4)
	assert.False(t, b.take(5))
	assert.True(t, b.take(4))
	assert.False(t, b.take(1<<62))
}
