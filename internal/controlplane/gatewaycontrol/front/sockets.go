package front

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// Options are the settings of the cluster that all sockets have.
type Options struct {
	// ProxyProtocol says that connections of Trusted begin with a header of the PROXY protocol.
	ProxyProtocol bool
	// Trusted are ranges of proxies in front of kedge.
	Trusted []netip.Prefix
	// AccessLog says that each request is logged.
	AccessLog bool
}

// Sockets returns what nodes listen on for fronts, by name, and the front of each socket. service
// returns the Service of a front, or nil. A port has no socket until its Service says which one it
// is.
func Sockets(fronts []Front, service func(types.NamespacedName) *corev1.Service, options Options) (sockets map[string]*routing.Socket, of map[string]types.NamespacedName) {
	sockets, of = map[string]*routing.Socket{}, map[string]types.NamespacedName{}
	for _, f := range fronts {
		current := service(f.Name)
		if current == nil || !IsFront(current) {
			continue
		}
		for _, port := range f.Ports {
			number := socketOf(current, port.Number, port.Transport)
			if number == 0 || len(port.Listeners) == 0 {
				continue
			}
			name := gateways.Port{Number: number, Transport: port.Transport}.String()
			of[name] = f.Name
			sockets[name] = &routing.Socket{
				Transport: port.Transport, Port: number, PublicPort: port.Number, Listeners: listenersOf(port.Listeners),
				HTTP3:         port.HTTP3 && f.hasHTTP3(current, port.Number),
				Reserved:      f.reserved(&port),
				ProxyProtocol: options.ProxyProtocol && port.Transport == routing.TCP,
				Trusted:       options.Trusted,
				AccessLog:     options.AccessLog,
			}
		}
	}
	return sockets, of
}

// hasHTTP3 tells whether there is a socket for HTTP/3 on a port. Without one, answers must
// not promise it.
func (f *Front) hasHTTP3(service *corev1.Service, number uint16) bool {
	return socketOf(service, number, routing.UDP) != 0 && slices.ContainsFunc(f.Ports, func(port Port) bool {
		return port.Number == number && port.Transport == routing.UDP && port.HTTP3
	})
}

// reserved returns the host names that HTTP/3 must leave alone on a port, because a listener of
// TLS has them over TCP. A less specific listener of HTTPS would have them otherwise.
func (f *Front) reserved(quic *Port) (names []string) {
	if quic.Transport != routing.UDP || !quic.HTTP3 {
		return nil
	}
	for _, port := range f.Ports {
		if port.Number != quic.Number || port.Transport != routing.TCP {
			continue
		}
		seen := map[string]bool{} // of listeners with the same name, the first one has it
		for i := range port.Listeners {
			l := &port.Listeners[i]
			if !seen[l.Hostname] && l.Protocol != routing.HTTPS {
				names = append(names, l.Hostname)
			}
			seen[l.Hostname] = true
		}
	}
	return names
}

// socketOf returns the port that nodes listen on for a port of a front, or zero if it is not
// known yet.
func socketOf(service *corev1.Service, number uint16, transport routing.Transport) uint16 {
	for _, port := range service.Spec.Ports {
		if port.Port == int32(number) && cmp.Or(port.Protocol, corev1.ProtocolTCP) == protocolOf(transport) {
			return socketOfPort(&port)
		}
	}
	return 0
}

func socketOfPort(port *corev1.ServicePort) uint16 {
	if port.NodePort == 0 || port.TargetPort != intstr.FromInt32(port.NodePort) {
		return 0
	}
	return uint16(port.NodePort)
}
