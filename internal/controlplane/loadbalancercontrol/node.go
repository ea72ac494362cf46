package loadbalancercontrol

import (
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// node is what the plan needs to know about a Node.
type node struct {
	name   string
	labels labels.Set
	// available is true if the Node is Ready and not excluded by upstream's label.
	available bool
	// answers is false if the node is known to be silent.
	answers bool
	// internal are the addresses with which the node is registered, and external those that
	// it claims, except addresses of other nodes.
	internal, external []netip.Addr
	ports              servicelb.Ports
}

func newNode(object *corev1.Node, answers bool, owner func(netip.Addr) (string, bool)) *node {
	n := &node{name: object.Name, labels: object.Labels, available: isAvailable(object), answers: answers}
	for _, text := range object.Status.Addresses {
		address, err := netip.ParseAddr(text.Address)
		if err != nil {
			continue // a host name
		}
		address = address.Unmap()
		switch registered, found := owner(address); {
		case text.Type == corev1.NodeExternalIP && (!found || registered == object.Name):
			n.external = append(n.external, address)
		case text.Type == corev1.NodeInternalIP && registered == object.Name:
			n.internal = append(n.internal, address)
		}
	}
	// A node that writes something else confirms nothing.
	if err := json.Unmarshal([]byte(object.Annotations[servicelb.PortsAnnotation]), &n.ports); err != nil {
		n.ports = nil
	}
	return n
}

func isAvailable(object *corev1.Node) bool {
	_, excluded := object.Labels[corev1.LabelNodeExcludeBalancers]
	return !excluded && object.DeletionTimestamp == nil && nodeobject.IsReady(object)
}

// isSameNode tells whether nothing has changed that a plan depends on. The kubelet writes
// its Node every few minutes.
func isSameNode(a, b *corev1.Node) bool {
	return isAvailable(a) == isAvailable(b) && labels.Equals(a.Labels, b.Labels) &&
		slices.Equal(a.Status.Addresses, b.Status.Addresses) &&
		a.Annotations[servicelb.PortsAnnotation] == b.Annotations[servicelb.PortsAnnotation]
}
