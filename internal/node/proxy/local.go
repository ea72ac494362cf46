package proxy

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// localSlices hides from the proxier what does not concern this node in the EndpointSlices of a manager. The endpoints of
// these slices are only for pods on the endpoints' own nodes. Without this filter all nodes would rewrite their
// rules for each node that joins.
//
// The proxier knows an endpoint by its address alone. After a host's name has changed, there are two Nodes with the host's
// address. The endpoint of the former Node could take the place of this node's. So localSlices leaves out endpoints of
// other nodes that have an address of this one.
type localSlices struct {
	watch.EndpointSliceHandler
	manager, nodeName string
}

// OnEndpointSliceAdd implements watch.EndpointSliceHandler.
func (l localSlices) OnEndpointSliceAdd(slice *discoveryv1.EndpointSlice) {
	l.EndpointSliceHandler.OnEndpointSliceAdd(l.distinct(slice))
}

// OnEndpointSliceUpdate implements watch.EndpointSliceHandler.
func (l localSlices) OnEndpointSliceUpdate(before, after *discoveryv1.EndpointSlice) {
	if l.concerns(after) &&
		equality.Semantic.DeepEqual(before.Labels, after.Labels) &&
		equality.Semantic.DeepEqual(before.Ports, after.Ports) &&
		equality.Semantic.DeepEqual(l.own(before), l.own(after)) {
		return
	}
	l.EndpointSliceHandler.OnEndpointSliceUpdate(l.distinct(before), l.distinct(after))
}

func (l localSlices) concerns(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == l.manager
}

// own returns the endpoints of this node.
func (l localSlices) own(slice *discoveryv1.EndpointSlice) []discoveryv1.Endpoint {
	return slices.DeleteFunc(slices.Clone(slice.Endpoints), func(endpoint discoveryv1.Endpoint) bool { return !l.isOwn(endpoint) })
}

func (l localSlices) isOwn(endpoint discoveryv1.Endpoint) bool {
	return endpoint.NodeName != nil && *endpoint.NodeName == l.nodeName
}

// distinct returns a slice of the manager without the endpoints of other nodes at addresses of this one.
func (l localSlices) distinct(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	var taken []string
	if l.concerns(slice) {
		for _, endpoint := range l.own(slice) {
			taken = append(taken, endpoint.Addresses...)
		}
	}
	double := func(endpoint discoveryv1.Endpoint) bool {
		return !l.isOwn(endpoint) && slices.ContainsFunc(endpoint.Addresses, func(address string) bool { return slices.Contains(taken, address) })
	}
	if !slices.ContainsFunc(slice.Endpoints, double) {
		return slice
	}
	copied := *slice
	copied.Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), double)
	return &copied
}
