package kubernetes_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/pools/registry"
)

const (
	portsKey     = "smg.ai/worker-ports"
	bootstrapKey = "sglang.ai/bootstrap-port"
)

func TestAPodIsAWorkerWhileItServes(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.with(func(s *apiServer) { s.careless = true }) // or some would not get as far as here
	server.set(pod("other", "10.0.0.9"))
	r := start(t, server, pairs(never))

	const worker, other = "prefill http://10.0.0.1:80", "prefill http://10.0.0.9:80"
	f := func(what string, change func(*corev1.Pod)) {
		t.Helper()
		server.set(pod("a", "10.0.0.1"))
		r.wants(worker, other)
		server.set(pod("a", "10.0.0.1", change))
		r.wants(other)
		assert.Empty(t, r.allReports(), what)
	}
	f("not ready", ready(corev1.ConditionFalse))
	f("readiness is not known", ready(corev1.ConditionUnknown))
	f("no word of readiness", func(p *corev1.Pod) { p.Status.Conditions = nil })
	f("evicted", func(p *corev1.Pod) { p.Status.PodIP = "" })
	f("being deleted", terminating)
	f("pending", phase(corev1.PodPending))
	f("failed", phase(corev1.PodFailed))
	f("done", phase(corev1.PodSucceeded))
	f("state is not known", phase(corev1.PodUnknown))
	f("of another application", label("app", "web"))
	f("of no role", label("role", "router"))
	f("without labels", func(p *corev1.Pod) { p.Labels = nil })
	server.set(pod("a", "10.0.0.1"))
	r.wants(worker, other)
}

func TestAPodThatIsNotReadyJoinsWhenItIs(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1", ready(corev1.ConditionFalse)))
	r := start(t, server, pairs(never))
	r.wants()
	server.set(pod("a", "10.0.0.1"))
	r.wants("prefill http://10.0.0.1:80")
}

func TestAPodThatIsDeletedWhileNotReadyStaysAway(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
	r := start(t, server, pairs(never))
	r.wants("prefill http://10.0.0.1:80", "prefill http://10.0.0.2:80")
	server.set(pod("a", "10.0.0.1", ready(corev1.ConditionFalse)))
	server.set(pod("a", "10.0.0.1", ready(corev1.ConditionFalse), terminating))
	server.delete("serving/a")
	r.wants("prefill http://10.0.0.2:80")
}

func TestAPodThatIsRelabelledChangesItsRole(t *testing.T) {
	t.Parallel()
	for _, careless := range []bool{false, true} {
		server := newAPIServer(t)
		server.with(func(s *apiServer) { s.careless = careless })
		server.set(pod("a", "10.0.0.1", annotation(bootstrapKey, "8998")))
		r := start(t, server, pairs(never))
		r.wants("prefill http://10.0.0.1:80 8998")
		server.set(pod("a", "10.0.0.1", annotation(bootstrapKey, "8998"), label("role", "decode")))
		r.wants("decode http://10.0.0.1:80")
		server.set(pod("a", "10.0.0.1", label("role", "standby")))
		r.wants()
	}
}

func TestAnotherAddressIsAnotherWorker(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1"))
	r := start(t, server, pairs(never))
	r.wants("prefill http://10.0.0.1:80")
	server.set(pod("a", "10.0.0.7"))
	r.wants("prefill http://10.0.0.7:80")
}

func TestAWorkerSaysWhichPodItIs(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1", annotation(bootstrapKey, "8998")))
	opt := pairs(never)
	opt.Port = 30000
	r := start(t, server, opt)
	r.wants("prefill http://10.0.0.1:30000 8998")
	assert.Equal(t, registry.Spec{
		URL: "http://10.0.0.1:30000", Role: pd.Prefill, Bootstrap: "8998",
		Priority: registry.DefaultPriority, Cost: registry.DefaultCost,
		Labels: map[string]string{"smg.ai/pod-name": "a", "smg.ai/pod-uid": "uid-a", "namespace": "serving"},
	}, r.applied[0][0])

	replaced := pod("a", "10.0.0.1", annotation(bootstrapKey, "8998"))
	replaced.UID = "uid-later"
	server.set(replaced)
	r.until(func() (string, bool) { return "want the pod that took its place", r.times() == 2 })
	assert.Equal(t, "uid-later", r.applied[1][0].Labels["smg.ai/pod-uid"])
}

