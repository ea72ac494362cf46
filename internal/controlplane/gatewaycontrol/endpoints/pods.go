package endpoints

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refusePod decides whether an address is that of the pod that an endpoint names. The pod is one of
// the namespace of the EndpointSlice. Neither the author of the EndpointSlice nor the node of the pod
// is believed alone: the node writes which addresses its pods have, so the address must also be one
// that the control plane has given to the node.
func (f *Finder) refusePod(slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint, address netip.Addr) refusal {
	named := endpoint.TargetRef
	if named == nil || named.Kind != "Pod" || named.Namespace != "" && named.Namespace != slice.Namespace {
		return refusal{why: "the endpoint names no pod of namespace " + slice.Namespace}
	}
	name := types.NamespacedName{Namespace: slice.Namespace, Name: named.Name}
	if f.Pods == nil {
		f.Pods = map[types.NamespacedName]bool{}
	}
	f.Pods[name] = true
	pod := f.Pod(name.Namespace, name.Name)
	switch {
	case pod == nil:
		return refusal{why: fmt.Sprintf("there is no pod %s", name), outdated: true}
	case hasEnded(pod):
		return refusal{why: fmt.Sprintf("pod %s has ended", name), outdated: true}
	case !hasAddress(pod, address):
		return refusal{why: fmt.Sprintf("pod %s has another address", name), outdated: true}
	case pod.Spec.HostNetwork:
		if owner, found := f.Owner(address); !found || owner != pod.Spec.NodeName {
			return refusal{why: fmt.Sprintf("node %s of pod %s is not registered with it", pod.Spec.NodeName, name)}
		}
	case !f.OwnPods:
		return f.refuseDoor(address)
	case !contains(f.podCIDRs(pod.Spec.NodeName), address):
		return refusal{why: fmt.Sprintf("the address is not in the range of pods of node %s, which runs pod %s", pod.Spec.NodeName, name)}
	}
	return refusal{}
}

// hasEnded tells whether a pod has no address any more, although its status says so.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func hasAddress(pod *corev1.Pod, address netip.Addr) bool {
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool {
		has, err := netip.ParseAddr(ip.IP)
		return err == nil && has.Unmap() == address
	})
}

// SamePod tells whether nothing has changed of a pod that a Finder looks at.
func SamePod(a, b *corev1.Pod) bool {
	return a.UID == b.UID && a.Spec.NodeName == b.Spec.NodeName && hasEnded(a) == hasEnded(b) && slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
}
