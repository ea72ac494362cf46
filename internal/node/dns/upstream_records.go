// Follows github.com/coredns/coredns v1.15.0, plugin/kubernetes/object/service.go.
// Follows github.com/coredns/coredns v1.15.0, plugin/kubernetes/object/endpoint.go.
// Follows github.com/coredns/coredns v1.15.0, plugin/kubernetes/controller.go.

package dns

import (
	"slices"

	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// recordOf returns what CoreDNS keeps of a Service. The record shares lists with the Service, so nobody
// may change it. Upstream's function empties the Service.
//
//upstream:follows github.com/coredns/coredns/plugin/kubernetes/object/service.go ToService
func recordOf(service *corev1.Service) *object.Service {
	record := &object.Service{
		Version:      service.ResourceVersion,
		Name:         service.Name,
		Namespace:    service.Namespace,
		Index:        object.ServiceKey(service.Name, service.Namespace),
		ClusterIPs:   service.Spec.ClusterIPs,
		Type:         service.Spec.Type,
		ExternalName: service.Spec.ExternalName,
		Ports:        service.Spec.Ports,
		ExternalIPs:  externalIPs(service),
	}
	if len(record.ClusterIPs) == 0 {
		record.ClusterIPs = []string{service.Spec.ClusterIP}
	}
	if len(record.Ports) == 0 {
		record.Ports = []corev1.ServicePort{{Port: -1}} // CoreDNS's mark of no ports
	}
	return record
}

func externalIPs(service *corev1.Service) []string {
	addresses := slices.Clone(service.Spec.ExternalIPs)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			addresses = append(addresses, ingress.IP)
		} else {
			addresses = append(addresses, ingress.Hostname)
		}
	}
	return addresses
}

// endpointsOf returns what CoreDNS keeps of an EndpointSlice. Upstream's function empties the slice.
//
//upstream:follows github.com/coredns/coredns/plugin/kubernetes/object/endpoint.go endpointSliceToEndpoints endpointsliceReady
func endpointsOf(slice *discoveryv1.EndpointSlice) *object.Endpoints {
	subset := object.EndpointSubset{Ports: make([]object.EndpointPort, 0, max(1, len(slice.Ports)))}
	for _, port := range slice.Ports {
		kept := object.EndpointPort{Port: -1}
		if port.Port != nil {
			kept.Port = *port.Port
		}
		if port.Name != nil {
			kept.Name = *port.Name
		}
		if port.Protocol != nil {
			kept.Protocol = string(*port.Protocol)
		}
		subset.Ports = append(subset.Ports, kept)
	}
	if len(subset.Ports) == 0 {
		subset.Ports = append(subset.Ports, object.EndpointPort{Port: -1})
	}
	record := &object.Endpoints{
		Version:   slice.ResourceVersion,
		Name:      slice.Name,
		Namespace: slice.Namespace,
		Index:     object.EndpointsKey(slice.Labels[discoveryv1.LabelServiceName], slice.Namespace),
	}
	for _, endpoint := range slice.Endpoints {
		if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
			continue
		}
		kept := object.EndpointAddress{}
		if endpoint.Hostname != nil {
			kept.Hostname = *endpoint.Hostname
		}
		// A longer name cannot be a part of a name of DNS.
		if endpoint.TargetRef != nil && len(endpoint.TargetRef.Name) < 64 {
			kept.TargetRefName = endpoint.TargetRef.Name
		}
		if endpoint.NodeName != nil {
			kept.NodeName = *endpoint.NodeName
		}
		for _, kept.IP = range endpoint.Addresses {
			subset.Addresses = append(subset.Addresses, kept)
			record.IndexIP = append(record.IndexIP, kept.IP)
		}
	}
	record.Subsets = []object.EndpointSubset{subset}
	return record
}

// sameService tells whether two states of a Service have the same records.
//
//upstream:follows github.com/coredns/coredns/plugin/kubernetes/controller.go serviceModified
func sameService(before, now *corev1.Service) bool {
	return before.Spec.ExternalName == now.Spec.ExternalName &&
		slices.Equal(externalIPs(before), externalIPs(now)) &&
		slices.EqualFunc(before.Spec.Ports, now.Spec.Ports, func(a, b corev1.ServicePort) bool {
			return a.Name == b.Name && a.Port == b.Port && a.Protocol == b.Protocol
		})
}

// sameEndpoints tells whether two states of an EndpointSlice have the same records.
//
//upstream:follows github.com/coredns/coredns/plugin/kubernetes/controller.go endpointsEquivalent subsetsEquivalent
func sameEndpoints(before, now *discoveryv1.EndpointSlice) bool {
	a, b := endpointsOf(before).Subsets[0], endpointsOf(now).Subsets[0]
	return slices.Equal(a.Ports, b.Ports) && slices.EqualFunc(a.Addresses, b.Addresses, func(a, b object.EndpointAddress) bool {
		return a.IP == b.IP && a.Hostname == b.Hostname
	})
}
