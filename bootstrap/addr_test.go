package bootstrap

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHost(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"http://prefill-a:30000", "prefill-a"},
		{"http://prefill-a", "prefill-a"},
		{"https://p.example.internal:8443", "p.example.internal"},
		{"http://10.0.0.7:30000", "10.0.0.7"},
		{"http://[::1]:30000", "[::1]"},
		{"http://[2001:DB8:0::7]", "[2001:db8::7]"},
		{"http://[fe80::1%25eth0]:30000", "[fe80::1%eth0]"},
		{"http://user:pass@10.0.0.7:30000", "10.0.0.7"},
		{"http://user:pass@[::1]:30000", "[::1]"},
	} {
		got, err := Host(c.url)
		require.NoError(t, err, c.url)
		assert.Equal(t, c.want, got, c.url)
	}
}

func TestHostOfABadURL(t *testing.T) {
	for _, url := range []string{"", "http://", "http://:30000", "prefill-a", "http://[::1", "http://u:secret@bad host:1"} {
		_, err := Host(url)
		require.Error(t, err, url)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestParsePort(t *testing.T) {
	for in, want := range map[string]int{"8998": 8998, "1": 1, "65535": 65535, "none": 0, "None": 0, "NONE": 0} {
		got, err := ParsePort(in)
		require.NoError(t, err, in)
		assert.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "0", "-1", "65536", "+8998", " 8998", "8998 ", "0x10", "null", "9e3"} {
		_, err := ParsePort(in)
		assert.ErrorContains(t, err, "want 1 to 65535, or none", in)
	}
}

func TestResolve(t *testing.T) {
	const url = "http://user:pass@10.0.0.7:30000"
	for _, c := range []struct {
		at, host string
		port     int
	}{
		{"", "10.0.0.7", 0},
		{"none", "10.0.0.7", 0},
		{"8998", "10.0.0.7", 8998},
		{"fabric-a:9001", "fabric-a", 9001},
		{"[::1]:9001", "[::1]", 9001},
		{"fabric-a:none", "fabric-a", 0},
	} {
		host, port, err := Resolve(url, c.at)
		require.NoError(t, err, c.at)
		assert.Equal(t, c.host, host, c.at)
		assert.Equal(t, c.port, port, c.at)
	}
	for _, at := range []string{"0", "x", ":9001", "fabric-a:", "fabric-a:0", "::1:9001", "[::g]:1", "a b:1", "a/b:1"} {
		_, _, err := Resolve(url, at)
		assert.Error(t, err, at)
	}
	_, _, err := Resolve("http://", "8998")
	assert.Error(t, err)
}
