package discovery_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery"
)

func TestNamesAreReadAsFlagsGiveThem(t *testing.T) {
	f := func(text string, role pd.Role, want discovery.DNSName, shown string) {
		t.Helper()
		got, err := discovery.ParseDNS(text, role)
		require.NoError(t, err, text)
		want.Role = role
		assert.Equal(t, want, got, text)
		assert.Equal(t, shown, got.String(), text)
	}
	f("http://prefill.svc.local:30000 8998", pd.Prefill,
		discovery.DNSName{Host: "prefill.svc.local", Port: 30000, Scheme: "http", Bootstrap: "8998"}, "http://prefill.svc.local:30000")
	f(" http://prefill:30000   none ", pd.Prefill,
		discovery.DNSName{Host: "prefill", Port: 30000, Scheme: "http", Bootstrap: "none"}, "http://prefill:30000")
	f("http://decode.svc.local.:30000/", pd.Decode,
		discovery.DNSName{Host: "decode.svc.local.", Port: 30000, Scheme: "http"}, "http://decode.svc.local.:30000")
	f("http://_http._tcp.prefill.svc.local 8998", pd.Prefill,
		discovery.DNSName{Host: "_http._tcp.prefill.svc.local", Scheme: "http", Bootstrap: "8998"}, "http://_http._tcp.prefill.svc.local")
	f("https://_http._tcp.engines", pd.Regular,
		discovery.DNSName{Host: "_http._tcp.engines", Scheme: "https"}, "https://_http._tcp.engines")
	f("http://engines", pd.Regular, discovery.DNSName{Host: "engines", Port: 80, Scheme: "http"}, "http://engines:80")
	f("https://engines", pd.Regular, discovery.DNSName{Host: "engines", Port: 443, Scheme: "https"}, "https://engines:443")
	f("http://[fd00::1]:30000", pd.Decode, discovery.DNSName{Host: "fd00::1", Port: 30000, Scheme: "http"}, "http://[fd00::1]:30000")
	f("http://_engines:30000", pd.Decode, discovery.DNSName{Host: "_engines", Port: 30000, Scheme: "http"}, "http://_engines:30000")
}

func TestNamesThatCannotBeRead(t *testing.T) {
	f := func(text string, role pd.Role, want string) {
		t.Helper()
		_, err := discovery.ParseDNS(text, role)
		assert.EqualError(t, err, want, text)
	}
	f("", pd.Prefill, "want a URL, and for prefills the bootstrap port after it")
	f("http://a:1 8998 8999", pd.Prefill, "want a URL, and for prefills the bootstrap port after it")
	f("prefill.svc.local:30000", pd.Prefill, "want http://HOST:PORT or https://HOST:PORT")
	f("ftp://a:1", pd.Prefill, "want a URL that starts with http:// or https://")
	f("http://a:0", pd.Prefill, "want a port from 1 to 65535")
	f("http://a:1/v1", pd.Prefill, "a worker's URL must end after HOST:PORT")
	f("http://u:"+secret+"@a:1", pd.Prefill, "a worker's URL must hold no credentials")
	f("http://_http._tcp.a:30000", pd.Prefill, "an SRV name brings the ports: want it without one")
	f("http://a:1 8998", pd.Decode, "only prefills have a bootstrap port")
	f("http://a:1 b:8998", pd.Prefill, `bootstrap port "b:8998": want 1 to 65535, or none`)
}
