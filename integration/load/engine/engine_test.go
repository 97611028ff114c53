package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs an engine for the test and returns its addresses and its control.
func start(t *testing.T) (Config, *Control) {
	t.Helper()
	var addrs [3]string
	for i := range addrs {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer ln.Close()
		addrs[i] = ln.Addr().String()
		ln.Close()
	}
	cfg := Config{Prefill: addrs[0], Decode: addrs[1], Control: addrs[2]}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	c := &Control{Addr: cfg.Control}
	t.Cleanup(func() {
		c.Client.CloseIdleConnections()
		cancel()
		assert.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool {
		_, err := c.Counts(t.Context())
		return err == nil
	}, 5*time.Second, 10*time.Millisecond)
	return cfg, c
}

// post sends body on a connection of its own and returns the whole answer.
func post(t *testing.T, addr, path string, body io.Reader) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+addr+path, "application/json", body)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

func TestBothLegsAnswerOneKilobyteOfJSON(t *testing.T) {
	cfg, c := start(t)
	for _, addr := range []string{cfg.Prefill, cfg.Decode} {
		for path := range legPaths {
			status, body := post(t, addr, path, strings.NewReader(`{"text":"hi"}`))
			assert.Equal(t, 200, status)
			assert.True(t, json.Valid([]byte(body)), body)
			assert.Len(t, body, answerSize)
		}
	}
	got, err := c.Counts(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Counts{Prefill: 3, Decode: 3}, got)
}

func TestGenerateAnswersCarryMetaInfo(t *testing.T) {
	cfg, _ := start(t)
	_, body := post(t, cfg.Decode, "/generate", strings.NewReader(`{}`))
	var got struct {
		Meta struct {
			ID     string
			Finish map[string]any `json:"finish_reason"`
		} `json:"meta_info"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	assert.NotEmpty(t, got.Meta.ID)
	assert.Equal(t, "length", got.Meta.Finish["type"])
}

func TestDecodeStreamsTheEventsOfTheMode(t *testing.T) {
	cfg, c := start(t)
	require.NoError(t, c.SetMode(t.Context(), Mode{Prefill: AnswerStream, Decode: AnswerStream, Events: 5, EventBytes: 200, Gap: time.Millisecond}))
	for path := range legPaths {
		_, body := post(t, cfg.Decode, path, strings.NewReader(`{}`))
		events := strings.SplitAfter(body, "\n\n")
		require.Len(t, events, 7, "five events, [DONE], nothing") // SplitAfter ends with ""
		for _, e := range events[:5] {
			assert.Len(t, e, 200)
			assert.True(t, json.Valid([]byte(strings.TrimPrefix(e, "data: "))), e)
		}
		assert.Equal(t, done, events[5])
		_, body = post(t, cfg.Prefill, path, strings.NewReader(`{}`))
		assert.Equal(t, 2, strings.Count(body, "data: "))
	}
}

func TestBodiesAreReadWholeInEitherFraming(t *testing.T) {
	cfg, _ := start(t)
	conn, err := net.Dial("tcp", cfg.Decode)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	br := bufio.NewReader(conn)
	long := strings.Repeat("a", 300_000)
	for _, framed := range []string{
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(long), long),
		fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n3\r\nabc\r\n0\r\n\r\n", len(long), long),
		"Content-Length: 0\r\n\r\n",
	} {
		_, err := io.WriteString(conn, "POST /generate HTTP/1.1\r\nHost: x\r\n"+framed)
		require.NoError(t, err)
		resp, err := http.ReadResponse(br, nil)
		require.NoError(t, err, "the call after the last body must be in step")
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
	}
}

func TestRoutersLearnWhatAWorkerIs(t *testing.T) {
	cfg, _ := start(t)
	f := func(path, want string) {
		t.Helper()
		status, body := post(t, cfg.Decode, path, nil)
		assert.Equal(t, 200, status)
		assert.Contains(t, body, want)
	}
	f("/health", "")
	f("/server_info", `"disaggregation_mode":"decode"`)
	f("/get_server_info", `"disaggregation_mode":"decode"`)
	f("/model_info", `"model_path":"bench"`)
	f("/get_model_info", `"model_path":"bench"`)
	f("/v1/models", `"id":"bench"`)
	status, _ := post(t, cfg.Decode, "/nowhere", nil)
	assert.Equal(t, 404, status)
}

func TestAHeldLegTellsWhenItWasAbortedAndClosed(t *testing.T) {
	cfg, c := start(t)
	require.NoError(t, c.SetMode(t.Context(), Mode{Prefill: Refuse, Decode: Hold, Record: true}))
	require.NoError(t, c.NewRun(t.Context()))
	status, _ := post(t, cfg.Prefill, "/generate", strings.NewReader(`{"rid":"r1"}`))
	assert.Equal(t, 400, status)
	conn, err := net.Dial("tcp", cfg.Decode)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST /generate HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"rid\":\"r1\"}")
	require.NoError(t, err)
	_, err = c.Wait(t.Context(), 2, Opened, 10*time.Second)
	require.NoError(t, err)
	post(t, cfg.Decode, abortPath, strings.NewReader(`{"rid":"another"}`))
	post(t, cfg.Prefill, abortPath, strings.NewReader(`{"rid":"r1"}`))
	between := time.Now().UnixNano()
	post(t, cfg.Decode, abortPath, strings.NewReader(`{"rid":"r1"}`))
	conn.Close()
	legs, err := c.Wait(t.Context(), 2, Ended, 10*time.Second)
	require.NoError(t, err)
	require.Len(t, legs, 2)
	assert.NotZero(t, legs[0].Answered)
	assert.Greater(t, legs[1].Aborted, between, "neither another rid nor the other worker counts")
	assert.GreaterOrEqual(t, legs[1].Closed, legs[1].Aborted)
	assert.Equal(t, legs[1].Aborted, legs[1].Freed())
}

func TestANewModeEndsSilentLegs(t *testing.T) {
	cfg, c := start(t)
	require.NoError(t, c.SetMode(t.Context(), Mode{Decode: Stall, EventBytes: 200, Record: true}))
	conn, err := net.Dial("tcp", cfg.Decode)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, "POST /generate HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	first := make([]byte, 200)
	_, err = io.ReadFull(resp.Body, first)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(first), "data: "))
	require.NoError(t, c.SetMode(t.Context(), Mode{}))
	_, err = io.ReadAll(resp.Body)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "a stalled stream never ends well")
}
