package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/registry"
)

// zone is a resolver. A name that it does not have does not exist.
type zone struct {
	mu    sync.Mutex
	hosts map[string][]string // addresses
	srv   map[string][]net.SRV
	fails map[string]error
	hangs map[string]bool
	asked []time.Time
}

// set changes the zone; no addresses are an empty answer.
func (z *zone) set(host string, addrs ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hosts[host] = addrs
	delete(z.fails, host)
	delete(z.hangs, host)
}

func (z *zone) fail(host string, err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.fails[host] = err
}

func (z *zone) hang(host string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hangs[host] = true
}

func (z *zone) enter(ctx context.Context, host string) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked = append(z.asked, time.Now())
	if z.hangs[host] {
		z.mu.Unlock()
		<-ctx.Done()
		z.mu.Lock()
		return &net.DNSError{Err: "i/o timeout", Name: host, IsTimeout: true}
	}
	return z.fails[host]
}

func (z *zone) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if network != "ip" {
		return nil, errors.New("want addresses of both families")
	}
	if err := z.enter(ctx, host); err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	texts, ok := z.hosts[host]
	if !ok {
		return nil, noSuch(host)
	}
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out, nil
}

func (z *zone) LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error) {
	if service != "" || proto != "" {
		return "", nil, errors.New("want the name alone")
	}
	if err := z.enter(ctx, name); err != nil {
		return "", nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	var out []*net.SRV
	for _, r := range z.srv[name] {
		out = append(out, &r)
	}
	return name, out, nil
}

func noSuch(host string) error {
	return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func newZone() *zone {
	return &zone{hosts: map[string][]string{}, srv: map[string][]net.SRV{}, fails: map[string]error{}, hangs: map[string]bool{}}
}

// resolving runs a source over a zone with a prefill and a decode.
func resolving(t *testing.T, f func(t *testing.T, z *zone, j *journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.set("prefill", "10.0.0.1")
		z.set("decode", "10.0.0.2")
		d := source(t, z, j, "http://prefill:30000 8998", "http://decode:30000")
		stop := running(t, d, j)
		defer stop()
		require.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.2:30000"}}, j.applied())
		f(t, z, j)
	})
}

// source has the first name be of prefills and the others of decodes.
func source(t *testing.T, z *zone, j *journal, names ...string) *discovery.DNS {
	d := &discovery.DNS{Resolver: z, Report: j.report}
	role := pd.Prefill
	for _, text := range names {
		name, err := discovery.ParseDNS(text, role)
		require.NoError(t, err)
		d.Names = append(d.Names, name)
		role = pd.Decode
	}
	return d
}

// aRound is when every name has been looked up again: 30 s, a tenth more, and the
// longest that a lookup may take.
const aRound = 39 * time.Second

func TestEachAddressIsAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.set("prefill", "10.0.0.2", "fd00::1", "10.0.0.1", "::ffff:10.0.0.2", "10.0.0.10", "0.0.0.0", "::", "fe80::1%eth0")
		z.set("decode", "10.0.0.3")
		d := source(t, z, j, "https://prefill:30000 8998", "http://decode")
		assert.Equal(t, "dns", d.Name())
		stop := running(t, d, j)
		defer stop()
		require.Len(t, j.lists, 1)
		spec := func(url string, role pd.Role, bootstrap string) registry.Spec {
			return registry.Spec{URL: url, Role: role, Bootstrap: bootstrap, Priority: 50, Cost: 1}
		}
		assert.Equal(t, []registry.Spec{
			spec("https://10.0.0.1:30000", pd.Prefill, "8998"),
			spec("https://10.0.0.2:30000", pd.Prefill, "8998"),
			spec("https://10.0.0.10:30000", pd.Prefill, "8998"),
			spec("https://[fd00::1]:30000", pd.Prefill, "8998"),
			spec("http://10.0.0.3:80", pd.Decode, ""),
		}, j.lists[0])
		for _, s := range j.lists[0] {
			url, err := registry.ParseURL(s.URL)
			require.NoError(t, err)
			assert.Equal(t, s.URL, url)
		}
		assert.Empty(t, j.reported())
	})
}