func TestPodsOfOneHostAreToldApartByTheirPorts(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(
		pod("a", "192.0.2.1", annotation(portsKey, "30000"), annotation(bootstrapKey, "8998")),
		pod("b", "192.0.2.1", annotation(portsKey, "30001"), annotation(bootstrapKey, "8999")),
		pod("c", "192.0.2.1", annotation(portsKey, "30002"), label("role", "decode")),
	)
	r := start(t, server, pairs(never))
	r.wants("prefill http://192.0.2.1:30000 8998", "prefill http://192.0.2.1:30001 8999", "decode http://192.0.2.1:30002")
	server.delete("serving/a")
	r.wants("prefill http://192.0.2.1:30001 8999", "decode http://192.0.2.1:30002")
	assert.Empty(t, r.allReports())
}

func TestTheFirstPodByUIDHasAnAddressThatTwoClaim(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("b", "192.0.2.1", label("role", "decode")), pod("c", "192.0.2.2"))
	r := start(t, server, pairs(never))
	r.wants("decode http://192.0.2.1:80", "prefill http://192.0.2.2:80")
	server.set(pod("a", "192.0.2.1"))
	r.wants("prefill http://192.0.2.1:80", "prefill http://192.0.2.2:80")
	server.delete("serving/c")
	r.wants("prefill http://192.0.2.1:80")
	assert.Equal(t, "pod serving/b: http://192.0.2.1:80 is already that of pod serving/a", r.allReports(), "once")
	server.delete("serving/a")
	r.wants("decode http://192.0.2.1:80")
}

func TestAnnotationsSayThePorts(t *testing.T) {
	t.Parallel()
	f := func(name string, p *corev1.Pod, report string, workers ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newAPIServer(t)
			server.set(p)
			r := start(t, server, pairs(never))
			r.wants(workers...)
			if report != "" {
				report = "pod serving/a: " + report
			}
			assert.Equal(t, report, r.allReports())
		})
	}
	const number = ": the number of entries is not that of ports, "
	entry := func(key, n string) string {
		return "annotation " + key + ": entry " + n + " is no port from 1 to 65535"
	}

	f("one port", pod("a", "10.0.0.1", annotation(portsKey, "8000")), "", "prefill http://10.0.0.1:8000")
	f("several", pod("a", "10.0.0.1", annotation(portsKey, "8001, 8000")), "",
		"prefill http://10.0.0.1:8000", "prefill http://10.0.0.1:8001")
	f("one twice", pod("a", "10.0.0.1", annotation(portsKey, "8000,8000")), "", "prefill http://10.0.0.1:8000")
	f("not a number", pod("a", "10.0.0.1", annotation(portsKey, "8000,http")), entry(portsKey, "2"), "prefill http://10.0.0.1:80")
	f("port 0", pod("a", "10.0.0.1", annotation(portsKey, "0")), entry(portsKey, "1"), "prefill http://10.0.0.1:80")
	f("too high a port", pod("a", "10.0.0.1", annotation(portsKey, "65536")), entry(portsKey, "1"), "prefill http://10.0.0.1:80")
	f("empty", pod("a", "10.0.0.1", annotation(portsKey, "")), entry(portsKey, "1"), "prefill http://10.0.0.1:80")
	f("too many", pod("a", "10.0.0.1", annotation(portsKey, strings.Repeat("8000,", 64)+"8000")),
		"annotation smg.ai/worker-ports: more than 64 ports", "prefill http://10.0.0.1:80")

	f("a bootstrap port", pod("a", "10.0.0.1", annotation(bootstrapKey, " 8998 ")), "", "prefill http://10.0.0.1:80 8998")
	f("none", pod("a", "10.0.0.1", annotation(bootstrapKey, "None")), "", "prefill http://10.0.0.1:80 none")
	f("no number", pod("a", "10.0.0.1", annotation(bootstrapKey, "x")), entry(bootstrapKey, "1"), "prefill http://10.0.0.1:80")
	f("bootstrap port 0", pod("a", "10.0.0.1", annotation(bootstrapKey, "0")), entry(bootstrapKey, "1"), "prefill http://10.0.0.1:80")
	f("negative", pod("a", "10.0.0.1", annotation(bootstrapKey, "-1")), entry(bootstrapKey, "1"), "prefill http://10.0.0.1:80")
	f("of a decode", pod("a", "10.0.0.1", annotation(bootstrapKey, "x"), label("role", "decode")), "", "decode http://10.0.0.1:80")
	f("one each", pod("a", "10.0.0.1", annotation(portsKey, "8001,8000,8002"), annotation(bootstrapKey, "9001,none,9002")), "",
		"prefill http://10.0.0.1:8000 none", "prefill http://10.0.0.1:8001 9001", "prefill http://10.0.0.1:8002 9002")
	f("one of them wrong", pod("a", "10.0.0.1", annotation(portsKey, "8000,8001"), annotation(bootstrapKey, "x,9001")),
		entry(bootstrapKey, "1"), "prefill http://10.0.0.1:8000", "prefill http://10.0.0.1:8001 9001")
	f("too few", pod("a", "10.0.0.1", annotation(portsKey, "8000,8001"), annotation(bootstrapKey, "9000")),
		"annotation "+bootstrapKey+number+"2", "prefill http://10.0.0.1:8000 9000", "prefill http://10.0.0.1:8001")
	f("more than there are", pod("a", "10.0.0.1", annotation(bootstrapKey, "9000,9001")),
		"annotation "+bootstrapKey+number+"1", "prefill http://10.0.0.1:80 9000")

	f("IPv6", pod("a", "2001:DB8::1", annotation(bootstrapKey, "8998")), "", "prefill http://[2001:db8::1]:80 8998")
	f("IPv4 in IPv6", pod("a", "::ffff:10.0.0.1"), "", "prefill http://10.0.0.1:80")
	f("of one link only", pod("a", "fe80::1%eth0"), "its address is none that can be called")
	f("no address", pod("a", "pending"), "its address is none that can be called")
}

