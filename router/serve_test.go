package router

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
)

func TestDataRoutesPassTheRequestOn(t *testing.T) {
	for _, c := range []struct {
		method, path string
		endpoint     pd.Endpoint
		id           string
	}{
		{"POST", "/generate", pd.Generate, "gnt-"},
		{"PUT", "/generate", pd.Generate, "gnt-"},
		{"POST", "/v1/chat/completions", pd.Chat, "chatcmpl-"},
		{"POST", "/v1/completions", pd.Completions, "cmpl-"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			got := make(chan *pd.Request, 1)
			r := start(t, Config{Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
				got <- req
				return whole(`{"text":"hi"}`), nil
			})})
			resp, body := r.do(c.method, c.path, `{"prompt":"x","text":"x"}`, "Traceparent", "00-1", "X-Odd", "a", "X-Odd", "b")
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, `{"text":"hi"}`, body)
			assert.EqualValues(t, len(body), resp.ContentLength)
			assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))

			req := within(t, got, "the request")
			assert.Equal(t, c.endpoint, req.Endpoint)
			assert.Equal(t, c.method, req.Method)
			assert.False(t, req.Start.IsZero())
			assert.Equal(t, []string{"a", "b"}, req.Header["X-Odd"])
			assert.Equal(t, "00-1", req.Header.Get("Traceparent"))
			assert.Empty(t, req.Header.Get("Content-Length"))
			assert.Regexp(t, regexp.MustCompile("^"+c.id+"[A-Za-z0-9]{24}$"), req.ID)
			assert.Equal(t, req.ID, req.Header.Get("X-Request-Id"), "the legs carry the id")
			assert.Equal(t, req.ID, resp.Header.Get("X-Request-Id"), "the client gets it back")
		})
	}
}

func TestRequestIDIsTheFirstHeaderPresent(t *testing.T) {
	f := func(want string, header ...string) {
		t.Helper()
		r := start(t, Config{Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
			return whole(req.ID + " " + req.Header.Get("X-Request-Id")), nil
		})})
		resp, body := r.do("POST", "/generate", `{}`, header...)
		assert.Equal(t, want+" "+want, body)
		assert.Equal(t, []string{want}, resp.Header["X-Request-Id"])
	}
	f("a", "x-request-id", "a", "x-trace-id", "b")
	f("b", "x-trace-id", "b", "request-id", "c")
	f("c", "request-id", "c")
	f("d", "x-correlation-id", "d", "x-trace-id", "e")
}

func TestAnswerKeepsStatusAndEveryHeader(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		resp := whole("x")
		resp.Status = http.StatusAccepted
		resp.Header = http.Header{
			"Content-Type": {"text/odd"}, "Set-Cookie": {"a=1; Path=/", "a=2; Path=/x", "b=3"},
			"X-Twice": {"1", "2"}, "X-Request-Id": {"the engine's"},
		}
		return resp, nil
	})})
	resp, _ := r.do("POST", "/generate", `{}`, "x-request-id", "mine")
	assert.Equal(t, http.StatusAccepted, resp.StatusCode)
	assert.Equal(t, []string{"a=1; Path=/", "a=2; Path=/x", "b=3"}, resp.Header["Set-Cookie"])
	assert.Equal(t, []string{"1", "2"}, resp.Header["X-Twice"])
	assert.Equal(t, []string{"text/odd"}, resp.Header["Content-Type"])
	assert.Equal(t, []string{"mine"}, resp.Header["X-Request-Id"])
	assert.Len(t, resp.Header["Date"], 1)
}

func TestStreamArrivesEventByEvent(t *testing.T) {
	bodies := make(chan *fakeBody, 1)
	r := start(t, Config{Server: serving(func(ctx context.Context, req *pd.Request) (*pd.Response, error) {
		b := newFakeBody(ctx)
		bodies <- b
		return stream(b), nil
	})})
	resp := r.open("POST", "/v1/chat/completions", `{"stream":true}`)
	defer resp.Body.Close()
	assert.Equal(t, "no", resp.Header.Get("X-Accel-Buffering"))
	assert.Equal(t, "no-cache", resp.Header.Get("Cache-Control"))
	assert.Equal(t, []string{"chunked"}, resp.TransferEncoding)
	body := within(t, bodies, "the body")
	buf := make([]byte, 64)
	for _, event := range []string{"data: 1\n\n", "data: 2\n\n"} {
		body.chunks <- event // the next event is made only after this one has arrived
		n, err := io.ReadAtLeast(resp.Body, buf, len(event))
		require.NoError(t, err)
		assert.Equal(t, event, string(buf[:n]))
	}
	close(body.chunks)
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Empty(t, rest)
	within(t, body.gone, "the body's close")
	assert.EqualValues(t, 1, body.closed.Load())
}

