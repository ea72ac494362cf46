package proxy

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	watch "k8s.io/kubernetes/pkg/proxy/config"
)

// localSlices hides from the proxier those changes of a manager's EndpointSlices that do not concern
// this node. The endpoints of these slices are only for pods on the endpoints' own nodes. Without
// this filter all nodes would rewrite their rules for each node that joins.
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
