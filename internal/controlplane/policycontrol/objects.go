package policycontrol

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// mirrorAnnotation has the UID by which a kubelet knows a static pod. The pod of the API
// is only its mirror.
const mirrorAnnotation = corev1.MirrorPodAnnotationKey

// portName is a port that a policy or a pod gives by name.
type portName struct {
	protocol uint8
	name     string
}

// namedPort is a named port of a pod's container.
type namedPort struct {
	portName
	number uint16
}

// pod is what policies need to know about a pod.
type pod struct {
	// key is NAMESPACE/NAME.
	key, namespace, uid, node string
	labels                    labels.Set
	addresses                 []netip.Addr
	ports                     []namedPort

	// selectors have the pod as a peer. policies select the pod, ordered by their keys.
	selectors map[*selector]struct{}
	policies  []*policy
	// The fields below are set only if the pod's node is watched. told is what the node
	// is told about the pod.
	ingress, egress *group
	told            *netpolicy.Pod
}

// podOf returns nil if policies are not for the pod: its network is that of its node, or
// the pod has ended and so has no address any more.
func podOf(object *corev1.Pod) *pod {
	if object.Spec.HostNetwork || object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed {
		return nil
	}
	p := &pod{
		key: object.Namespace + "/" + object.Name, namespace: object.Namespace,
		uid: string(object.UID), node: object.Spec.NodeName, labels: object.Labels,
	}
	// Users may write any text there. No kubelet runs their pods then.
	if mirrored := object.Annotations[mirrorAnnotation]; netpolicy.IsUID(mirrored) {
		p.uid = mirrored
	}
	texts := []string{object.Status.PodIP}
	for _, ip := range object.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			p.addresses = append(p.addresses, address.Unmap().WithZone(""))
		}
	}
	slices.SortFunc(p.addresses, netip.Addr.Compare)
	p.addresses = slices.Compact(p.addresses)
	for _, container := range object.Spec.Containers {
		p.addPorts(container.Ports)
	}
	for _, container := range object.Spec.InitContainers {
		// A sidecar runs as long as the pod.
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.addPorts(container.Ports)
		}
	}
	slices.SortFunc(p.ports, func(a, b namedPort) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.number, b.number))
	})
	p.ports = slices.Compact(p.ports)
	return p
}

func (p *pod) addPorts(ports []corev1.ContainerPort) {
	for _, port := range ports {
		if protocol, ok := protocolOf(&port.Protocol); ok && port.Name != "" && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
			p.ports = append(p.ports, namedPort{portName{protocol, port.Name}, uint16(port.ContainerPort)})
		}
	}
}

// add notes that a selector has the pod.
func (p *pod) add(s *selector) {
	if p.selectors == nil {
		p.selectors = map[*selector]struct{}{}
	}
	p.selectors[s] = struct{}{}
}

// has tells whether a selector has the pod.
func (p *pod) has(s *selector) bool {
	_, has := p.selectors[s]
	return has
}

// numbers returns the numbers that a named port has on the pod.
func (p *pod) numbers(name portName) (numbers []uint16) {
	for _, port := range p.ports {
		if port.portName == name {
			numbers = append(numbers, port.number)
		}
	}
	return numbers
}

// same tells whether policies see no difference between two states of a pod.
func (p *pod) same(other *pod) bool {
	return p.uid == other.uid && p.node == other.node && p.samePeer(other)
}

// samePeer tells whether a pod is the same as a peer.
func (p *pod) samePeer(other *pod) bool {
	return slices.Equal(p.addresses, other.addresses) && slices.Equal(p.ports, other.ports) && maps.Equal(p.labels, other.labels)
}

// protocolOf returns the number of a protocol in the IP header. No protocol means TCP.
func protocolOf(protocol *corev1.Protocol) (uint8, bool) {
	if protocol == nil {
		return 6, true
	}
	switch *protocol {
	case "", corev1.ProtocolTCP:
		return 6, true
	case corev1.ProtocolUDP:
		return 17, true
	case corev1.ProtocolSCTP:
		return 132, true
	}
	return 0, false
}
