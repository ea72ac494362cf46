// Package endpoints finds the endpoints behind a port of a Service. The packages compile and
// ingress use it.
package endpoints

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// NameOf returns the name of the backend for a port of a Service.
func NameOf(namespace, service string, port int32) string {
	return namespace + "/" + service + ":" + strconv.Itoa(int(port))
}

// Of returns the endpoints of a port of a Service, sorted. If none is ready, it returns
// those that are terminating and still serve, as the service proxy does. Endpoints at
// addresses that a gateway must not connect to are left out.
func Of(port *corev1.ServicePort, of []*discoveryv1.EndpointSlice) []netip.AddrPort {
	var ready, serving []netip.AddrPort
	for _, slice := range of {
		number := portOf(slice, port)
		if number == 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			conditions := endpoint.Conditions
			if len(endpoint.Addresses) == 0 {
				continue
			}
			address, err := netip.ParseAddr(endpoint.Addresses[0])
			if err != nil || !forwardable(address) {
				continue // the API server refuses such an address
			}
			found := netip.AddrPortFrom(address, number)
			switch {
			case conditions.Ready == nil || *conditions.Ready:
				ready = append(ready, found)
			case conditions.Serving != nil && *conditions.Serving && conditions.Terminating != nil && *conditions.Terminating:
				serving = append(serving, found)
			}
		}
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

// portOf returns the number that a port of a Service has in a slice, or zero.
func portOf(slice *discoveryv1.EndpointSlice, port *corev1.ServicePort) uint16 {
	for _, candidate := range slice.Ports {
		name, protocol := "", corev1.ProtocolTCP
		if candidate.Name != nil {
			name = *candidate.Name
		}
		if candidate.Protocol != nil {
			protocol = *candidate.Protocol
		}
		wanted := port.Protocol
		if wanted == "" {
			wanted = corev1.ProtocolTCP
		}
		if name == port.Name && protocol == wanted && candidate.Port != nil {
			return uint16(*candidate.Port)
		}
	}
	return 0
}
