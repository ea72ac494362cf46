package services

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// isReady tells whether a node may be an endpoint.
func isReady(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && nodeobject.IsReady(node)
}

// isSameNode tells whether nothing has changed that the endpoints of fronts depend on.
func isSameNode(a, b *corev1.Node) bool {
	return isReady(a) == isReady(b) && a.Labels[corev1.LabelTopologyZone] == b.Labels[corev1.LabelTopologyZone] && slices.Equal(a.Status.Addresses, b.Status.Addresses) &&
		a.Annotations[gateways.ListeningAnnotation] == b.Annotations[gateways.ListeningAnnotation]
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
