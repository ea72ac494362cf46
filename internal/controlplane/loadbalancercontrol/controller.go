// Package loadbalancercontrol is the controller of Services of type LoadBalancer: it decides
// which addresses they get. It writes the addresses of nodes, or addresses of a pool, into
// the status of each Service. The service proxy of every node then serves these addresses.
// The server package runs it beside the controllers, on the elected server.
//
// The controller needs three things of others:
//
//   - Each node says which ports are free on its addresses (internal/node/loadbalancer).
//     An address of a node is in a status only after its node has said so.
//   - Each node announces the addresses of pools whose Leases it holds. The controller
//     makes the Leases, and says in each which nodes may hold it.
//   - The tunnels of agents tell within seconds that a node is gone (Config.Answers). The
//     kubelet's Lease would take 40 s.
//
// The other servers ask the nodes, too. If the elected server dies, they remove the addresses
// of silent nodes until the next one is elected: see deputy.
//
// As long as no Service is of this type, each server only looks at each Service that
// changes.
package loadbalancercontrol

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// Config is what the controller needs.
type Config struct {
	// Client calls as system:kedge:loadbalancer-controller, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers provide Services, EndpointSlices, nodes and namespaces.
	Informers objectcache.Source
	// Cluster provides the range of NodePorts, and the ranges of pods and Services.
	Cluster config.Cluster
	// Owner returns the node that is registered with an address. A node chooses what its
	// Node says of itself, so only these addresses count as its own.
	Owner func(netip.Addr) (node string, found bool)
	// VIP is the address of the control plane, which no pool gives to a Service, or zero.
	VIP netip.Addr
	// Node is the name of this server's own node, which always answers, or empty.
	Node string
	// Answers asks a node for a sign of life. known is false if the node has never been
	// connected with this server, so that its silence tells nothing.
	Answers func(ctx context.Context, node string) (answers, known bool)
	// Overdue tells whether the elected server seems to be gone. It fails if the API does not
	// answer. It is nil if there is no other server.
	Overdue func(ctx context.Context) (bool, error)
}

// Controller implements the election package's Loops.
type Controller struct {
	cfg Config
	log *logrus.Entry
	// liveness is kept when this server begins to lead, so that nodes that are gone do not
	// count as alive again. Either Lead or Follow uses it.
	liveness *liveness
}

// New makes the controller.
func New(cfg Config) *Controller {
	return &Controller{cfg, logrus.WithField("component", "loadbalancer"), newLiveness(cfg)}
}

// Lead runs the controller until ctx ends.
func (c *Controller) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := c.cfg.Client(ctx)
	api, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	custom, err := dynamic.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("make client of pools: %w", err)
	}
	factory, err := c.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	t, err := newTerm(c.cfg, c.liveness, api, custom, factory, events.NewRecorder(ctx, api, "kedge-loadbalancer", ""), c.log)
	if err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	ready()
	t.run(ctx)
	cancel()
	t.watching.Wait()
	return nil
}

// term is the controller while this server leads.
type term struct {
	api    kubernetes.Interface
	custom dynamic.Interface
	log    *logrus.Entry
	events record.EventRecorder
	// nodePorts is the range of NodePorts.
	nodePorts net.PortRange
	// reserved are the cluster's own ranges, of which pools have nothing.
	reserved []netip.Prefix
	vip      netip.Addr
	owner    func(netip.Addr) (string, bool)
	liveness *liveness
	synced   []cache.DoneChecker
	// changes receives when the plan may be another.
	changes loop.Changes

	services   corelisters.ServiceLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	namespaces corelisters.NamespaceLister
	// pools is nil until there is a Service for the controller. watching is their informer.
	pools    cache.Store
	watching sync.WaitGroup

	// told has the last warning about each Service, so that each is told once.
	told map[types.UID]string
	// poolFaults has what is wrong with pools.
	poolFaults loop.Faults
	// leased is true if there may be Leases of addresses. It is true at first, because an
	// earlier term may have made some.
	leased bool
}

func newTerm(cfg Config, liveness *liveness, api kubernetes.Interface, custom dynamic.Interface, factory informers.SharedInformerFactory, recorder record.EventRecorder, log *logrus.Entry) (*term, error) {
	nodePorts, err := net.ParsePortRange(cfg.Cluster.ServiceNodePortRange)
	if err != nil {
		return nil, fmt.Errorf("read service-node-port-range: %w", err)
	}
	core := factory.Core().V1()
	t := &term{
		api:        api,
		custom:     custom,
		log:        log,
		events:     recorder,
		nodePorts:  *nodePorts,
		reserved:   slices.Concat(cfg.Cluster.PodCIDRs(), cfg.Cluster.ServiceCIDRs()),
		vip:        cfg.VIP,
		owner:      cfg.Owner,
		liveness:   liveness,
		changes:    loop.NewChanges(),
		services:   core.Services().Lister(),
		nodes:      core.Nodes().Lister(),
		slices:     factory.Discovery().V1().EndpointSlices().Lister(),
		namespaces: core.Namespaces().Lister(),
		told:       map[types.UID]string{},
		poolFaults: loop.Faults{Log: log},
		leased:     true,
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Services().Informer():                           objectcache.Handler(t.changes, func(s *corev1.Service) bool { return isOursOrMarked(s) || hasExternal(s) }, nil),
		core.Nodes().Informer():                              objectcache.Handler(t.changes, nil, isSameNode),
		factory.Discovery().V1().EndpointSlices().Informer(): objectcache.Handler(t.changes, t.isLocal, nil),
		core.Namespaces().Informer(): objectcache.Handler(t.changes, nil, func(before, now *corev1.Namespace) bool {
			return labels.Equals(before.Labels, now.Labels)
		}),
	} {
		// Adding a handler fails only on an informer that has stopped.
		_, _ = informer.AddEventHandler(handler)
		t.synced = append(t.synced, informer.HasSyncedChecker())
	}
	return t, nil
}

