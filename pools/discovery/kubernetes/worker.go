package kubernetes

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-pd/tandem/bootstrap"
	"github.com/tandem-pd/tandem/pd"
	"github.com/tandem-pd/tandem/pools/registry"
)

// PortsAnnotation is where a pod with more engines than one, or with one that
// listens elsewhere than the others of its pool, lists their ports: 8000,8001.
const PortsAnnotation = "smg.ai/worker-ports"

// maxPorts bounds the workers of one pod.
const maxPorts = 64

// The labels by which a worker's pod is known.
const (
	podNameLabel   = "smg.ai/pod-name"
	podUIDLabel    = "smg.ai/pod-uid"
	namespaceLabel = "namespace"
)

// workers are the workers that pods are, by URL, and what is wrong with any of
// those pods. Of two that claim one address the first by uid has it.
func (o Options) workers(pods []*corev1.Pod) (specs []registry.Spec, faults []string) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	owner := map[string]*corev1.Pod{}
	for _, pod := range pods {
		role, ok := o.role(pod.Labels)
		if !ok || !serves(pod) {
			continue
		}
		found, wrong := o.ofPod(pod, role)
		for _, fault := range wrong {
			faults = append(faults, "pod "+name(pod)+": "+fault)
		}
		for _, spec := range found {
			first := owner[spec.URL]
			if first == nil {
				owner[spec.URL] = pod
				specs = append(specs, spec)
			} else if first != pod {
				faults = append(faults, fmt.Sprintf("pod %s: %s is already that of pod %s", name(pod), spec.URL, name(first)))
			}
		}
	}
	slices.SortFunc(specs, func(a, b registry.Spec) int { return cmp.Compare(a.URL, b.URL) })
	return specs, faults
}

// serves reports whether a pod can be sent requests.
func serves(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && pod.Status.PodIP != "" &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// ofPod are the workers of one pod, one for each of its ports.
func (o Options) ofPod(pod *corev1.Pod, role pd.Role) (specs []registry.Spec, faults []string) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || ip.Zone() != "" {
		return nil, []string{"its address is none that can be called"}
	}
	ports, fault := o.ports(pod)
	if fault != "" {
		faults = append(faults, fault)
	}
	bootstraps := make([]string, len(ports))
	if role == pd.Prefill {
		if fault := o.bootstraps(pod, bootstraps); fault != "" {
			faults = append(faults, fault)
		}
	}
	for i, port := range ports {
		specs = append(specs, registry.Spec{
			URL:       "http://" + net.JoinHostPort(ip.Unmap().String(), strconv.Itoa(port)),
			Role:      role,
			Bootstrap: bootstraps[i],
			Priority:  registry.DefaultPriority,
			Cost:      registry.DefaultCost,
			Labels: map[string]string{
				podNameLabel:   pod.Name,
				podUIDLabel:    string(pod.UID),
				namespaceLabel: pod.Namespace,
			},
		})
	}
	return specs, faults
}

// ports are where the engines of a pod listen. A list that is wrong in any part
// counts for nothing, as with the gateway: half of it may be worse than the
// common port.
func (o Options) ports(pod *corev1.Pod) (ports []int, fault string) {
	text, ok := pod.Annotations[PortsAnnotation]
	if !ok {
		return []int{o.Port}, ""
	}
	entries := strings.Split(text, ",")
	if len(entries) > maxPorts {
		return []int{o.Port}, fmt.Sprintf("annotation %s: more than %d ports", PortsAnnotation, maxPorts)
	}
	for i, entry := range entries {
		port, ok := parsePort(entry)
		if !ok {
			return []int{o.Port}, fmt.Sprintf("annotation %s: entry %d is no port from 1 to 65535", PortsAnnotation, i+1)
		}
		ports = append(ports, port)
	}
	return ports, ""
}

// bootstraps fills in the bootstrap port of each of a prefill pod's ports, or none,
// as far as the pod says it.
func (o Options) bootstraps(pod *corev1.Pod, of []string) (fault string) {
	text, ok := pod.Annotations[o.BootstrapAnnotation]
	if !ok {
		return ""
	}
	entries := strings.Split(text, ",")
	if len(entries) != len(of) {
		fault = fmt.Sprintf("annotation %s: the number of entries is not that of ports, %d", o.BootstrapAnnotation, len(of))
	}
	for i, entry := range entries[:min(len(entries), len(of))] {
		entry = strings.ToLower(strings.TrimSpace(entry))
		if _, err := bootstrap.ParsePort(entry); err != nil {
			fault = fmt.Sprintf("annotation %s: entry %d is no port from 1 to 65535", o.BootstrapAnnotation, i+1)
			continue
		}
		of[i] = entry
	}
	return fault
}

func parsePort(text string) (port int, ok bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	return int(n), err == nil && n != 0
}

// name is a pod's name as people write it.
func name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