func TestStreamKeepsTheEnginesCacheHeaders(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		resp := stream(io.NopCloser(strings.NewReader("data: 1\n\n")))
		resp.Header.Set("Cache-Control", "private")
		resp.Header.Set("X-Accel-Buffering", "yes")
		return resp, nil
	})})
	resp, _ := r.do("POST", "/generate", `{}`)
	assert.Equal(t, []string{"private"}, resp.Header["Cache-Control"])
	assert.Equal(t, []string{"yes"}, resp.Header["X-Accel-Buffering"])
}

// failingReader gives its text and then an error.
type failingReader struct {
	text *strings.Reader
	err  error
}

func (r failingReader) Read(p []byte) (int, error) {
	if r.text.Len() == 0 {
		return 0, r.err
	}
	return r.text.Read(p)
}

func TestCutAnswerLooksCut(t *testing.T) {
	for name, resp := range map[string]func() *pd.Response{
		"a stream whose body fails": func() *pd.Response {
			return stream(io.NopCloser(failingReader{strings.NewReader("data: 1\n\n"), errors.New("lost")}))
		},
		"a large body shorter than its length": func() *pd.Response {
			resp := whole(strings.Repeat("x", 64<<10))
			resp.Length++
			return resp
		},
		"a large body of known length that fails": func() *pd.Response {
			resp := whole("")
			resp.Length, resp.Body = 1<<20, io.NopCloser(failingReader{strings.NewReader(strings.Repeat("x", 64<<10)), errors.New("lost")})
			return resp
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) { return resp(), nil })})
			got := r.open("POST", "/generate", `{}`)
			defer got.Body.Close()
			assert.Equal(t, http.StatusOK, got.StatusCode)
			_, err := io.ReadAll(got.Body)
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	}
}

// The head of a small plain answer goes out with its body, in one piece, so
// nothing has been sent yet when the body fails at once.
func TestSmallAnswerThatFailsClosesTheConnection(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) {
		resp := whole("")
		resp.Length, resp.Body = 100, io.NopCloser(failingReader{strings.NewReader("x"), errors.New("lost")})
		return resp, nil
	})})
	c := r.dial(post("/generate", `{}`))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
	}
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestConnectionServesManyRequests(t *testing.T) {
	r := start(t, Config{Server: serving(func(context.Context, *pd.Request) (*pd.Response, error) { return whole("ok"), nil })})
	c := r.dial("")
	for range 5 {
		_, err := io.WriteString(c, post("/generate", `{"text":"x"}`))
		require.NoError(t, err)
		resp, body := answered(t, c)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, "ok", body)
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	r := start(t, Config{Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		return whole(req.Model), nil
	})})
	c := r.dial(post("/generate", `{"model":"1"}`) + post("/generate", `{"model":"2"}`) + post("/generate", `{"model":"3"}`))
	got := make([]byte, 0, 4<<10)
	for !strings.HasSuffix(string(got), "\r\n\r\n3") {
		n, err := c.Read(got[len(got):cap(got)])
		require.NoError(t, err)
		got = got[:len(got)+n]
	}
	assert.Regexp(t, `(?s)\r\n\r\n1.*\r\n\r\n2.*\r\n\r\n3$`, string(got))
}

func TestClientsOfHTTP10GetNoChunks(t *testing.T) {
	r := start(t, Config{Server: serving(func(_ context.Context, req *pd.Request) (*pd.Response, error) {
		switch req.Model {
		case "stream":
			return stream(io.NopCloser(strings.NewReader("data: 1\n\n"))), nil
		case "cut":
			return stream(io.NopCloser(failingReader{strings.NewReader("data: 1\n\n"), errors.New("lost")})), nil
		}
		return whole("ok"), nil
	})})
	request := func(model string) string {
		return strings.Replace(post("/generate", `{"model":"`+model+`"}`), "HTTP/1.1", "HTTP/1.0", 1)
	}
	resp, body := answered(t, r.dial(request("stream")))
	assert.Equal(t, "data: 1\n\n", body)
	assert.Empty(t, resp.TransferEncoding)
	assert.True(t, resp.Close)

	resp, body = answered(t, r.dial(request("whole")))
	assert.Equal(t, "ok", body)
	assert.EqualValues(t, 2, resp.ContentLength)

	_, err := io.ReadAll(r.dial(request("cut")))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
}
