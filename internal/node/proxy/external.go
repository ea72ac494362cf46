package proxy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// ownAddresses makes the proxier serve load balancers at the node's own addresses, too, if
// their status has an external address of the node. A router in front of the node may
// translate the external address into the node's own, and the proxier would not know packets
// to that.
type ownAddresses struct {
	watch.ServiceHandler
	own, external []netip.Addr
}

// withOwnAddresses returns handler itself if the node has no external addresses.
func withOwnAddresses(handler watch.ServiceHandler, own, external []netip.Addr) watch.ServiceHandler {
	if len(external) == 0 {
		return handler
	}
	return ownAddresses{handler, own, external}
}

// OnServiceAdd implements watch.ServiceHandler.
func (o ownAddresses) OnServiceAdd(service *corev1.Service) {
	o.ServiceHandler.OnServiceAdd(o.extend(service))
}

// OnServiceUpdate implements watch.ServiceHandler.
func (o ownAddresses) OnServiceUpdate(before, service *corev1.Service) {
	o.ServiceHandler.OnServiceUpdate(o.extend(before), o.extend(service))
}

// OnServiceDelete implements watch.ServiceHandler.
func (o ownAddresses) OnServiceDelete(service *corev1.Service) {
	o.ServiceHandler.OnServiceDelete(o.extend(service))
}

// extend returns a Service with the node's own addresses beside its external ones. It
// returns the Service itself if that has none of them.
func (o ownAddresses) extend(service *corev1.Service) *corev1.Service {
	if service == nil {
		return nil
	}
	var missing []corev1.LoadBalancerIngress
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(ingress.IP)
		if err != nil || !slices.Contains(o.external, address.Unmap()) {
			continue
		}
		for _, own := range o.own {
			same := func(one corev1.LoadBalancerIngress) bool { return one.IP == own.String() }
			if own.Is4() == address.Unmap().Is4() && !slices.ContainsFunc(service.Status.LoadBalancer.Ingress, same) {
				missing = append(missing, corev1.LoadBalancerIngress{IP: own.String(), IPMode: ingress.IPMode})
			}
		}
	}
	if len(missing) == 0 {
		return service
	}
	extended := service.DeepCopy()
	extended.Status.LoadBalancer.Ingress = append(extended.Status.LoadBalancer.Ingress, missing...)
	return extended
}
