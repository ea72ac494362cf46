// Package nodeobject reads what a Node says about its node, and lets a node say something there.
package nodeobject

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// Ready returns the condition Ready of a Node. If the Node has none, the condition has no status.
func Ready(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

// IsReady tells whether a Node says that its node is ready.
func IsReady(node *corev1.Node) bool { return Ready(node).Status == corev1.ConditionTrue }

// Anew returns a function that tells whether the kubelet has written the condition Ready of a Node after the call of Anew.
// While no kubelet runs, the API keeps what the last kubelet wrote. A condition is new if its time is later than the call. If
// the clock was set back meanwhile, the time of a new condition is earlier. Therefore a condition is also new if its time is
// another one than at first.
func Anew() func(*corev1.Node) bool {
	began := time.Now().Truncate(time.Second)
	var first *time.Time
	return func(node *corev1.Node) bool {
		heard := Ready(node).LastHeartbeatTime.Time
		if first == nil {
			first = &heard
		}
		return !heard.Before(began) || !heard.Equal(*first)
	}
}

// Addresses returns the addresses of a Node in the order of its status: those of these types, or all
// without types. It leaves out host names. IPv4 addresses in the form of IPv6 are IPv4 addresses.
func Addresses(node *corev1.Node, of ...corev1.NodeAddressType) (found []netip.Addr) {
	for _, address := range node.Status.Addresses {
		if len(of) > 0 && !slices.Contains(of, address.Type) {
			continue
		}
		if ip, err := netip.ParseAddr(address.Address); err == nil {
			found = append(found, ip.Unmap())
		}
	}
	return found
}

// InternalIP returns the first InternalIP of a Node as it is in the status, or an empty text if there is
// none.
func InternalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// Annotate sets annotations of a Node, and removes those whose value is empty. The components of a
// node have the right to change annotations only through the Node's status.
func Annotate(ctx context.Context, nodes typedcorev1.NodeInterface, name string, annotations map[string]string) error {
	values := map[string]*string{}
	for key, value := range annotations {
		values[key] = nil // null removes it
		if value != "" {
			values[key] = &value
		}
	}
	return mergepatch.Send(ctx, nodes, name, map[string]any{"metadata": map[string]any{"annotations": values}}, "status")
}
