package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/tandem-pd/tandem/pools/registry"
)

// What an operator who says nothing has said, as the gateway has it.
const (
	DefaultPort                = 80
	DefaultBootstrapAnnotation = "sglang.ai/bootstrap-port"
	DefaultResync              = time.Minute
)

// settle is how long a change waits for others that come with it, which is what
// a burst of events costs at most.
const settle = 50 * time.Millisecond

// Options say which pods are workers, and what of.
type Options struct {
	// Namespace is the only one that is looked at; empty for all.
	Namespace string

	// Selector chooses the engines that do the whole work; or PrefillSelector and
	// DecodeSelector those of pairs, where a pod that both choose is a prefill. A
	// pod must have all labels of a selector, and an empty one chooses none.
	Selector, PrefillSelector, DecodeSelector map[string]string

	// Port is where engines listen in pods that do not say it themselves, in
	// [PortsAnnotation]; 0 for DefaultPort.
	Port int
	// BootstrapAnnotation is where a prefill's pod has its bootstrap port, or one
	// for each of its ports and in their order, each a number or none; a pod without
	// it has what its engine says. Empty for DefaultBootstrapAnnotation.
	BootstrapAnnotation string

	// Resync is how often all pods are listed anew, and the longest that a watch
	// is trusted; 0 for DefaultResync. A list must be answered in that time.
	Resync time.Duration

	Hooks
}

// Hooks are told what happens; each may be nil. They are called from more than
// one goroutine at once and must be quick.
type Hooks struct {
	// Report is told what goes wrong: each call to the API server that fails, and
	// once, until it is put right, what is wrong with a pod.
	Report func(err error)
	// Discovered is told how many workers there are when they are applied.
	Discovered func(n int)
}

// Source is the workers of a cluster.
type Source struct {
	opt Options
	api *api
}

var _ registry.Source = (*Source)(nil)

// New is a source that asks the API server of config, see [Config]. It calls
// nobody yet.
func New(config *rest.Config, opt Options) (*Source, error) {
	opt = opt.withDefaults()
	query, err := opt.query()
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if opt.Port < 1 || opt.Port > 65535 {
		return nil, fmt.Errorf("kubernetes: port %d: want 1 to 65535", opt.Port)
	}
	if opt.Resync < 0 {
		return nil, errors.New("kubernetes: the time between two lists must not be negative")
	}
	api, err := newAPI(config, opt.Namespace, query)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return &Source{opt: opt, api: api}, nil
}

func (o Options) withDefaults() Options {
	o.Port = cmp.Or(o.Port, DefaultPort)
	o.BootstrapAnnotation = cmp.Or(o.BootstrapAnnotation, DefaultBootstrapAnnotation)
	o.Resync = cmp.Or(o.Resync, DefaultResync)
	if o.Report == nil {
		o.Report = func(error) {}
	}
	if o.Discovered == nil {
		o.Discovered = func(int) {}
	}
	return o
}

// query is the label selector that the API server is given: all that the pods of
// every role have in common, so that it need not send those of others.
func (o Options) query() (string, error) {
	pairs := len(o.PrefillSelector)+len(o.DecodeSelector) > 0
	switch {
	case len(o.Selector) > 0 && pairs:
		return "", errors.New("want a selector, or those of prefill and decode, not both")
	case len(o.Selector) == 0 && !pairs:
		return "", errors.New("want a selector: an empty one chooses no pod")
	}
	for _, selector := range []map[string]string{o.Selector, o.PrefillSelector, o.DecodeSelector} {
		if _, err := labels.ValidatedSelectorFromSet(selector); err != nil {
			return "", fmt.Errorf("selector: %w", err)
		}
	}
	switch {
	case !pairs:
		return labels.SelectorFromSet(o.Selector).String(), nil
	case len(o.DecodeSelector) == 0:
		return labels.SelectorFromSet(o.PrefillSelector).String(), nil
	case len(o.PrefillSelector) == 0:
		return labels.SelectorFromSet(o.DecodeSelector).String(), nil
	}
	return either(o.PrefillSelector, o.DecodeSelector)
}

// Name is "kubernetes".
func (s *Source) Name() string { return "kubernetes" }

// Run follows the pods until ctx ends and returns nil then. The first call of
// apply comes with the API server's first answer, however long that takes.
func (s *Source) Run(ctx context.Context, apply func([]registry.Spec)) error {
	ctx, cancel := context.WithCancel(ctx)
	pods := newPodStore()
	var watching sync.WaitGroup
	watching.Go(func() { s.follow(ctx, pods) })
	defer func() { // in this order, also where apply panics
		cancel()
		watching.Wait()
		s.api.close()
	}()

	var now view
	for {
		select {
		case <-pods.changed:
		case <-ctx.Done():
			return nil
		}
		if !pause(ctx, settle) {
			return nil
		}
		now = s.reconcile(now, pods, apply)
	}
}

// view is what was last made of the pods.
type view struct {
	known  bool // there has been one
	specs  []registry.Spec
	faults map[string]bool
}

// reconcile makes the workers of the pods there are, and applies them if they are
// others than those of the last view.
func (s *Source) reconcile(last view, pods *podStore, apply func([]registry.Spec)) view {
	specs, faults := s.opt.workers(pods.all())
	now := view{known: true, specs: specs, faults: make(map[string]bool, len(faults))}
	for _, fault := range faults {
		now.faults[fault] = true
		if !last.faults[fault] {
			s.opt.Report(errors.New(fault))
		}
	}
	if !last.known || !reflect.DeepEqual(last.specs, now.specs) {
		s.opt.Discovered(len(specs))
		apply(specs)
	}
	return now
}
