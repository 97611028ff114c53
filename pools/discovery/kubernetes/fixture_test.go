package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/pools/registry"
)

// never is a Resync that no test lives to see: what happens comes of the watch.
const never = time.Hour

func TestMain(m *testing.M) { goleak.VerifyTestMain(quiet{m}) }

// quiet fails the tests if client-go has logged anything of its own.
type quiet struct{ *testing.M }

func (q quiet) Run() int {
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	code := q.M.Run()
	klog.Flush()
	if log.Len() > 0 {
		fmt.Fprintf(os.Stderr, "client-go logged:\n%s", log.String())
		code = 1
	}
	return code
}

// pod is one that serves: a prefill, unless it is changed.
func pod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "serving", UID: types.UID("uid-" + name),
			Labels:      map[string]string{"app": "sglang", "role": "prefill", "pod-template-hash": "abc"},
			Annotations: map[string]string{},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue},
			},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func ready(status corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[1].Status = status }
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }

// pairs are the options of a fleet of pairs.
func pairs(resync time.Duration) kubernetes.Options {
	return kubernetes.Options{
		PrefillSelector: map[string]string{"app": "sglang", "role": "prefill"},
		DecodeSelector:  map[string]string{"app": "sglang", "role": "decode"},
		Resync:          resync,
	}
}

// running is a source that runs.
type running struct {
	t    *testing.T
	stop func() // waits until Run has returned

	mu      sync.Mutex
	applied [][]registry.Spec
	reports []string
	counts  []int
}

func start(t *testing.T, server *apiServer, opt kubernetes.Options) *running {
	return startWith(t, server.config(), opt)
}

func startWith(t *testing.T, config *rest.Config, opt kubernetes.Options) *running {
	r := &running{t: t}
	hook := opt.Report
	opt.Report = func(err error) {
		if hook != nil {
			hook(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reports = append(r.reports, err.Error())
	}
	opt.Discovered = func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.counts = append(r.counts, n)
	}
	source, err := kubernetes.New(config, opt)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- source.Run(ctx, func(specs []registry.Spec) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.applied = append(r.applied, specs)
		})
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			require.Fail(t, "Run does not return")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// wants waits until the list that was applied last is this one, each worker as
// "role URL bootstrap".
func (r *running) wants(workers ...string) {
	r.t.Helper()
	want := strings.Join(workers, "\n")
	r.until(func() (string, bool) {
		got, any := r.last()
		return fmt.Sprintf("want workers:\n%s\ngot:\n%s", want, got), any && got == want
	})
}

// reported waits until there was a report with this in it.
func (r *running) reported(part string) {
	r.t.Helper()
	r.until(func() (string, bool) {
		all := r.allReports()
		return fmt.Sprintf("want a report of %q, got:\n%s", part, all), strings.Contains(all, part)
	})
}

func (r *running) until(ok func() (what string, ok bool)) {
	r.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		what, ok := ok()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(r.t, "in vain", "%s\nreports:\n%s", what, r.allReports())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *running) last() (workers string, any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.applied) == 0 {
		return "", false
	}
	var lines []string
	for _, spec := range r.applied[len(r.applied)-1] {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", spec.Role, spec.URL, spec.Bootstrap)))
	}
	return strings.Join(lines, "\n"), true
}

func (r *running) times() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.applied)
}

func (r *running) allReports() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.reports, "\n")
}