func TestNamesAreLookedUpAgain(t *testing.T) {
	resolving(t, func(t *testing.T, z *zone, j *journal) {
		z.set("decode", "10.0.0.3", "10.0.0.2")
		wait(aRound)
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://10.0.0.3:30000"}}, j.applied())
		z.set("decode", "10.0.0.2", "10.0.0.3", "::ffff:10.0.0.3")
		wait(time.Hour)
		assert.Empty(t, j.applied(), "it is the same in another order")
		assert.Empty(t, j.reported())
	})
}

func TestTheWaitBetweenLookupsVaries(t *testing.T) {
	resolving(t, func(t *testing.T, z *zone, _ *journal) {
		wait(time.Hour)
		z.mu.Lock()
		defer z.mu.Unlock()
		waits := map[time.Duration]bool{}
		for i := 2; i < len(z.asked); i += 2 { // two names are asked at a time
			d := z.asked[i].Sub(z.asked[i-2])
			assert.GreaterOrEqual(t, d, 27*time.Second)
			assert.LessOrEqual(t, d, 33*time.Second)
			waits[d] = true
		}
		assert.Greater(t, len(waits), 10)
	})
}

// One name of two fails: it keeps its workers, the other is followed, and what is
// wrong is said once, although its words are never the same.
func TestANameThatFailsKeepsItsWorkers(t *testing.T) {
	f := func(what, want string, fail func(z *zone)) {
		t.Helper()
		resolving(t, func(t *testing.T, z *zone, j *journal) {
			fail(z)
			wait(aRound)
			assert.Equal(t, []string{want}, j.reported(), what)
			assert.Empty(t, j.applied(), what)
			z.set("decode", "10.0.0.7")
			wait(aRound)
			assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.7:30000"}}, j.applied(), what)
			fail(z)
			wait(time.Hour)
			assert.Empty(t, j.reported(), what)

			z.set("prefill", "10.0.0.1")
			wait(aRound)
			assert.Equal(t, []string{""}, j.reported(), what)
			assert.Empty(t, j.applied(), what)
		})
	}
	f("empty answer", "http://prefill:30000: has no address", func(z *zone) { z.set("prefill") })
	f("blocked", "http://prefill:30000: has no address", func(z *zone) { z.set("prefill", "0.0.0.0") })
	f("NXDOMAIN", "http://prefill:30000: lookup prefill: no such host", func(z *zone) { z.fail("prefill", noSuch("prefill")) })
	f("no answer", "http://prefill:30000: lookup prefill: i/o timeout", func(z *zone) { z.hang("prefill") })
	ports := 0
	f("refused", "http://prefill:30000: lookup prefill: read udp 127.0.0.1:1: connection refused", func(z *zone) {
		ports++
		z.fail("prefill", &net.DNSError{Err: fmt.Sprintf("read udp 127.0.0.1:%d: connection refused", ports), Name: "prefill"})
	})
	f("too many", "http://prefill:30000: has more than 4096 addresses", func(z *zone) {
		addrs := make([]string, discovery.MaxAddresses+1)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
		}
		z.set("prefill", addrs...)
	})
}

func TestAnotherFailureIsReportedToo(t *testing.T) {
	resolving(t, func(t *testing.T, z *zone, j *journal) {
		z.set("prefill")
		wait(aRound)
		z.fail("prefill", noSuch("prefill"))
		wait(aRound)
		z.set("decode")
		wait(aRound)
		assert.Equal(t, []string{
			"http://prefill:30000: has no address",
			"http://prefill:30000: lookup prefill: no such host",
			"http://prefill:30000: lookup prefill: no such host\nhttp://decode:30000: has no address",
		}, j.reported())
	})
}

func TestAResolverThatPanicsIsANameThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		d := source(t, newZone(), j, "http://prefill:1")
		d.Resolver = panics{}
		stop := running(t, d, j)
		defer stop()
		assert.Equal(t, []string{"http://prefill:1: panic: out of order"}, j.reported())
	})
}

type panics struct{ discovery.Resolver }

func (panics) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	panic("out of order")
}

