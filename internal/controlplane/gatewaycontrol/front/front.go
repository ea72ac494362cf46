// Package front describes the Services by which clients reach Gateways and Ingresses. A front
// is such a Service: it is of type LoadBalancer and has no selector. Its endpoints are the
// nodes themselves, at the ports that the gateways there listen on. So addresses, pools and
// traffic policies of Services are those of Gateways, too, and a port of a node that somebody
// else has is left to its owner. Package services keeps the Services; the packages compile and
// ingress say what fronts there are.
package front

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Shared is the front of all Ingresses, and of Gateways that have no addresses of their own.
// Its addresses are those of the nodes.
var Shared = types.NamespacedName{Namespace: "kube-system", Name: "kedge-gateway"}

// Front is a Service that clients connect to.
type Front struct {
	// Name is the name of the Service.
	Name types.NamespacedName
	// Gateway is the Gateway whose Service this is. It is nil for Shared.
	Gateway *gwv1.Gateway
	// Labels and Annotations are what the Gateway wants its Service to have.
	Labels, Annotations map[string]string
	// Addresses are the addresses that the Gateway asks for.
	Addresses []string
	// Ports are what the front listens on, each with what is behind it. If there is nothing
	// behind any port, the front keeps the Service that it has, and makes none.
	Ports []Port
}

// Serves tells whether there is something behind a port.
func (f *Front) Serves() bool {
	return slices.ContainsFunc(f.Ports, func(port Port) bool { return len(port.Listeners) > 0 })
}

// Port is a port of a front.
type Port struct {
	// Number is the port that clients connect to.
	Number    uint16
	Transport routing.Transport
	// HTTP3 is that of the socket.
	HTTP3 bool
	// Listeners are those of the socket, in the order of precedence. Without listeners, the
	// Service keeps the port, and nothing listens.
	Listeners []Listener
}

// Listener is a listener of a socket.
type Listener struct {
	routing.Listener
	// Namespace is the one whose hosts the listener serves. It is empty if hosts belong to
	// nobody, or if the listener serves no host.
	Namespace string
}

// listenersOf returns what nodes have to know of listeners.
func listenersOf(all []Listener) []routing.Listener {
	of := make([]routing.Listener, len(all))
	for i := range all {
		of[i] = all[i].Listener
	}
	return of
}
