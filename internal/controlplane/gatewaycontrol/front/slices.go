package front

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
)

const (
	// ListeningAnnotation is on a Node: see package gateways.
	ListeningAnnotation = gateways.ListeningAnnotation
	// SliceManager is the value of the label endpointslice.kubernetes.io/managed-by of the
	// EndpointSlices of fronts.
	SliceManager = "gateway.kedge.dev"
	// maxEndpoints is how many endpoints an EndpointSlice may have
	// (k8s.io/kubernetes/pkg/apis/discovery/validation/validation.go).
	maxEndpoints = 1000
)

// Node is a node that may serve a front.
type Node struct {
	Name, Zone string
	// Addresses are its own addresses, at most one of each family.
	Addresses []netip.Addr
	// Listening are the ports that are open there.
	Listening map[gateways.Port]bool
	// Yields are the ports of the front, by PortName, that belong to somebody else there.
	Yields []string
}

// Slices returns the EndpointSlices of a front whose Service is given: usually one for each
// address family. A node that has opened only some of the sockets is an endpoint of these
// ports only, so that a new listener does not interrupt the others. Such nodes are in a slice
// of their own.
func Slices(f Front, service *corev1.Service, nodes []Node) []*discoveryv1.EndpointSlice {
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	var all []*discoveryv1.EndpointSlice
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		if len(service.Spec.IPFamilies) > 0 && !slices.Contains(service.Spec.IPFamilies, corev1.IPFamily(family)) {
			continue
		}
		number := 0
		for _, group := range groupsOf(f, service, nodes, family) {
			for endpoints := range slices.Chunk(group.endpoints, maxEndpoints) {
				number++
				all = append(all, sliceOf(service, family, number, group.ports, endpoints))
			}
		}
	}
	return all
}

// group are the endpoints that have opened the same ports.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints []discoveryv1.Endpoint
}

// groupsOf returns the groups of nodes with an address of a family. Those with the most ports
// are first.
func groupsOf(f Front, service *corev1.Service, nodes []Node, family discoveryv1.AddressType) []*group {
	groups := map[string]*group{}
	for _, node := range nodes {
		place := slices.IndexFunc(node.Addresses, func(a netip.Addr) bool { return a.Is4() == (family == discoveryv1.AddressTypeIPv4) })
		if place < 0 {
			continue
		}
		var key strings.Builder
		var ports []discoveryv1.EndpointPort
		for _, port := range f.Ports {
			socket := socketOf(service, port.Number, port.Transport)
			if open := (gateways.Port{Number: socket, Transport: port.Transport}); socket != 0 && len(port.Listeners) > 0 && node.Listening[open] &&
				!slices.Contains(node.Yields, PortName(port)) {
				key.WriteString(open.String() + " ")
				ports = append(ports, endpointPort(port, socket))
			}
		}
		if len(ports) == 0 {
			continue
		}
		in := groups[key.String()]
		if in == nil {
			in = &group{ports: ports}
			groups[key.String()] = in
		}
		in.endpoints = append(in.endpoints, endpointOf(node, node.Addresses[place]))
	}
	order := make([]string, 0, len(groups))
	for key := range groups {
		order = append(order, key)
	}
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(groups[b].ports), len(groups[a].ports)), cmp.Compare(a, b))
	})
	sorted := make([]*group, len(order))
	for i, key := range order {
		sorted[i] = groups[key]
	}
	return sorted
}

func endpointPort(port Port, socket uint16) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: new(PortName(port)), Protocol: new(protocolOf(port.Transport)), Port: new(int32(socket))}
}

func endpointOf(node Node, address netip.Addr) discoveryv1.Endpoint {
	endpoint := discoveryv1.Endpoint{
		Addresses: []string{address.String()}, NodeName: new(node.Name),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
	}
	if node.Zone != "" {
		endpoint.Zone = new(node.Zone)
	}
	return endpoint
}

func sliceOf(service *corev1.Service, family discoveryv1.AddressType, number int, ports []discoveryv1.EndpointPort, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name := service.Name + "-" + strings.ToLower(string(family))
	if number > 1 {
		name = fmt.Sprintf("%s-%d", name, number)
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: SliceManager},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: new(true),
			}},
		},
		AddressType: family, Ports: ports, Endpoints: endpoints,
	}
}

// IsSlice tells whether kedge has made an EndpointSlice for a front.
func IsSlice(slice *discoveryv1.EndpointSlice) bool {
	owner := metav1.GetControllerOf(slice)
	return slice.Labels[discoveryv1.LabelManagedBy] == SliceManager &&
		owner != nil && owner.APIVersion == "v1" && owner.Kind == "Service" && owner.Name == slice.Labels[discoveryv1.LabelServiceName]
}

// UpdateSlice returns current with what desired has instead. It fails if kedge has not made current.
func UpdateSlice(current, desired *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	if !IsSlice(current) {
		return nil, fmt.Errorf("make EndpointSlice %s/%s: there is one that kedge has not made. Delete it: `kubectl delete endpointslice --namespace %s %s`",
			desired.Namespace, desired.Name, desired.Namespace, desired.Name)
	}
	now := current.DeepCopy()
	now.Labels = union(desired.Labels, now.Labels)
	now.OwnerReferences, now.Ports, now.Endpoints = desired.OwnerReferences, desired.Ports, desired.Endpoints
	return now, nil
}
