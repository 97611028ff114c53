package kubernetes

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config says where the API server is and who we are there: what the file at path
// kubeconfig says; without a path, what the files named by KUBECONFIG or the one
// in the home directory say; and without those, what each pod is given.
func Config(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	var missing error // KUBECONFIG names files, and none of them is there
	rules.Warner = func(err error) { missing = err }
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if missing != nil {
		return nil, missing
	}
	return config, err
}

// api is the pods of an API server. A client of this one resource costs a tenth
// of what all of them do to build and to carry.
type api struct {
	client    *rest.RESTClient
	http      *http.Client
	namespace string
	query     string // a label selector
}

func newAPI(config *rest.Config, namespace, query string) (*api, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.WarningHandler, config.WarningHandlerWithContext = rest.NoWarnings{}, nil
	config.Timeout = 0 // would end a watch; every call has an end of its own
	if config.UserAgent == "" {
		config.UserAgent = "tandem"
	}
	if config.Proxy == nil {
		// The default, said aloud: it keeps the transport out of client-go's cache
		// of transports, so that the connections are ours to close.
		config.Proxy = http.ProxyFromEnvironment
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, err
	}
	return &api{client: client, http: transport, namespace: namespace, query: query}, nil
}

func (a *api) list(ctx context.Context, opt metav1.ListOptions) (runtime.Object, error) {
	pods := &corev1.PodList{}
	return pods, a.request(opt).Do(ctx).Into(pods)
}

func (a *api) watch(ctx context.Context, opt metav1.ListOptions) (watch.Interface, error) {
	opt.Watch = true
	w, err := a.request(opt).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return joined{w}, nil
}

func (a *api) request(opt metav1.ListOptions) *rest.Request {
	opt.LabelSelector = a.query
	return a.client.Get().Namespace(a.namespace).Resource("pods").VersionedParams(&opt, metav1.ParameterCodec)
}

// close closes the connections that are not in use.
func (a *api) close() { utilnet.CloseIdleConnectionsFor(a.http.Transport) }

// joined is a watch whose Stop waits for the goroutine that reads it.
type joined struct{ watch.Interface }

func (j joined) Stop() {
	j.Interface.Stop()
	for range j.ResultChan() { // ends when the goroutine does
	}
}
