package policycontrol

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
)

// These limits keep a user with rights in one namespace from using up servers and nodes. A policy of
// 1 MB could otherwise have 10,000 selectors, which are compared with all pods, or 100 million pairs of
// a peer and a port, which are elements in the kernel.
const (
	// maxSelectors is how many selectors the rules of a policy may have. In an egress rule, a selector
	// counts once for each named port, too.
	maxSelectors = 1000
	// maxPairs is how many pairs of a peer and a port the rules may have, of one policy, and of all
	// policies of a pod in one direction. An exception of a block counts as a peer.
	maxPairs = 10_000
)

// sizeOf counts the pairs of a peer and a port in each direction. It returns why a policy is too large,
// or nothing.
func sizeOf(spec *networkingv1.NetworkPolicySpec) (pairs [2]int, tooLarge string) {
	selectors := 0
	count := func(d direction, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
		numbers, names := portsOf(ports)
		all := 0
		for _, peer := range peers {
			all++
			if peer.IPBlock != nil {
				all += len(peer.IPBlock.Except)
			} else {
				selectors++
			}
		}
		pairs[d] += max(1, all) * max(1, len(numbers)+len(names))
		if d == egress {
			selectors += max(1, len(peers)) * len(names)
		}
	}
	for _, r := range spec.Ingress {
		count(ingress, r.From, r.Ports)
	}
	for _, r := range spec.Egress {
		count(egress, r.To, r.Ports)
	}
	switch {
	case selectors > maxSelectors:
		return pairs, fmt.Sprintf("its rules have %d selectors of peers, and at most %d are possible", selectors, maxSelectors)
	case pairs[ingress]+pairs[egress] > maxPairs:
		return pairs, fmt.Sprintf("its rules have %d pairs of a peer and a port, and at most %d are possible", pairs[ingress]+pairs[egress], maxPairs)
	}
	return pairs, ""
}

// tooMany tells whether the policies of a pod in a direction are together too large. Each of them is
// not.
func tooMany(p *pod, d direction) bool {
	total := 0
	for _, policy := range p.policies {
		if policy.isolates[d] && policy.tooLarge == "" {
			total += policy.pairs[d]
		}
	}
	return total > maxPairs
}
