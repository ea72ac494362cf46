package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	watch "k8s.io/kubernetes/pkg/proxy/config"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// ownAddresses makes the proxier redirect packets for a load balancer whose addresses are
// those of nodes, if this node is one of them. The status of such a Service says that
// proxies leave its addresses alone (ipMode Proxy): otherwise a node that claims the address
// of somebody else would make all nodes redirect packets for that address.
//
// If the status has an external address of this node, the node's own address counts, too: a
// router in front of the node may translate one into the other.
//
// The proxier redirects all ports of a Service at all of its addresses. A port that this node does
// not serve, because somebody else has it here, is no port of the Service for the proxier.
type ownAddresses struct {
	watch.ServiceHandler
	own, external []netip.Addr
}

// OnServiceAdd implements watch.ServiceHandler.
func (o ownAddresses) OnServiceAdd(service *corev1.Service) {
	o.ServiceHandler.OnServiceAdd(o.adopt(service))
}

// OnServiceUpdate implements watch.ServiceHandler.
func (o ownAddresses) OnServiceUpdate(before, service *corev1.Service) {
	o.ServiceHandler.OnServiceUpdate(o.adopt(before), o.adopt(service))
}

// OnServiceDelete implements watch.ServiceHandler.
func (o ownAddresses) OnServiceDelete(service *corev1.Service) {
	o.ServiceHandler.OnServiceDelete(o.adopt(service))
}

// adopt returns a Service in whose status the addresses of this node are for the proxier. It
// returns the Service itself if there are none.
func (o ownAddresses) adopt(service *corev1.Service) *corev1.Service {
	if service == nil || !servicelb.IsMarked(service) {
		return service
	}
	var adopted []corev1.LoadBalancerIngress
	var own []*corev1.LoadBalancerIngress
	add := func(address netip.Addr) {
		same := func(one corev1.LoadBalancerIngress) bool { return one.IP == address.String() }
		if !slices.ContainsFunc(adopted, same) {
			adopted = append(adopted, corev1.LoadBalancerIngress{IP: address.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
		}
	}
	for i, ingress := range service.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(ingress.IP)
		if err != nil || ingress.IPMode == nil || *ingress.IPMode != corev1.LoadBalancerIPModeProxy {
			continue
		}
		isExternal := slices.Contains(o.external, address)
		if isExternal || slices.Contains(o.own, address) {
			add(address)
			own = append(own, &service.Status.LoadBalancer.Ingress[i])
		}
		for _, of := range o.own {
			if isExternal && of.Is4() == address.Is4() {
				add(of)
			}
		}
	}
	if len(adopted) == 0 {
		return service
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if !slices.ContainsFunc(adopted, func(one corev1.LoadBalancerIngress) bool { return one.IP == ingress.IP }) {
			adopted = append(adopted, ingress)
		}
	}
	changed := service.DeepCopy()
	changed.Status.LoadBalancer.Ingress = adopted
	changed.Spec.Ports = slices.DeleteFunc(changed.Spec.Ports, func(port corev1.ServicePort) bool {
		return slices.ContainsFunc(own, func(address *corev1.LoadBalancerIngress) bool { return !servicelb.Serves(address, &port) })
	})
	return changed
}
