package kubernetes

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// podStore is the pods as they were last known, and says when that changes. It
// outlives the reflectors that fill it.
type podStore struct {
	cache.Store
	changed chan struct{} // holds one: that something changed, not how often
}

func newPodStore() *podStore {
	return &podStore{
		Store:   cache.NewStore(cache.MetaNamespaceKeyFunc, cache.WithTransformer(trim)),
		changed: make(chan struct{}, 1),
	}
}

func (s *podStore) tell(err error) error {
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return err
}

// The four ways in which a reflector changes a store. The first of them is always
// Replace, with the first list.

func (s *podStore) Add(pod any) error    { return s.tell(s.Store.Add(pod)) }
func (s *podStore) Update(pod any) error { return s.tell(s.Store.Update(pod)) }
func (s *podStore) Delete(pod any) error { return s.tell(s.Store.Delete(pod)) }

func (s *podStore) Replace(pods []any, version string) error {
	return s.tell(s.Store.Replace(pods, version))
}

// all are the pods, in no order. They must not be written to.
func (s *podStore) all() []*corev1.Pod {
	list := s.List()
	pods := make([]*corev1.Pod, len(list))
	for i, pod := range list {
		pods[i] = pod.(*corev1.Pod)
	}
	return pods
}

// trim keeps of a pod what a worker is made of: a tenth of it, where all pods of
// a large cluster may be sent.
func trim(object any) (any, error) {
	pod := object.(*corev1.Pod)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              pod.Name,
			Namespace:         pod.Namespace,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			Labels:            pod.Labels,
			Annotations:       pod.Annotations,
			DeletionTimestamp: pod.DeletionTimestamp,
		},
		Status: corev1.PodStatus{
			Phase:      pod.Status.Phase,
			Conditions: pod.Status.Conditions,
			PodIP:      pod.Status.PodIP,
		},
	}, nil
}
