package dns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	serviceName = "kube-dns"
	// ManagedBy marks the slices as kedge's, so that the controllers of Kubernetes leave them alone.
	ManagedBy = "dns-endpoints.kedge.dev"
	// maxEndpoints is how many endpoints the API accepts in one slice.
	maxEndpoints = 1000
)

// EndpointsConfig is what NewEndpoints needs.
type EndpointsConfig struct {
	// Client writes EndpointSlices as system:kedge:dns-endpoints.
	Client *rest.Config
	// Informers provide nodes and EndpointSlices.
	Informers objectcache.Source
}

// Endpoints is the component of a server that writes the EndpointSlices of the Service kube-dns. They
// have one endpoint for every node, and one slice per address family.
//
// Every endpoint counts as ready, whatever the state of its node: only the node's own pods use it, and
// for them the DNS of an unhealthy node is better than none.
type Endpoints struct {
	cfg EndpointsConfig
	log *logrus.Entry
	api kubernetes.Interface
}

// NewEndpoints returns the component.
func NewEndpoints(cfg EndpointsConfig) *Endpoints {
	return &Endpoints{cfg: cfg, log: logrus.WithField("component", "dns-endpoints")}
}

// Name implements component.Component.
func (*Endpoints) Name() string { return "dns-endpoints" }

// Run implements component.Component. It is ready when the slices are right for the first time.
func (e *Endpoints) Run(ctx context.Context, ready func()) error {
	if e.api == nil {
		api, err := kubernetes.NewForConfig(e.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		e.api = api
	}
	ctx, factory, end, err := e.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()

	changes := loop.NewChanges()
	nodes, nodeSync := factory.Core().V1().Nodes().Lister(), factory.Core().V1().Nodes().Informer()
	existing, sliceSync := factory.Discovery().V1().EndpointSlices().Lister(), factory.Discovery().V1().EndpointSlices().Informer()
	// Adding a handler fails only on an informer that has stopped.
	_, _ = nodeSync.AddEventHandler(objectcache.Handler(changes, nil, sameAddresses))
	// The informer has all slices of the cluster.
	_, _ = sliceSync.AddEventHandler(objectcache.Handler(changes, isOurs, nil))
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", nodeSync.HasSyncedChecker(), sliceSync.HasSyncedChecker()) {
		return nil
	}

	ready = sync.OnceFunc(ready)
	ours := labels.SelectorFromSet(labels.Set{discoveryv1.LabelManagedBy: ManagedBy})
	loop.Loop{
		Log: e.log, Wake: changes,
		// They only mean that the cache is behind.
		Quiet: func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) },
	}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		// Listing a cache does not fail.
		nodeList, _ := nodes.List(labels.Everything())
		sliceList, _ := existing.EndpointSlices(namespace).List(ours)
		err := e.sync(ctx, nodeList, sliceList)
		if err == nil {
			ready()
		}
		return loop.Next{}, err
	})
	return nil
}

// sameAddresses tells whether two states of a node need the same endpoints. Most changes of a node are
// reports that it is well.
func sameAddresses(before, now *corev1.Node) bool {
	return maps.Equal(internalIPs(before), internalIPs(now))
}

// isOurs tells whether kedge manages a slice.
func isOurs(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy
}

// sync creates, updates and deletes slices until they are those that the nodes need.
func (e *Endpoints) sync(ctx context.Context, nodes []*corev1.Node, existing []*discoveryv1.EndpointSlice) error {
	wanted := wantedSlices(nodes)
	api := e.api.DiscoveryV1().EndpointSlices(namespace)
	for _, slice := range existing {
		want, ok := wanted[slice.Name]
		delete(wanted, slice.Name)
		if !ok {
			if err := api.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete EndpointSlice %s: %w", slice.Name, err)
			}
			continue
		}
		if equality.Semantic.DeepEqual(slice.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(slice.Ports, want.Ports) &&
			equality.Semantic.DeepEqual(slice.Labels, want.Labels) {
			continue
		}
		want.ResourceVersion = slice.ResourceVersion
		if _, err := api.Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update EndpointSlice %s: %w", slice.Name, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, err := api.Create(ctx, wanted[name], metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create EndpointSlice %s: %w", name, err)
		}
	}
	return nil
}

// wantedSlices returns the slices for the nodes, by name.
func wantedSlices(nodes []*corev1.Node) map[string]*discoveryv1.EndpointSlice {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	families := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, node := range nodes {
		for family, address := range internalIPs(node) {
			families[family] = append(families[family], discoveryv1.Endpoint{
				Addresses: []string{address.String()},
				NodeName:  &node.Name,
				Conditions: discoveryv1.EndpointConditions{
					Ready:       new(true),
					Serving:     new(true),
					Terminating: new(false),
				},
			})
		}
	}
	wanted := map[string]*discoveryv1.EndpointSlice{}
	for family, endpoints := range families {
		i := 0
		for chunk := range slices.Chunk(endpoints, maxEndpoints) {
			name := fmt.Sprintf("%s-%s-%d", serviceName, strings.ToLower(string(family)), i)
			i++
			wanted[name] = &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name:      name,
					Namespace: namespace,
					Labels: map[string]string{
						discoveryv1.LabelServiceName: serviceName,
						discoveryv1.LabelManagedBy:   ManagedBy,
					},
				},
				AddressType: family,
				Endpoints:   chunk,
				Ports: []discoveryv1.EndpointPort{
					// The names are those of the Service's ports: the service proxy matches ports by
					// name.
					{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(Port))},
					{Name: new("dns-tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(Port))},
				},
			}
		}
	}
	return wanted
}

// internalIPs returns the node's first InternalIP of each family, where its DNS listens.
func internalIPs(node *corev1.Node) map[discoveryv1.AddressType]netip.Addr {
	found := map[discoveryv1.AddressType]netip.Addr{}
	for _, ip := range nodeobject.Addresses(node, corev1.NodeInternalIP) {
		family := discoveryv1.AddressTypeIPv6
		if ip.Is4() {
			family = discoveryv1.AddressTypeIPv4
		}
		if _, ok := found[family]; !ok {
			found[family] = ip
		}
	}
	return found
}
