package policycontrol

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// world is a cluster of the API, about which the naive evaluator decides directly.
type world struct {
	namespaces map[string]*corev1.Namespace
	pods       map[string]*corev1.Pod
	policies   map[string]*networkingv1.NetworkPolicy
}

// allows decides about a connection by the words of the API's documentation, for one pod
// and one direction.
func (w *world) allows(p *corev1.Pod, d direction, peer netip.Addr, protocol corev1.Protocol, port int32) bool {
	isolated := false
	for _, policy := range w.policies {
		if policy.Namespace != p.Namespace || !matches(&policy.Spec.PodSelector, p.Labels) {
			continue
		}
		types := policy.Spec.PolicyTypes
		if len(types) == 0 {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(policy.Spec.Egress) > 0 {
				types = append(types, networkingv1.PolicyTypeEgress)
			}
		}
		if d == ingress && slices.Contains(types, networkingv1.PolicyTypeIngress) {
			isolated = true
			for _, r := range policy.Spec.Ingress {
				if w.peerFits(policy.Namespace, r.From, peer, nil) && portFits(r.Ports, []*corev1.Pod{p}, protocol, port) {
					return true
				}
			}
		}
		if d == egress && slices.Contains(types, networkingv1.PolicyTypeEgress) {
			isolated = true
			for _, r := range policy.Spec.Egress {
				// A named port is judged on the pods that have the address and fit.
				for _, q := range append(w.at(peer), nil) {
					if w.peerFits(policy.Namespace, r.To, peer, q) && portFits(r.Ports, []*corev1.Pod{q}, protocol, port) {
						return true
					}
				}
			}
		}
	}
	return !isolated
}

// at returns the pods that have an address.
func (w *world) at(address netip.Addr) (pods []*corev1.Pod) {
	for _, p := range w.pods {
		if counts(p) && slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return netip.MustParseAddr(ip.IP) == address }) {
			pods = append(pods, p)
		}
	}
	return pods
}

func counts(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// peerFits tells whether an address is a peer of a rule. If only is not nil, of the pods
// that have the address only this one counts.
func (w *world) peerFits(namespace string, peers []networkingv1.NetworkPolicyPeer, address netip.Addr, only *corev1.Pod) bool {
	// Nothing is known yet about the pods of a namespace that is not known.
	unknown := only != nil && w.namespaces[only.Namespace] == nil
	if len(peers) == 0 {
		return !unknown
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			if !unknown && netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(address) && !slices.ContainsFunc(peer.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(address) }) {
				return true
			}
			continue
		}
		for _, p := range w.at(address) {
			if only != nil && p != only {
				continue
			}
			if peer.NamespaceSelector == nil && p.Namespace != namespace {
				continue
			}
			if peer.NamespaceSelector != nil && (w.namespaces[p.Namespace] == nil || !matches(peer.NamespaceSelector, w.namespaces[p.Namespace].Labels)) {
				continue
			}
			if peer.PodSelector == nil || matches(peer.PodSelector, p.Labels) {
				return true
			}
		}
	}
	return false
}

func portFits(ports []networkingv1.NetworkPolicyPort, pods []*corev1.Pod, protocol corev1.Protocol, port int32) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		want := corev1.ProtocolTCP
		if p.Protocol != nil {
			want = *p.Protocol
		}
		switch {
		case want != protocol:
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.Int && p.EndPort != nil:
			if p.Port.IntVal <= port && port <= *p.EndPort {
				return true
			}
		case p.Port.Type == intstr.Int:
			if p.Port.IntVal == port {
				return true
			}
		default:
			for _, pod := range pods {
				if pod == nil {
					continue
				}
				for _, c := range pod.Spec.Containers {
					for _, named := range c.Ports {
						if named.Name == p.Port.StrVal && named.Protocol == want && named.ContainerPort == port {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}
