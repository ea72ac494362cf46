package gateway

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/front"
)

// eligible returns the names of the nodes that may serve Gateways: those that may serve
// Services of type LoadBalancer.
func eligible(nodes []*corev1.Node) map[string]bool {
	enabled := slices.ContainsFunc(nodes, func(node *corev1.Node) bool {
		_, has := node.Labels[servicelb.EnableLabel]
		return has
	})
	names := map[string]bool{}
	for _, node := range nodes {
		_, excluded := node.Labels[corev1.LabelNodeExcludeBalancers]
		if !excluded && (!enabled || node.Labels[servicelb.EnableLabel] == "true") {
			names[node.Name] = true
		}
	}
	return names
}

// isReady tells whether a node may be an endpoint.
func isReady(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// isSameNode tells whether nothing has changed that the endpoints of fronts depend on.
func isSameNode(a, b *corev1.Node) bool {
	return isReady(a) == isReady(b) && equalLabels(a, b) && slices.Equal(a.Status.Addresses, b.Status.Addresses) &&
		a.Annotations[gateways.ListeningAnnotation] == b.Annotations[gateways.ListeningAnnotation]
}

func equalLabels(a, b *corev1.Node) bool {
	for _, key := range []string{servicelb.EnableLabel, corev1.LabelNodeExcludeBalancers, corev1.LabelTopologyZone} {
		before, had := a.Labels[key]
		now, has := b.Labels[key]
		if before != now || had != has {
			return false
		}
	}
	return true
}

// nodeOf returns what the endpoints of fronts need to know of a node. A node chooses which
// addresses it has in its status. So addresses that other nodes are registered with do not
// count. owner returns the node that is registered with an address.
func nodeOf(object *corev1.Node, owner func(netip.Addr) (string, bool)) front.Node {
	node := front.Node{Name: object.Name, Zone: object.Labels[corev1.LabelTopologyZone]}
	// A node that writes something else serves nothing.
	node.Listening, _ = gateways.ParseListening(object.Annotations[gateways.ListeningAnnotation])
	var has4, has6 bool
	for _, text := range object.Status.Addresses {
		address, err := netip.ParseAddr(text.Address)
		if text.Type != corev1.NodeInternalIP || err != nil {
			continue
		}
		address = address.Unmap()
		if registered, found := owner(address); found && registered != object.Name {
			continue
		}
		has := &has6
		if address.Is4() {
			has = &has4
		}
		if !*has {
			*has = true
			node.Addresses = append(node.Addresses, address)
		}
	}
	return node
}
