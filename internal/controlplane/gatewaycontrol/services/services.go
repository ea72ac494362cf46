// Package services keeps the Services of fronts and their EndpointSlices in the cluster. Package front says
// what they must be, and this package writes what differs. Package gatewaycontrol calls it on the elected
// server.
package services

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// Config is what a Keeper needs.
type Config struct {
	// API writes Services and EndpointSlices.
	API kubernetes.Interface
	// Informers provide Services, EndpointSlices, nodes and pods.
	Informers objectcache.Source
	// Owner returns the node that is registered with an address. A node chooses what its Node
	// says of itself.
	Owner func(netip.Addr) (node string, found bool)
	// Changes receives when Sync must be called again.
	Changes loop.Changes
}

// Keeper keeps Services and EndpointSlices in step with fronts. One goroutine uses it.
type Keeper struct {
	cfg      Config
	stage    *objectcache.Stage
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	nodes    corelisters.NodeLister
	// hostPorts is nil while there is no shared front.
	hostPorts *hostPorts
}

// Start makes a Keeper that knows what there is, or that knows nothing because ctx has ended. It must be
// stopped.
func Start(ctx context.Context, cfg Config) (*Keeper, error) {
	stage, err := objectcache.NewStage(ctx, cfg.Informers)
	if err != nil {
		return nil, err
	}
	core, discovery := stage.Core().V1(), stage.Discovery().V1()
	k := &Keeper{cfg: cfg, stage: stage, services: core.Services().Lister(), slices: discovery.EndpointSlices().Lister(), nodes: core.Nodes().Lister()}
	err = errors.Join(
		stage.Handle(core.Services().Informer(), objectcache.Handler(cfg.Changes, front.IsFront, nil)),
		stage.Handle(discovery.EndpointSlices().Informer(), objectcache.Handler[*discoveryv1.EndpointSlice](cfg.Changes, front.IsSlice, nil)),
		stage.Handle(core.Nodes().Informer(), objectcache.Handler[*corev1.Node](cfg.Changes, nil, isSameNode)),
	)
	if err != nil {
		stage.Stop()
		return nil, err
	}
	stage.Start()
	return k, nil
}

// Stop ends what Start and Sync have started.
func (k *Keeper) Stop() {
	k.hostPorts.stop()
	k.stage.Stop()
}

// Shared returns the Service of the shared front, or nil if there is none.
func (k *Keeper) Shared() *corev1.Service { return k.serviceOf(front.Shared) }

// serviceOf returns the Service of a front, or nil if kedge has made none.
func (k *Keeper) serviceOf(name types.NamespacedName) *corev1.Service {
	service, err := k.services.Services(name.Namespace).Get(name.Name)
	if err != nil || !front.IsFront(service) { // there is none
		return nil
	}
	return service
}

// Serves tells whether a node may serve a front.
type Serves func(front types.NamespacedName, node string) bool

// Sync writes what differs. It calls failed with each error about one object, and with nil. It returns
// the faults of nodes that cannot serve, and fails if it cannot know these. The Services come first,
// because nodes can listen only when these have ports.
func (k *Keeper) Sync(ctx context.Context, fronts []front.Front, serves Serves, failed func(error)) ([]faults.Fault, error) {
	switch needed := slices.ContainsFunc(fronts, func(f front.Front) bool { return f.Name == front.Shared }); {
	case !needed:
		k.hostPorts.stop()
		k.hostPorts = nil
	case k.hostPorts == nil:
		watching, err := watchHostPorts(ctx, k.cfg.Informers, k.cfg.Changes.Notify)
		if err != nil {
			return nil, err
		}
		k.hostPorts = watching
	}
	k.syncServices(ctx, fronts, failed)
	return k.syncSlices(ctx, fronts, serves, failed), nil
}

// syncServices makes the Services of fronts, keeps them in step, and deletes those that are no
// longer wanted. A Service that nothing is behind any more stays as long as its Gateways are
// there, with its addresses.
func (k *Keeper) syncServices(ctx context.Context, fronts []front.Front, failed func(error)) {
	wanted := map[types.NamespacedName]bool{}
	for _, f := range fronts {
		wanted[f.Name] = true
		if len(f.Ports) > 0 { // a Service must have a port: otherwise it stays as it is
			failed(k.syncService(ctx, f))
		}
	}
	all, _ := k.services.List(labels.Everything()) // listing a cache does not fail
	for _, service := range all {
		if front.IsFront(service) && service.DeletionTimestamp == nil && !wanted[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] {
			failed(remove(ctx, k.cfg.API.CoreV1().Services(service.Namespace), "Service", service))
		}
	}
}

// syncService writes the Service of a front if it differs. A new one gets its node ports from
// the API server, and then its target ports.
func (k *Keeper) syncService(ctx context.Context, f front.Front) error {
	current, err := k.services.Services(f.Name.Namespace).Get(f.Name.Name)
	if err != nil && !f.Serves() { // there is none
		return nil
	}
	return write(ctx, k.cfg.API.CoreV1().Services(f.Name.Namespace), "Service", current, front.Service(f), func(current, desired *corev1.Service) (*corev1.Service, error) {
		if !front.IsFront(current) {
			return current, nil // the status of the Gateway says so
		}
		return front.Update(current, desired), nil
	})
}
