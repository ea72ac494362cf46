package policycontrol

import (
	"net"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

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
	// tooLarge says why the policy only isolates, if it does. pairs counts the pairs of a peer and a
	// port in the rules of each direction.
	tooLarge string
	pairs    [2]int
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

// parse reads a policy, and acquires the peers of its rules.
func (m *model) parse(key string, object *networkingv1.NetworkPolicy) *policy {
	now := &policy{
		key: key, namespace: object.Namespace, spec: &object.Spec, serial: m.nextSerial(),
		pods: selectorOf(&object.Spec.PodSelector), isolates: direct(&object.Spec),
	}
	if now.pairs, now.tooLarge = sizeOf(&object.Spec); now.tooLarge != "" {
		return now
	}
	for i, r := range object.Spec.Ingress {
		now.rules[ingress] = append(now.rules[ingress], m.parseRule(now, ingress, i+1, r.From, r.Ports))
	}
	for i, r := range object.Spec.Egress {
		now.rules[egress] = append(now.rules[egress], m.parseRule(now, egress, i+1, r.To, r.Ports))
	}
	for _, q := range now.uses {
		if q.key.port != (portName{}) {
			q.policies[now] = struct{}{}
		}
	}
	return now
}

func (m *model) parseRule(of *policy, d direction, number int, from []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) rule {
	r := rule{number: number, anybody: len(from) == 0, anyPort: len(ports) == 0}
	var names []portName
	r.ports, names = portsOf(ports)
	if d == ingress {
		r.names, names = names, nil
	}
	use := func(key selectorKey, namespaces, pods labels.Selector, port portName, block *netpolicy.Block) *peers {
		q := m.acquire(key, namespaces, pods, port, block)
		of.uses = append(of.uses, q)
		return q
	}
	useNamed := func(key selectorKey, namespaces, pods labels.Selector, block *netpolicy.Block) {
		for _, name := range names {
			r.named = append(r.named, use(key, namespaces, pods, name, block))
		}
	}
	everywhere := labels.Everything()
	all := selectorKey{namespaces: define(everywhere), pods: define(everywhere)}
	if r.anybody {
		useNamed(all, everywhere, everywhere, nil)
		return r
	}
	for _, peer := range from {
		switch {
		case peer.IPBlock != nil:
			block, ok := blockOf(peer.IPBlock)
			if !ok {
				continue
			}
			r.blocks = append(r.blocks, block)
			// Named ports are those of the pods that have an address in the block.
			useNamed(all, everywhere, everywhere, &block)
		case peer.PodSelector != nil || peer.NamespaceSelector != nil:
			key, namespaces, pods := peerSelector(of.namespace, peer)
			if r.anyPort || len(r.ports) > 0 || len(r.names) > 0 {
				r.peers = append(r.peers, use(key, namespaces, pods, portName{}, nil))
			}
			useNamed(key, namespaces, pods, nil)
		}
	}
	return r
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
	return netpolicy.Union(numbers), names
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
