package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeysOnTheCommandLine(t *testing.T) {
	cfg := parseOK(t, onePair+"--api-key s3cret-1 --worker-api-key=s3cret-2 --worker-api-key s3cret-3")
	assert.Equal(t, "s3cret-1", cfg.apiKey)
	for _, w := range cfg.workers() {
		assert.Equal(t, "s3cret-3", w.APIKey)
	}
	cfg = parseOK(t, onePair+"--api-key s3cret-1")
	assert.Empty(t, cfg.decode[0].APIKey, "the router's key is not the workers'")
}

func TestKeysAreNotShown(t *testing.T) {
	for _, flag := range []string{"api-key", "worker-api-key"} {
		for _, value := range []string{"", "s3cret with-a-space", "s3cret\n", "s3cretÿ"} {
			l := newCommandLine()
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			l.register(fs)
			require.NoError(t, fs.Parse([]string{"--prefill=http://p", "--decode=http://d", "--" + flag + "=" + value}))
			_, err := l.config(nil)
			assert.EqualError(t, err, "--"+flag+": want a key of visible ASCII characters")
			assert.NotContains(t, fs.FlagUsages()+fs.Lookup(flag).Value.String(), "s3cret")
		}
	}
	_, err := parse(t, onePair+"--api-key s3cret --port x")
	assert.EqualError(t, err, `--port "x": want a number from 0 to 65535`)
}

func TestOrigins(t *testing.T) {
	f := func(want ...string) {
		t.Helper()
		var line strings.Builder
		line.WriteString(onePair + "--cors-allowed-origins")
		for _, name := range want {
			line.WriteString(" " + name)
		}
		assert.Equal(t, want, parseOK(t, line.String()+" --port 1").origins)
	}
	f("https://app.example")
	f("http://localhost:3000", "https://app.example:8443", "chrome-extension://abcdef")
	f("*")
	f([]string{}...)
	assert.Empty(t, parseOK(t, onePair).origins, "none by default")
	for _, bad := range []string{"app.example", "https://app.example/", "https://a.example/x", "https://u:s3cret@a.example", "https://", "null"} {
		_, err := parse(t, onePair+"--cors-allowed-origins https://ok.example "+bad)
		require.Error(t, err, bad)
		assert.Contains(t, err.Error(), "want origins as browsers name them, such as https://app.example, or *")
		assert.NotContains(t, err.Error(), "s3cret")
	}
}
