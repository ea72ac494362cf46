package proxy

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// localSlices keeps from the proxier those changes of slices of a manager that
// say nothing about this node. The endpoints of such slices are for the pods of
// their own nodes only, so that otherwise all nodes would do their rules anew
// for each one that joins.
type localSlices struct {
	watch.EndpointSliceHandler
	manager, nodeName string
}

// OnEndpointSliceUpdate implements watch.EndpointSliceHandler.
func (l localSlices) OnEndpointSliceUpdate(before, after *discoveryv1.EndpointSlice) {
	if after.Labels[discoveryv1.LabelManagedBy] == l.manager &&
		equality.Semantic.DeepEqual(before.Labels, after.Labels) &&
		equality.Semantic.DeepEqual(before.Ports, after.Ports) &&
		equality.Semantic.DeepEqual(l.own(before), l.own(after)) {
		return
	}
	l.EndpointSliceHandler.OnEndpointSliceUpdate(before, after)
}

func (l localSlices) own(slice *discoveryv1.EndpointSlice) []discoveryv1.Endpoint {
	return slices.DeleteFunc(slices.Clone(slice.Endpoints), func(endpoint discoveryv1.Endpoint) bool {
		return endpoint.NodeName == nil || *endpoint.NodeName != l.nodeName
	})
}