// isOursOrMarked tells whether the controller serves a Service, or has served it.
func isOursOrMarked(service *corev1.Service) bool {
	return servicelb.IsOurs(service) || servicelb.IsMarked(service)
}

// isLocal tells whether an EndpointSlice belongs to a Service whose addresses depend on
// where its endpoints are.
func (t *term) isLocal(slice *discoveryv1.EndpointSlice) bool {
	service, err := t.services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	return err == nil && servicelb.IsOurs(service) && service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// run keeps the status of Services in step until ctx ends.
func (t *term) run(ctx context.Context) {
	if !cache.WaitFor(ctx, "", t.synced...) {
		return
	}
	t.changes.Notify()
	defer t.liveness.pause()
	// A conflict only means that the cache is behind.
	attempts := loop.Loop{Log: t.log, Quiet: apierrors.IsConflict}.Attempts()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.liveness.tick:
			nodes, _ := t.nodes.List(labels.Everything())
			if !t.liveness.ask(ctx, nodes) {
				continue
			}
		case <-t.changes:
		case <-again:
		}
		ours, err := t.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		again = attempts.Again(err)
		t.liveness.need(ours)
	}
}

// sync writes what has to change. It tells whether there is a Service for the controller. A failure
// about one Service or Lease does not keep the others from being written.
func (t *term) sync(ctx context.Context) (ours bool, err error) {
	// Listing a cache does not fail.
	all, _ := t.services.List(labels.Everything())
	var served, released, external []*corev1.Service
	for _, service := range all {
		if hasExternal(service) {
			external = append(external, service)
		}
		switch {
		case isServed(service):
			served = append(served, service)
		case servicelb.IsMarked(service):
			released = append(released, service)
		}
	}
	if len(served)+len(external) > 0 {
		t.watchPools(ctx)
	}
	nodes, _ := t.nodes.List(labels.Everything())
	w := &world{services: served, nodePorts: t.nodePorts, pools: t.readPools(), local: t.localNodes, namespace: t.namespaceLabels, vip: t.vip, reserved: t.reserved, held: map[netip.Addr]string{}}
	registered := false
	for _, node := range nodes {
		n := newNode(node, t.liveness.answers(node.Name), t.owner)
		w.nodes, registered = append(w.nodes, n), registered || len(n.internal) > 0
	}
	if len(served)+len(external) > 0 && len(nodes) > 0 && !registered {
		// The registrations are not read yet. Until then the Services keep what they have.
		time.AfterFunc(loop.FirstWait, t.changes.Notify)
		return len(served) > 0, nil
	}
	leases, err := t.readLeases(ctx, len(w.pools) > 0)
	if err != nil {
		return len(served) > 0, err
	}
	for address, lease := range leases {
		w.held[address] = lease.Annotations[ownerOfLease]
	}
	outcomes, wanted := w.plan()
	// The Leases come first, because nobody answers at an address that has none. A Service that wants
	// such an address stays as it is.
	unleased, err := t.writeLeases(ctx, leases, wanted)
	faults := []error{err}
	for _, service := range served {
		if o := outcomes[service.UID]; !slices.ContainsFunc(o.addresses, func(a netip.Addr) bool { return unleased[a] }) {
			faults = append(faults, t.write(ctx, service, o))
		}
	}
	for _, service := range released {
		faults = append(faults, t.clear(ctx, service))
	}
	t.forget(served)
	faults = append(faults, t.judge(ctx, external, w))
	return len(served) > 0, errors.Join(faults...)
}

// localNodes returns the nodes that have a ready endpoint of a Service, with its ports there.
func (t *term) localNodes(service *corev1.Service) localPorts {
	// Listing a cache does not fail.
	found, _ := t.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	nodes := localPorts{}
	for _, slice := range found {
		for _, endpoint := range slice.Endpoints {
			// Without a value an endpoint counts as ready (discovery/v1, EndpointConditions).
			if endpoint.NodeName == nil || endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			has := nodes[*endpoint.NodeName]
			if has == nil {
				has = map[string]bool{}
				nodes[*endpoint.NodeName] = has
			}
			for i := range service.Spec.Ports {
				port := &service.Spec.Ports[i]
				has[servicelb.Port(port)] = has[servicelb.Port(port)] || slices.ContainsFunc(slice.Ports, func(of discoveryv1.EndpointPort) bool {
					return ptr.Deref(of.Name, "") == port.Name
				})
			}
		}
	}
	return nodes
}

// namespaceLabels returns the labels of a namespace.
func (t *term) namespaceLabels(name string) labels.Set {
	namespace, err := t.namespaces.Get(name)
	if err != nil {
		return nil
	}
	return namespace.Labels
}
