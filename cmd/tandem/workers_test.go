package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// routerOf is a server that answers GET /workers for those who have the key.
func routerOf(t *testing.T, key, answer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method != http.MethodGet || req.URL.RequestURI() != "/workers":
			w.WriteHeader(http.StatusTeapot)
		case key != "" && req.Header.Get("Authorization") != "Bearer "+key:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(answer))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

const noWorkers = `{"workers":[],"total":0,"stats":{}}`

func TestTheTableOfWorkers(t *testing.T) {
	answer, err := os.ReadFile(filepath.Join("testdata", "workers.json"))
	require.NoError(t, err)
	var list workerList
	require.NoError(t, json.Unmarshal(answer, &list))
	var out bytes.Buffer
	list.write(&out, time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	golden := filepath.Join("testdata", "workers.golden")
	if *update {
		require.NoError(t, os.WriteFile(golden, out.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), out.String())
}

func TestHowLongAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", 59*time.Minute + 59*time.Second: "59m",
		time.Hour: "1h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		assert.Equal(t, want, age(d), d)
	}
}

func TestWhatIsShownDoesNothingToATerminal(t *testing.T) {
	f := func(text, cell, doc string) {
		t.Helper()
		assert.Equal(t, cell, visible(text))
		assert.Equal(t, doc, escaped(text))
	}
	f("plain é 漢 \"x\"", "plain é 漢 \"x\"", "plain é 漢 \"x\"")
	f("\x1b[2J", `\x1b[2J`, `\u001b[2J`)
	f("a\tb", `a\tb`, `a\u0009b`)
	f("\u009b1m", `\u009b1m`, `\u009b1m`)
	f("\u202ebackwards", `\u202ebackwards`, `\u202ebackwards`)
	f("\U000e0001", `\U000e0001`, `\udb40\udc01`)
	f("\xff", "\ufffd", "\ufffd")
	assert.Equal(t, "-", visible(""))
	assert.Equal(t, `a\nb`, visible("a\nb"))
	assert.Equal(t, "a\nb", escaped("a\nb"), "lines stay where JSON has them")
}

func TestWorkersOnce(t *testing.T) {
	const one = `{"workers":[{"id":"d0","role":"decode","state":"ready","breaker":"closed","url":"http://d\u001b:1"}]}`
	url := routerOf(t, "", one)
	code, out, errs := ended(t, "workers", "--url", url+"/")
	assert.Equal(t, exitOK, code, errs)
	assert.Equal(t, ""+
		"ID  ROLE    MODEL  STATE  IN FLIGHT  BREAKER  HIT RATE  LAST ERROR  REASON  URL\n"+
		"d0  decode  -      ready  0          closed   -         -           -       http://d\\x1b:1\n", out)
	code, out, errs = ended(t, "workers", "--url", url, "--json")
	assert.Equal(t, exitOK, code, errs)
	assert.JSONEq(t, one, out)
	assert.Contains(t, out, "\n  \"workers\": [\n")

	code, out, _ = ended(t, "workers", "--url", routerOf(t, "", noWorkers))
	assert.Equal(t, exitOK, code)
	assert.Equal(t, "The router has no workers.\n", out)
}

func TestWorkersWithAKey(t *testing.T) {
	url := routerOf(t, "s3cret", noWorkers)
	f := func(code int, says string, args ...string) {
		t.Helper()
		got, out, errs := ended(t, append([]string{"workers", "--url", url}, args...)...)
		assert.Equal(t, code, got)
		assert.Contains(t, out+errs, says)
		assert.NotContains(t, out+errs, "s3cret")
		assert.NotContains(t, out+errs, "wr0ng")
	}
	f(exitFailure, "asks for its key: give it with --api-key or TANDEM_API_KEY")
	f(exitFailure, "does not take this key", "--api-key", "wr0ng")
	f(exitOK, "no workers", "--api-key", "s3cret")
	t.Setenv(keyVariable, "s3cret")
	f(exitOK, "no workers")
	f(exitFailure, "does not take this key", "--api-key", "wr0ng")
	t.Setenv(keyVariable, "s3cret\nwr0ng")
	f(exitFailure, "no router can be reached at")
}

func TestWorkersOfWhatIsNoRouter(t *testing.T) {
	status := func(code int) string {
		s := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/", code))
		t.Cleanup(s.Close)
		return s.URL
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	f := func(url, says string, args ...string) {
		t.Helper()
		code, out, errs := ended(t, append([]string{"workers", "--url", url}, args...)...)
		assert.Equal(t, exitFailure, code)
		assert.Empty(t, out)
		assert.Equal(t, "tandem: "+says, strings.TrimSpace(errs))
	}
	code, _, errs := ended(t, "workers", "--url", gone.URL)
	assert.Equal(t, exitFailure, code)
	assert.Contains(t, errs, "no router can be reached at "+gone.URL)
	assert.NotContains(t, errs, "Get ")
	url := status(http.StatusTemporaryRedirect)
	f(url, url+" answers GET /workers with status 307")
	for _, answer := range []string{"", "<html>", "[]", `{"workers":null}`, `{"workers":[{"id":7}]}`} {
		url := routerOf(t, "", answer)
		f(url, url+" does not answer as a router does")
	}
	url = routerOf(t, "", "<html>")
	f(url, url+" does not answer as a router does", "--json")
}

func TestACommandLineForWorkersThatIsWrong(t *testing.T) {
	f := func(says string, args ...string) {
		t.Helper()
		code, out, errs := ended(t, append([]string{"workers"}, args...)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Empty(t, out)
		assert.Contains(t, errs, says)
	}
	f("unexpected argument", "decode-0")
	f("--url", "--url", "127.0.0.1:30000")
	f("--url", "--url", "http://a:1/workers")
	f("--url \"***@a:1\"", "--url", "http://u:p@a:1")
	f("--watch", "--watch", "0")
	f("--watch", "--watch", "x")
	f("--api-key", "--api-key", "a b")
	f("unknown flag --jsn; did you mean --json?", "--jsn")
}

// While it watches, a router may go and come back.
func TestWorkersAreWatched(t *testing.T) {
	asked := make(chan int)
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 2 {
			w.WriteHeader(http.StatusBadGateway)
		} else {
			_, _ = w.Write([]byte(noWorkers))
		}
		asked <- n
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs output
	w := &watcher{
		url: s.URL, every: time.Millisecond, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		now: time.Now, stdout: &out, stderr: &errs,
	}
	ended := make(chan error)
	go func() { ended <- w.run(ctx) }()
	for range 4 {
		<-asked
	}
	cancel()
	require.NoError(t, <-ended)
	assert.True(t, strings.HasPrefix(out.String(), "The router has no workers.\n\nThe router has no workers.\n"), out.String())
	assert.Equal(t, "tandem: "+s.URL+" answers GET /workers with status 502\n", errs.String())
}
