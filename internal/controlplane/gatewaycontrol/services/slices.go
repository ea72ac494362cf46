package services

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// syncSlices keeps the EndpointSlices of fronts in step with the nodes that listen. It
// returns the faults of nodes that cannot serve.
func (k *Keeper) syncSlices(ctx context.Context, fronts []front.Front, serves Serves, failed func(error)) (yielding []faults.Fault) {
	existing := map[types.NamespacedName]*discoveryv1.EndpointSlice{}
	all, _ := k.slices.List(labels.Everything()) // listing a cache does not fail
	for _, slice := range all {
		if front.IsSlice(slice) {
			existing[types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}] = slice
		}
	}
	for _, f := range fronts {
		service := k.serviceOf(f.Name)
		if service == nil {
			continue
		}
		nodes, faults := k.endpoints(&f, service, serves)
		yielding = append(yielding, faults...)
		for _, desired := range front.Slices(f, service, nodes) {
			key := types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}
			failed(write(ctx, k.cfg.API.DiscoveryV1().EndpointSlices(desired.Namespace), "EndpointSlice", existing[key], desired, front.UpdateSlice))
			delete(existing, key)
		}
	}
	for _, slice := range existing {
		failed(remove(ctx, k.cfg.API.DiscoveryV1().EndpointSlices(slice.Namespace), "EndpointSlice", slice))
	}
	return yielding
}

// endpoints returns the nodes that may be endpoints of a front. A port that a pod of a node has as
// a host port is the pod's: if the node were an endpoint of this port of the shared front, the
// service proxy would take the connections away from the pod.
func (k *Keeper) endpoints(f *front.Front, service *corev1.Service, serves Serves) (nodes []front.Node, yielding []faults.Fault) {
	all, _ := k.nodes.List(labels.Everything()) // listing a cache does not fail
	for _, object := range all {
		if !serves(f.Name, object.Name) || !isReady(object) {
			continue
		}
		node := nodeOf(object, k.cfg.Owner)
		if f.Name == front.Shared {
			for _, o := range k.hostPorts.find(object.Name, f.Ports) {
				node.Yields = append(node.Yields, front.PortName(o.port))
				yielding = append(yielding, faults.Fault{Object: service, Reason: "HostPortInUse", Message: fmt.Sprintf(
					"kedge does not serve port %d/%s of Gateways and Ingresses at the addresses of node %s, because pod %s has the host port there. "+
						"To let kedge serve it there, remove the hostPort of the pod", o.port.Number, o.port.Transport, object.Name, o.pod)})
			}
		}
		nodes = append(nodes, node)
	}
	return nodes, yielding
}
