package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The pauses after a round that was cut short.
const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 10 * time.Second
)

// follow keeps pods as the API server has them, until ctx ends, in rounds of one
// Resync. A round that ends early, because a call failed or the server no longer
// knows the version that was watched from, is followed by the next after a pause.
func (s *Source) follow(ctx context.Context, pods *podStore) {
	longest := min(longestPause, s.opt.Resync)
	first := wait.Backoff{
		Duration: min(shortestPause, longest), Factor: 2, Jitter: 0.5, Cap: longest, Steps: math.MaxInt,
	}
	pauses := first
	for ctx.Err() == nil {
		start := time.Now()
		s.round(ctx, pods)
		took := time.Since(start)
		if took > longest {
			pauses = first
		}
		if took < s.opt.Resync {
			pause(ctx, pauses.Step())
		}
	}
}

// pause waits for d; it reports false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// round lists the pods and then watches them, until Resync has passed or either
// has failed. A watch that merely breaks off is resumed.
//
// An informer would do that for all time: it lists once, and there is no having
// it list again, nor watch for less than five minutes at a time.
func (s *Source) round(whole context.Context, pods *podStore) {
	ctx, cancel := context.WithTimeout(whole, s.opt.Resync)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			s.opt.Report(fmt.Errorf("panic while following pods: %v\n%s", p, debug.Stack()))
		}
	}()
	// What client-go would log of a watch that ends with an error comes here
	// rather than to standard error: it looks for a logger in the context first.
	logger := funcr.New(func(_, text string) {
		if ctx.Err() == nil { // else that is the error
			s.opt.Report(errors.New(text))
		}
	}, funcr.Options{})
	ctx = logr.NewContext(ctx, logger)

	calls := &calls{Source: s, whole: whole, ctx: ctx}
	reflector := cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc:  calls.list,
			WatchFuncWithContext: calls.watch,
		}, plain{}),
		&corev1.Pod{}, pods, cache.ReflectorOptions{Name: "pods", Logger: &logger})
	_ = reflector.ListAndWatchWithContext(ctx) // the calls have reported it
	calls.listing.Lock()                       // a reflector does not wait for its list
	defer calls.listing.Unlock()
}

// calls are the calls of one round.
type calls struct {
	*Source
	whole, ctx context.Context // the source's and the round's
	listing    sync.Mutex      // held while a list is under way
}

// list lists under the round's context: a reflector does it under one that never
// ends.
func (c *calls) list(_ context.Context, opt metav1.ListOptions) (runtime.Object, error) {
	c.listing.Lock()
	defer c.listing.Unlock()
	// What there is now. The cache of an API server, which a reflector would do
	// with, may be as stale as the watch that is to be made up for.
	opt.ResourceVersion, opt.ResourceVersionMatch = "", ""
	pods, err := c.api.list(c.ctx, opt)
	if err != nil && c.whole.Err() == nil {
		c.opt.Report(fmt.Errorf("list pods: %w", err))
	}
	return pods, err
}

// watch has the server end the watch a little after the round does, should that
// not reach it.
func (c *calls) watch(ctx context.Context, opt metav1.ListOptions) (watch.Interface, error) {
	seconds := int64(math.Ceil((c.opt.Resync + time.Second).Seconds()))
	opt.TimeoutSeconds = &seconds
	w, err := c.api.watch(ctx, opt)
	if err != nil && ctx.Err() == nil && !apierrors.IsGone(err) && !apierrors.IsResourceExpired(err) {
		c.opt.Report(fmt.Errorf("watch pods: %w", err))
	}
	return w, err
}

// plain says that lists are to be lists: as the head of a watch they need an API
// server that knows of it, and one call in vain where it does not.
type plain struct{}

func (plain) IsWatchListSemanticsUnSupported() bool { return true }
