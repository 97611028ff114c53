package discovery_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// nameServer answers over UDP at a loopback address. It has the records of names;
// what it does not have does not exist.
type nameServer struct {
	mu      sync.Mutex
	records map[string][]dnsmessage.ResourceBody
}

func (s *nameServer) set(name string, records ...dnsmessage.ResourceBody) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = records
}

// serve is a resolver that asks the server and nobody else.
func (s *nameServer) serve(t *testing.T) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		question := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(question)
			if err != nil {
				return // it is closed
			}
			if answer := s.answer(question[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() {
		conn.Close()
		wg.Wait()
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func (s *nameServer) answer(packet []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(packet) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m = dnsmessage.Message{
		Header:    dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true},
		Questions: m.Questions,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	records, ok := s.records[q.Name.String()]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, body := range records {
		if typeOf(body) == q.Type {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET}, Body: body,
			})
		}
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

func typeOf(body dnsmessage.ResourceBody) dnsmessage.Type {
	switch body.(type) {
	case *dnsmessage.AResource:
		return dnsmessage.TypeA
	case *dnsmessage.AAAAResource:
		return dnsmessage.TypeAAAA
	default:
		return dnsmessage.TypeSRV
	}
}

func address(text string) dnsmessage.ResourceBody {
	if a := netip.MustParseAddr(text); a.Is6() {
		return &dnsmessage.AAAAResource{AAAA: a.As16()}
	}
	return &dnsmessage.AResource{A: netip.MustParseAddr(text).As4()}
}

func service(target string, port uint16) dnsmessage.ResourceBody {
	return &dnsmessage.SRVResource{Target: dnsmessage.MustNewName(target), Port: port}
}

func TestNamesOfARealServer(t *testing.T) {
	server, j := &nameServer{records: map[string][]dnsmessage.ResourceBody{}}, &journal{}
	server.set("decode.test.", address("10.0.0.2"), address("fd00::2"))
	server.set("_http._tcp.prefill.test.", service("pod-0.prefill.test.", 30000), service("pod-1.prefill.test.", 30001), service("pod-2.prefill.test.", 30002))
	server.set("pod-0.prefill.test.", address("10.0.0.10"))
	server.set("pod-1.prefill.test.", address("10.0.0.11"))
	d := &discovery.DNS{Resolver: server.serve(t), Every: 50 * time.Millisecond, Report: j.report}
	for text, role := range map[string]pd.Role{"http://_http._tcp.prefill.test. 8998": pd.Prefill, "http://decode.test.:30000": pd.Decode} {
		name, err := discovery.ParseDNS(text, role)
		require.NoError(t, err)
		d.Names = append(d.Names, name)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, j.apply) }()
	comes := func(urls ...string) {
		t.Helper()
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			j.mu.Lock()
			defer j.mu.Unlock()
			if assert.NotEmpty(c, j.lists) {
				var got []string
				for _, s := range j.lists[len(j.lists)-1] {
					got = append(got, s.URL)
				}
				assert.ElementsMatch(c, urls, got)
			}
		}, 20*time.Second, 10*time.Millisecond)
	}
	reports := func(pattern string) {
		t.Helper()
		assert.EventuallyWithT(t, func(c *assert.CollectT) {
			if said := j.reported(); assert.NotEmpty(c, said) {
				assert.Regexp(c, pattern, said[len(said)-1])
			}
		}, 20*time.Second, 10*time.Millisecond)
	}
	comes("http://10.0.0.10:30000", "http://10.0.0.11:30001", "http://10.0.0.2:30000", "http://[fd00::2]:30000")
	server.set("pod-2.prefill.test.", address("10.0.0.12"))
	server.set("decode.test.")
	comes("http://10.0.0.10:30000", "http://10.0.0.11:30001", "http://10.0.0.12:30002", "http://10.0.0.2:30000", "http://[fd00::2]:30000")
	reports(`^http://decode\.test\.:30000: lookup decode\.test\..*: no such host$`)
	server.set("decode.test.", address("10.0.0.3"))
	comes("http://10.0.0.10:30000", "http://10.0.0.11:30001", "http://10.0.0.12:30002", "http://10.0.0.3:30000")
	reports("^$")

	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "Run does not end")
	}
}