func TestTheBootstrapAnnotationCanBeAnother(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	server.set(pod("a", "10.0.0.1", annotation(bootstrapKey, "8998"), annotation("example.org/room", "7000")))
	opt := pairs(never)
	opt.BootstrapAnnotation = "example.org/room"
	start(t, server, opt).wants("prefill http://10.0.0.1:80 7000")
}

func TestSelectorsChoosePodsAndTheServerIsAskedForNoMoreThanItNeedSend(t *testing.T) {
	t.Parallel()
	f := func(name string, opt kubernetes.Options, query string, workers ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, careless := range []bool{false, true} {
				server := newAPIServer(t)
				server.with(func(s *apiServer) { s.careless = careless })
				server.set(
					pod("a", "10.0.0.1"), pod("b", "10.0.0.2", label("role", "decode")),
					pod("c", "10.0.0.3", label("app", "vision")), pod("d", "10.0.0.4", label("role", "")),
				)
				opt.Resync = never
				r := start(t, server, opt)
				r.wants(workers...)
				r.until(func() (string, bool) { return "want a watch", len(server.seen(true)) > 0 })
				for _, call := range append(server.seen(false), server.seen(true)...) {
					assert.Equal(t, query, call.query.Get("labelSelector"))
				}
			}
		})
	}
	sel := func(pairs ...string) map[string]string {
		selector := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			selector[pairs[i]] = pairs[i+1]
		}
		return selector
	}
	const a, b, c = "prefill http://10.0.0.1:80", "decode http://10.0.0.2:80", "prefill http://10.0.0.3:80"
	f("whole engines", kubernetes.Options{Selector: sel("app", "sglang", "role", "decode")},
		"app=sglang,role=decode", "regular http://10.0.0.2:80")
	f("a label without a value", kubernetes.Options{Selector: sel("role", "")}, "role=", "regular http://10.0.0.4:80")
	f("pairs", pairs(never), "app in (sglang),role in (decode,prefill)", a, b)
	f("prefill only", kubernetes.Options{PrefillSelector: sel("role", "prefill")}, "role=prefill", a, c)
	f("decode only", kubernetes.Options{DecodeSelector: sel("role", "decode")}, "role=decode", b)
	f("nothing in common", kubernetes.Options{PrefillSelector: sel("app", "vision"), DecodeSelector: sel("role", "decode")}, "", b, c)
	f("both choose it", kubernetes.Options{PrefillSelector: sel("role", "prefill"), DecodeSelector: sel("app", "sglang")}, "",
		a, b, c, "decode http://10.0.0.4:80")
	f("no pod has the label", kubernetes.Options{Selector: sel("tier", "")}, "tier=")
}

func TestABurstIsOneChange(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t)
	r := start(t, server, pairs(never))
	r.wants()
	var last string
	for i := range 100 {
		p := pod("a", "10.0.0.1", annotation(bootstrapKey, string(rune('1'+i%9))))
		last = p.Annotations[bootstrapKey]
		server.set(p)
	}
	r.wants("prefill http://10.0.0.1:80 " + last)
	require.Less(t, r.times(), 50)
}
