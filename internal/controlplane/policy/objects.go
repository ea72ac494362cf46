package policy

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"

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

// direction is ingress or egress.
type direction int

const (
	ingress direction = iota
	egress
)

func (d direction) String() string { return [...]string{"ingress", "egress"}[d] }

// policy is a NetworkPolicy.
type policy struct {
	// key is NAMESPACE/NAME.
	key, namespace string
	spec           *networkingv1.NetworkPolicySpec
	pods           labels.Selector
	isolates       [2]bool
	rules          [2][]rule
	// serial is different for each state of each policy, also if only the numbers of
	// named ports have changed.
	serial uint64
	// named counts the pairs of a peer and a named port in egress rules.
	named int
	// uses are the peers of all rules. The model acquires and releases them.
	uses []*peers
}

// rule is a rule of a policy.
type rule struct {
	// number counts the rules of a policy in one direction from 1.
	number  int
	anybody bool
	peers   []*peers
	blocks  []netpolicy.Block
	// anyPort says that the rule is for all ports and protocols.
	anyPort bool
	ports   []netpolicy.Ports
	// names are resolved on the selected pod, for ingress.
	names []portName
	// named are peers with a named port each, for egress.
	named []*peers
}

// selectorOf returns a selector that selects nothing if it is invalid.
func selectorOf(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// portsOf divides the ports of a rule into numbers and names. Ports that are invalid
// allow nothing.
func portsOf(ports []networkingv1.NetworkPolicyPort) (numbers []netpolicy.Ports, names []portName) {
	seen := map[portName]struct{}{}
	for _, port := range ports {
		protocol, ok := protocolOf(port.Protocol)
		switch {
		case !ok:
		case port.Port == nil:
			numbers = append(numbers, netpolicy.Ports{Protocol: protocol, First: 1, Last: 65535})
		case port.Port.Type == intstr.String:
			name := portName{protocol, port.Port.StrVal}
			if _, known := seen[name]; !known {
				seen[name] = struct{}{}
				names = append(names, name)
			}
		default:
			first, last := port.Port.IntVal, port.Port.IntVal
			if port.EndPort != nil {
				last = *port.EndPort
			}
			if first > 0 && first <= last && last <= 65535 {
				numbers = append(numbers, netpolicy.Ports{Protocol: protocol, First: uint16(first), Last: uint16(last)})
			}
		}
	}
	return merge(numbers), names
}

// merge orders ranges of ports, and joins those that overlap or touch.
func merge(ports []netpolicy.Ports) (merged []netpolicy.Ports) {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b netpolicy.Ports) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	for _, p := range ports {
		if n := len(merged); n > 0 && merged[n-1].Protocol == p.Protocol && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
		} else {
			merged = append(merged, p)
		}
	}
	return merged
}

// blockOf returns false if the block is invalid. It then allows nobody.
func blockOf(block *networkingv1.IPBlock) (parsed netpolicy.Block, ok bool) {
	if parsed.CIDR, ok = prefixOf(block.CIDR); !ok {
		return parsed, false
	}
	for _, text := range block.Except {
		except, ok := prefixOf(text)
		if !ok {
			return parsed, false
		}
		if except.Overlaps(parsed.CIDR) {
			parsed.Except = append(parsed.Except, except)
		}
	}
	slices.SortFunc(parsed.Except, netip.Prefix.Compare)
	parsed.Except = withoutInner(parsed.Except)
	return parsed, true
}

// withoutInner drops prefixes that are part of others. The prefixes are ordered.
func withoutInner(prefixes []netip.Prefix) (outer []netip.Prefix) {
	for _, p := range prefixes {
		if n := len(outer); n == 0 || !outer[n-1].Overlaps(p) {
			outer = append(outer, p)
		}
	}
	return outer
}

// prefixOf reads a CIDR as the API server does: old objects may have leading zeros.
func prefixOf(text string) (netip.Prefix, bool) {
	_, parsed, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	bits, size := parsed.Mask.Size()
	ip := parsed.IP
	if four := ip.To4(); four != nil && (size == 32 || bits >= 96) {
		ip, bits = four, bits-(size-32)
	}
	address, ok := netip.AddrFromSlice(net.IP(ip))
	if !ok || bits > address.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(address, bits).Masked(), true
}