// At start names that have answered do not wait for those that have not, and
// those are looked up again soon.
func TestANameThatHasNeverAnsweredHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.set("decode", "10.0.0.2")
		d := source(t, z, j, "http://prefill:30000", "http://decode:30000")
		stop := running(t, d, j)
		defer stop()
		assert.Equal(t, [][]string{{"http://10.0.0.2:30000"}}, j.applied())
		assert.Equal(t, []string{"http://prefill:30000: lookup prefill: no such host"}, j.reported())
		z.set("prefill", "10.0.0.1")
		wait(3 * time.Second)
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.2:30000"}}, j.applied())
		assert.Equal(t, []string{""}, j.reported())
	})
}

func TestNothingIsAppliedBeforeANameHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.hang("prefill")
		stop := running(t, source(t, z, j, "http://prefill:30000", "http://decode:30000"), j)
		defer stop()
		wait(time.Hour)
		assert.Empty(t, j.applied())
		assert.Len(t, j.reported(), 1)
	})
}

func TestRunEndsInTheMiddleOfALookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.hang("prefill")
		running(t, source(t, z, j, "http://prefill:30000"), j)()
		assert.Empty(t, j.reported(), "it was not the name that failed")
	})
}

func TestAnAddressOfTwoRolesIsOfTheFirst(t *testing.T) {
	resolving(t, func(t *testing.T, z *zone, j *journal) {
		z.set("decode", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		z.set("prefill", "10.0.0.1", "10.0.0.2")
		wait(aRound)
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://10.0.0.3:30000"}}, j.applied())
		assert.Equal(t, []string{"http://decode:30000: http://10.0.0.1:30000 is a prefill worker by another name"}, j.reported())
		z.set("decode", "10.0.0.3")
		wait(aRound)
		assert.Equal(t, []string{""}, j.reported())
	})
}

func TestTwoNamesOfOneRoleMayShareAnAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.set("p", "10.0.0.1")
		z.set("d", "10.0.0.2")
		z.set("e", "10.0.0.3", "10.0.0.2")
		stop := running(t, source(t, z, j, "http://p:1", "http://d:1", "http://e:1"), j)
		defer stop()
		assert.Equal(t, [][]string{{"http://10.0.0.1:1", "http://10.0.0.2:1", "http://10.0.0.3:1"}}, j.applied())
		assert.Empty(t, j.reported())
	})
}

func TestSRVRecordsBringHostsAndPorts(t *testing.T) {
	const name = "_http._tcp.prefill"
	records := func(z *zone, list ...net.SRV) {
		z.mu.Lock()
		defer z.mu.Unlock()
		z.srv[name] = list
	}
	synctest.Test(t, func(t *testing.T) {
		z, j := newZone(), &journal{}
		z.set("pod-0.", "10.0.0.1")
		z.set("pod-1.", "10.0.0.2", "fd00::2")
		records(z, net.SRV{Target: "pod-1.", Port: 30001, Priority: 9}, net.SRV{Target: "pod-0.", Port: 30000}, net.SRV{Target: "pod-0.", Port: 30001})
		d := source(t, z, j, "http://"+name+" 8998")
		stop := running(t, d, j)
		defer stop()
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.1:30001", "http://10.0.0.2:30001", "http://[fd00::2]:30001"}}, j.applied())
		assert.Len(t, z.asked, 3, "a host is looked up once")

		// A pod that comes back at another address is another worker.
		z.set("pod-1.", "10.0.0.9")
		wait(aRound)
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.1:30001", "http://10.0.0.9:30001"}}, j.applied())

		z.fail("pod-1.", noSuch("pod-1."))
		wait(aRound)
		assert.Equal(t, [][]string{{"http://10.0.0.1:30000", "http://10.0.0.1:30001"}}, j.applied(), "a host that has gone is no error")
		assert.Empty(t, j.reported())

		z.hang("pod-0.")
		wait(2 * aRound)
		assert.Empty(t, j.applied(), "an answer that is not whole is none")
		assert.Equal(t, []string{"http://" + name + ": lookup pod-0.: i/o timeout"}, j.reported())

		records(z, net.SRV{Target: "."})
		wait(2 * aRound)
		assert.Empty(t, j.applied(), "nothing is an empty answer")
		assert.Equal(t, []string{"http://" + name + ": has no address"}, j.reported())

		records(z, make([]net.SRV, discovery.MaxAddresses+1)...)
		wait(2 * aRound)
		assert.Equal(t, []string{"http://" + name + ": has more than 4096 records"}, j.reported())
		assert.Empty(t, j.applied())
	})
}
