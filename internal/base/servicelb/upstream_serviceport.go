// Follows k8s.io/kubernetes v1.37.2, pkg/proxy/serviceport.go.

package servicelb

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"
)

// Foreign returns the addresses of a Service that the cluster has not assigned: its external ones,
// and those of its load balancer. It reads them as the service proxy does.
//
//upstream:follows k8s.io/kubernetes/pkg/proxy/serviceport.go newBaseServiceInfo
func Foreign(service *corev1.Service) (external, balanced []netip.Addr) {
	for _, text := range service.Spec.ExternalIPs {
		if address, is := Parse(text); is {
			external = append(external, address)
		}
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if address, is := Parse(ingress.IP); is {
			balanced = append(balanced, address)
		}
	}
	return external, balanced
}

// Parse reads an address as the service proxy does: its numbers may begin with zeros. An IPv4 address
// that is written as an IPv6 one is an IPv4 address.
func Parse(text string) (netip.Addr, bool) {
	address, is := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return address.Unmap(), is
}
