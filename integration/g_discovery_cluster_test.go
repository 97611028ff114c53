package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tandem-pd/tandem/integration/simengine"
)

// cluster is as much of a Kubernetes API server as tells of pods.
type cluster struct {
	*httptest.Server

	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	version int
	log     []change
	changed chan struct{} // closed at the next change
	calls   int
}

// change is one of a pod, either of which may be nil.
type change struct {
	version int
	was, is *corev1.Pod
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{pods: map[string]*corev1.Pod{}, version: 1, changed: make(chan struct{})}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

// kubeconfig is a file that says where the cluster is.
func (c *cluster) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u", "user": {}}]}`, c.URL)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// set creates or changes a pod.
func (c *cluster) set(pod *corev1.Pod) { c.put(pod.Name, pod.DeepCopy(), true) }

// delete deletes a pod by force: nobody is told beforehand.
func (c *cluster) delete(name string) { c.put(name, nil, true) }

// lose deletes a pod, and the watches that are open stay silent.
func (c *cluster) lose(name string) { c.put(name, nil, false) }

func (c *cluster) put(name string, pod *corev1.Pod, told bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	was := c.pods[name]
	delete(c.pods, name)
	if pod != nil {
		pod.ResourceVersion = strconv.Itoa(c.version)
		c.pods[name] = pod
	}
	if told {
		c.log = append(c.log, change{c.version, was, pod})
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// asked is how often it has been called.
func (c *cluster) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || r.URL.Path != "/api/v1/namespaces/serving/pods" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	shows := func(pod *corev1.Pod) bool { return pod != nil && selector.Matches(labels.Set(pod.Labels)) }
	if r.URL.Query().Has("watch") {
		c.watch(w, r, shows)
		return
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(c.version)
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if shows(c.pods[name]) {
			list.Items = append(list.Items, *c.pods[name])
		}
	}
	_ = json.NewEncoder(w).Encode(list)
}

// watch tells of every change since a version. The caller holds mu.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request, shows func(*corev1.Pod) bool) {
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	for {
		for _, e := range c.log {
			if e.version > since {
				since = e.version
				e.tell(w, shows)
			}
		}
		_ = http.NewResponseController(w).Flush()
		changed, ended := c.changed, false
		c.mu.Unlock()
		select {
		case <-changed:
		case <-over.C:
			ended = true
		case <-r.Context().Done():
			ended = true
		}
		c.mu.Lock()
		if ended {
			return
		}
	}
}

// tell writes a change as one who sees only some pods is told it.
func (e change) tell(w http.ResponseWriter, shows func(*corev1.Pod) bool) {
	kind, pod := watch.Modified, e.is
	switch was, is := shows(e.was), shows(e.is); {
	case was && !is:
		kind, pod = watch.Deleted, e.was
	case is && !was:
		kind = watch.Added
	case !is:
		return
	}
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	pod.ResourceVersion = strconv.Itoa(e.version)
	raw, err := json.Marshal(pod)
	if err != nil {
		panic(err)
	}
	_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
}

// pod is one that runs engines, which differ by their ports alone.
func pod(name string, engines ...*simengine.Engine) *corev1.Pod {
	var ports, bootstraps []string
	for _, e := range engines {
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(e.URL(), "http://"))
		ports = append(ports, port)
		if e.BootstrapPort() != 0 {
			bootstraps = append(bootstraps, strconv.Itoa(e.BootstrapPort()))
		}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "serving", UID: types.UID("uid-" + name),
			Labels:      map[string]string{"app": "sglang", "role": string(engines[0].Role())},
			Annotations: map[string]string{"smg.ai/worker-ports": strings.Join(ports, ",")},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	if len(bootstraps) > 0 {
		p.Annotations["sglang.ai/bootstrap-port"] = strings.Join(bootstraps, ",")
	}
	return p
}
