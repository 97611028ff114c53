package kubernetes_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// apiServer is as much of an API server as lists and watches pods, over HTTP. It
// keeps to the rules for versions, selectors, bookmarks and expiry, and breaks
// them when told to.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	pods    map[string]*corev1.Pod // by namespace/name
	version int
	oldest  int // the first version that a watch may start from
	log     []event
	changed chan struct{} // closed at the next change
	cut     chan struct{} // closed when watches are to break off
	reached int           // the version up to which some watch was told all
	calls   []call

	namespace string // the only one that may be seen, if any
	token     string // that is asked for, if any
	careless  bool   // selectors are ignored
	status    int    // of every answer, if any
	hang      bool   // calls get no answer
	listOnly  bool   // watches are forbidden
}

type event struct {
	version int
	kind    watch.EventType
	was, is *corev1.Pod // either may be nil
}

// call is one request that came.
type call struct {
	path  string
	query url.Values
	agent string
	proto int // of HTTP
}

func newAPIServer(t *testing.T) *apiServer {
	s := unstarted(t)
	s.Start()
	return s
}

// newTLSServer is one that speaks HTTP/2, as real ones do.
func newTLSServer(t *testing.T) *apiServer {
	s := unstarted(t)
	s.EnableHTTP2 = true
	s.StartTLS()
	return s
}

func unstarted(t *testing.T) *apiServer {
	s := &apiServer{
		pods: map[string]*corev1.Pod{}, version: 100,
		changed: make(chan struct{}), cut: make(chan struct{}),
	}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// config is how the server is called.
func (s *apiServer) config() *rest.Config {
	config := &rest.Config{Host: s.URL}
	if cert := s.Certificate(); cert != nil {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	}
	return config
}

// set creates or replaces pods.
func (s *apiServer) set(pods ...*corev1.Pod) {
	for _, pod := range pods {
		s.change(pod.Namespace+"/"+pod.Name, pod, true)
	}
}

// delete deletes a pod at once, as by force: there is no word that it is about to
// be.
func (s *apiServer) delete(name string) { s.change(name, nil, true) }

// lose deletes a pod, and no watch hears of it.
func (s *apiServer) lose(name string) { s.change(name, nil, false) }

func (s *apiServer) change(name string, pod *corev1.Pod, told bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	was := s.pods[name]
	delete(s.pods, name)
	if pod != nil {
		pod = pod.DeepCopy()
		pod.ResourceVersion = strconv.Itoa(s.version)
		s.pods[name] = pod
	}
	if told {
		s.append(event{version: s.version, was: was, is: pod})
	}
}

// garbled is what a watch is sent that is no event at all.
const garbled = watch.EventType("GARBLED")

// tell sends every watch an event that is not of a pod: a bookmark, an error,
// which is that its version is too old, or garbled. It returns the version.
func (s *apiServer) tell(kind watch.EventType) (version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += 10
	s.append(event{version: s.version, kind: kind})
	return s.version
}

// forget makes every version but the present one too old to start a watch from.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest = s.version
}

func (s *apiServer) append(e event) {
	s.log = append(s.log, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// breakOff closes the connections of all watches in the middle of them.
func (s *apiServer) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// with changes how calls are answered from now on.
func (s *apiServer) with(set func(*apiServer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(s)
}

// seen are the calls that came: all lists, or all watches.
func (s *apiServer) seen(watches bool) (calls []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.query.Has("watch") == watches {
			calls = append(calls, c)
		}
	}
	return calls
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls = append(s.calls, call{r.URL.Path, r.URL.Query(), r.UserAgent(), r.ProtoMajor})
	status, hang, token, only := s.status, s.hang, s.token, s.namespace
	forbidden := s.listOnly && r.URL.Query().Has("watch")
	s.mu.Unlock()
	namespace, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/")
	namespace, pods := strings.CutSuffix(namespace, "/pods")
	if !ok {
		namespace = ""
	}
	switch {
	case hang:
		<-r.Context().Done()
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case forbidden || !pods || only != "" && namespace != only:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case status != 0:
		refuse(w, status, metav1.StatusReasonServiceUnavailable)
	case r.URL.Query().Get("watch") == "true":
		s.watch(w, r, namespace)
	default:
		s.list(w, r, namespace)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(failure(code, reason))
}

func failure(code int, reason metav1.StatusReason) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "said by the test: " + string(reason),
	}
}

// shows is whether pods are among those that r asks for.
func (s *apiServer) shows(r *http.Request, namespace string) func(*corev1.Pod) bool {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	return func(pod *corev1.Pod) bool {
		return pod != nil && err == nil && (namespace == "" || pod.Namespace == namespace) &&
			(s.careless || selector.Matches(labels.Set(pod.Labels)))
	}
}

// list answers in pages, where it is asked for them, of at most two.
func (s *apiServer) list(w http.ResponseWriter, r *http.Request, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shows := s.shows(r, namespace)
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	list.ResourceVersion = strconv.Itoa(s.version)
	names := slices.Sorted(maps.Keys(s.pods))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	for i, name := range names[min(from, len(names)):] {
		if r.URL.Query().Has("limit") && i == 2 {
			list.Continue = strconv.Itoa(from + i)
			break
		}
		if shows(s.pods[name]) {
			list.Items = append(list.Items, *s.pods[name])
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	version, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	s.mu.Lock()
	shows, oldest, cut := s.shows(r, namespace), s.oldest, s.cut
	s.mu.Unlock()
	if version < oldest {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	over := time.After(time.Duration(seconds) * time.Second)
	for {
		s.mu.Lock()
		log, changed := slices.Clone(s.log), s.changed
		s.mu.Unlock()
		for _, e := range log {
			if e.version <= version {
				continue
			}
			version = e.version
			if !e.send(w, shows) {
				return
			}
		}
		_ = http.NewResponseController(w).Flush()
		s.with(func(s *apiServer) { s.reached = max(s.reached, version) })
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-over:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// send writes an event as one who sees only some pods is told it; false if it is
// the last.
func (e event) send(w http.ResponseWriter, shows func(*corev1.Pod) bool) bool {
	var object any
	kind := e.kind
	switch was, is := shows(e.was), shows(e.is); {
	case kind == garbled:
		_, _ = io.WriteString(w, "{]\n")
		return false
	case kind == watch.Error:
		object = failure(http.StatusGone, metav1.StatusReasonExpired)
	case kind == watch.Bookmark:
		pod := typed(&corev1.Pod{})
		pod.ResourceVersion = strconv.Itoa(e.version)
		object = pod
	case was && is:
		kind, object = watch.Modified, typed(e.is)
	case is:
		kind, object = watch.Added, typed(e.is)
	case was:
		gone := typed(e.was)
		gone.ResourceVersion = strconv.Itoa(e.version)
		kind, object = watch.Deleted, gone
	default:
		return true
	}
	raw, err := json.Marshal(object)
	if err == nil {
		err = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}})
	}
	return err == nil && kind != watch.Error
}

func typed(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	return pod
}
