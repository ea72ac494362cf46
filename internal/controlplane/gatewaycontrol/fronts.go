package gatewaycontrol

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// syncServices makes the Services of fronts, keeps them in step, and deletes those that are no
// longer wanted. A Service that nothing is behind any more stays as long as its Gateways are
// there, with its addresses.
func (t *term) syncServices(ctx context.Context, newest *compiled, failed func(error)) {
	wanted := map[types.NamespacedName]bool{}
	for _, f := range newest.fronts {
		wanted[f.Name] = true
		if len(f.Ports) == 0 {
			continue // a Service must have a port: it stays as it is
		}
		if err := t.syncService(ctx, f); err != nil {
			failed(err)
		}
	}
	for _, service := range frontServices(t.services) {
		if !wanted[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] {
			failed(deleteService(ctx, t.api, service))
		}
	}
}

// syncService writes the Service of a front if it differs. A new one gets its node ports from
// the API server, and then its target ports.
func (t *term) syncService(ctx context.Context, f front.Front) error {
	desired := front.Service(f)
	client := t.api.CoreV1().Services(f.Name.Namespace)
	current, err := t.services.Services(f.Name.Namespace).Get(f.Name.Name)
	if err != nil { // there is none
		if !f.Serves() {
			return nil
		}
		current, err = client.Create(ctx, desired, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the cache is behind
			current, err = client.Get(ctx, f.Name.Name, metav1.GetOptions{})
		}
		if err != nil {
			return fmt.Errorf("make Service %s: %w", f.Name, err)
		}
	}
	if !front.IsFront(current) {
		return nil // the status of the Gateway says so
	}
	if now := front.Update(current, desired); !equality.Semantic.DeepEqual(current, now) {
		if _, err := client.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("change Service %s: %w", f.Name, err)
		}
	}
	return nil
}

// frontServices returns the Services that kedge has made as fronts.
func frontServices(lister corelisters.ServiceLister) []*corev1.Service {
	all, _ := lister.List(labels.Everything()) // listing a cache does not fail
	var fronts []*corev1.Service
	for _, service := range all {
		if front.IsFront(service) && service.DeletionTimestamp == nil {
			fronts = append(fronts, service)
		}
	}
	return fronts
}

func deleteService(ctx context.Context, api kubernetes.Interface, service *corev1.Service) error {
	err := api.CoreV1().Services(service.Namespace).Delete(ctx, service.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(service.UID))})
	if err != nil {
		return fmt.Errorf("delete Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	return nil
}

// syncSlices keeps the EndpointSlices of fronts in step with the nodes that listen. It
// returns the faults of nodes that cannot serve.
func (t *term) syncSlices(ctx context.Context, newest *compiled, failed func(error)) (all []faults.Fault) {
	existing := frontSlices(t.slices)
	for _, f := range newest.fronts {
		service, err := t.services.Services(f.Name.Namespace).Get(f.Name.Name)
		if err != nil || !front.IsFront(service) {
			continue
		}
		nodes, yielding := t.endpoints(&f, service, newest)
		all = append(all, yielding...)
		for _, desired := range front.Slices(f, service, nodes) {
			key := types.NamespacedName{Namespace: desired.Namespace, Name: desired.Name}
			failed(t.syncSlice(ctx, existing[key], desired))
			delete(existing, key)
		}
	}
	for _, slice := range existing {
		failed(deleteSlice(ctx, t.api, slice))
	}
	return all
}

// endpoints returns the nodes that may be endpoints of a front. A port that a pod of a node has as
// a host port is the pod's: if the node were an endpoint of this port of the shared front, the
// service proxy would take the connections away from the pod.
func (t *term) endpoints(f *front.Front, service *corev1.Service, newest *compiled) (nodes []front.Node, yielding []faults.Fault) {
	all, _ := t.nodes.List(labels.Everything()) // listing a cache does not fail
	for _, object := range all {
		if !newest.parts.serves(f.Name, object.Name) || !isReady(object) {
			continue
		}
		node := nodeOf(object, t.Owner)
		if f.Name == front.Shared {
			for _, o := range t.hostPorts.find(object.Name, f.Ports) {
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

func (t *term) syncSlice(ctx context.Context, current, desired *discoveryv1.EndpointSlice) error {
	client := t.api.DiscoveryV1().EndpointSlices(desired.Namespace)
	if current == nil {
		made, err := client.Create(ctx, desired, metav1.CreateOptions{})
		if err == nil {
			return nil
		}
		if apierrors.IsAlreadyExists(err) {
			made, err = client.Get(ctx, desired.Name, metav1.GetOptions{})
		}
		if err != nil {
			return fmt.Errorf("make EndpointSlice %s/%s: %w", desired.Namespace, desired.Name, err)
		}
		if !front.IsSlice(made) {
			return fmt.Errorf("make EndpointSlice %s/%s: there is one that kedge has not made. Delete it: `kubectl delete endpointslice --namespace %s %s`",
				desired.Namespace, desired.Name, desired.Namespace, desired.Name)
		}
		current = made // the cache is behind
	}
	now := current.DeepCopy()
	if now.Labels == nil {
		now.Labels = map[string]string{}
	}
	maps.Copy(now.Labels, desired.Labels)
	now.OwnerReferences, now.Ports, now.Endpoints = desired.OwnerReferences, desired.Ports, desired.Endpoints
	if equality.Semantic.DeepEqual(current, now) {
		return nil
	}
	if _, err := client.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change EndpointSlice %s/%s: %w", now.Namespace, now.Name, err)
	}
	return nil
}

// frontSlices returns the EndpointSlices that kedge has made for fronts.
func frontSlices(lister discoverylisters.EndpointSliceLister) map[types.NamespacedName]*discoveryv1.EndpointSlice {
	all, _ := lister.List(labels.Everything()) // listing a cache does not fail
	slices := map[types.NamespacedName]*discoveryv1.EndpointSlice{}
	for _, slice := range all {
		if front.IsSlice(slice) {
			slices[types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}] = slice
		}
	}
	return slices
}

func deleteSlice(ctx context.Context, api kubernetes.Interface, slice *discoveryv1.EndpointSlice) error {
	err := api.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(slice.UID))})
	if err != nil {
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	return nil
}
