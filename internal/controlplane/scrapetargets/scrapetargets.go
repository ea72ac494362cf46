// Package scrapetargets keeps the Services in kube-system by which a Prometheus finds the
// scheduler, the controllers and etcd of all servers. The usual ServiceMonitors expect
// them, but select pods, which kedge's servers are not. The server package runs it beside
// the controllers, on the elected server.
//
// Monitors look for Endpoints, or for EndpointSlices. This package writes Endpoints, and a
// controller of Kubernetes mirrors them to EndpointSlices.
package scrapetargets

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/namequeue"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
)

const (
	name      = "scrape-targets"
	namespace = "kube-system"
	// portName is the one that the usual monitors name.
	portName = "https-metrics"
	// nameLabel is what they select Services by, and the name of their job.
	nameLabel = "app.kubernetes.io/name"
	// managerLabel and manager mark what kedge has made.
	managerLabel = "app.kubernetes.io/managed-by"
	manager      = "kedge"

	controlPlaneLabel = "node-role.kubernetes.io/control-plane"
	etcdLabel         = "node-role.kubernetes.io/etcd"

	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute
)

// Config is what New needs.
type Config struct {
	// Client calls as system:kedge:scrape-targets, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers is the source of the informers of nodes and EndpointSlices.
	Informers objectcache.Source
	// Ports are where the controllers and the scheduler of all servers serve their
	// metrics. A part that serves them on loopback only, or not at all, is not in it.
	Ports map[metrics.Part]int32
}

// Targets keeps the Services. It implements the election package's Loops.
type Targets struct {
	cfg Config
	log *logrus.Entry
	api kubernetes.Interface // set in tests

	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
	// written is what each Service has by now. A part without targets has nil.
	written map[metrics.Part][]corev1.EndpointSubset
}

// New makes the component's loops.
func New(cfg Config) *Targets {
	return &Targets{cfg: cfg, log: logrus.WithField("component", name)}
}

// Lead writes what is missing or has changed until ctx ends. It is ready at once: nothing
// waits for it.
func (t *Targets) Lead(ctx context.Context, ready func()) error {
	ctx, factory, end, err := t.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	if t.cfg.Client != nil {
		client := t.cfg.Client(ctx)
		// Each write of Endpoints brings a warning that they are deprecated. But the usual
		// monitors look for them.
		client.WarningHandler = rest.NoWarnings{}
		if t.api, err = kubernetes.NewForConfig(client); err != nil {
			return fmt.Errorf("make client: %w", err)
		}
	}
	t.nodes, t.slices = factory.Core().V1().Nodes().Lister(), factory.Discovery().V1().EndpointSlices().Lister()
	t.written = map[metrics.Part][]corev1.EndpointSubset{}

	// One name stands for all, because each sync compares everything.
	queue := namequeue.New(name, firstRetry, lastRetry)
	all := cache.ObjectName{Name: name}
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { queue.Add(all) },
		UpdateFunc: func(before, now any) {
			if a, isNode := before.(*corev1.Node); !isNode || !sameTargets(a, now.(*corev1.Node)) {
				queue.Add(all)
			}
		},
		DeleteFunc: func(any) { queue.Add(all) },
	}
	nodes, endpoints := factory.Core().V1().Nodes().Informer(), factory.Discovery().V1().EndpointSlices().Informer()
	// Adding a handler fails only on an informer that has stopped.
	_, _ = nodes.AddEventHandler(changed)
	_, _ = endpoints.AddEventHandler(cache.FilteringResourceEventHandler{FilterFunc: ofAPI, Handler: changed})
	factory.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", nodes.HasSyncedChecker(), endpoints.HasSyncedChecker()) {
		return nil
	}
	queue.Add(all)
	ready()
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	queue.Work(ctx, func(ctx context.Context, _ cache.ObjectName) error { return t.sync(ctx) },
		func(_ cache.ObjectName, err error) { t.log.Warn(err) })
	return nil
}

// sameTargets tells whether two states of a node have the same targets. Most changes of a node are
// reports that it is well.
func sameTargets(before, now *corev1.Node) bool {
	return maps.Equal(before.Labels, now.Labels) &&
		slices.Equal(before.Status.Addresses, now.Status.Addresses) &&
		before.Status.DaemonEndpoints == now.Status.DaemonEndpoints
}

// ofAPI tells whether an object, which may be deleted, is an EndpointSlice of the Service
// kubernetes.
func ofAPI(object any) bool {
	slice, ok := objectcache.Latest(object).(*discoveryv1.EndpointSlice)
	return ok && slice.Namespace == metav1.NamespaceDefault && slice.Labels[discoveryv1.LabelServiceName] == "kubernetes"
}

// sync writes the Services whose targets have changed.
func (t *Targets) sync(ctx context.Context) error {
	nodes, err := t.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	slicesOfAPI, err := t.slices.EndpointSlices(metav1.NamespaceDefault).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	if err != nil {
		return err
	}
	wanted := t.wanted(nodes, slicesOfAPI)
	for _, part := range slices.Sorted(maps.Keys(wanted)) {
		if before, known := t.written[part]; known && reflect.DeepEqual(before, wanted[part]) {
			continue
		}
		if err := t.write(ctx, part, wanted[part]); err != nil {
			return fmt.Errorf("write Service %s: %w", part, err)
		}
		t.written[part] = wanted[part]
	}
	return nil
}

// wanted returns the targets of each part, nil for none.
func (t *Targets) wanted(nodes []*corev1.Node, slicesOfAPI []*discoveryv1.EndpointSlice) map[metrics.Part][]corev1.EndpointSubset {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	nodeless := withoutNode(nodes, slicesOfAPI)
	wanted := map[metrics.Part][]corev1.EndpointSubset{metrics.Etcd: nil}
	for _, part := range []metrics.Part{metrics.Controllers, metrics.Scheduler} {
		wanted[part] = nil
		if port, ok := t.cfg.Ports[part]; ok {
			wanted[part] = subset(append(addresses(nodes, controlPlaneLabel), nodeless...), port)
		}
	}
	for _, node := range nodes {
		// Nodes may have kubelets on different ports.
		port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
		wanted[metrics.Etcd] = append(wanted[metrics.Etcd], subset(addresses([]*corev1.Node{node}, etcdLabel), port)...)
	}
	return wanted
}

// subset returns no subset without addresses.
func subset(addresses []corev1.EndpointAddress, port int32) []corev1.EndpointSubset {
	if len(addresses) == 0 || port == 0 {
		return nil
	}
	return []corev1.EndpointSubset{{Addresses: addresses, Ports: []corev1.EndpointPort{{Name: portName, Port: port, Protocol: corev1.ProtocolTCP}}}}
}

// addresses returns the first InternalIP of each node with a label. It is where a server
// listens. With both families there is one address, so that nothing is scraped twice.
//
// A node that is not ready keeps its address, so that Prometheus sees that it is down.
func addresses(nodes []*corev1.Node, label string) []corev1.EndpointAddress {
	var found []corev1.EndpointAddress
	for _, node := range nodes {
		if _, ok := node.Labels[label]; !ok {
			continue
		}
		ip := nodeobject.InternalIP(node)
		if ip == "" {
			continue
		}
		found = append(found, corev1.EndpointAddress{
			IP:        ip,
			NodeName:  &node.Name,
			TargetRef: &corev1.ObjectReference{Kind: "Node", Name: node.Name},
		})
	}
	return found
}

// withoutNode returns the addresses of the API servers that no node has: those of servers
// with disable-agent.
func withoutNode(nodes []*corev1.Node, slicesOfAPI []*discoveryv1.EndpointSlice) []corev1.EndpointAddress {
	without := sets.New[netip.Addr]()
	for _, slice := range slicesOfAPI {
		without.Insert(servers.IPs(slice)...)
	}
	for _, node := range nodes {
		without.Delete(nodeobject.Addresses(node)...)
	}
	var list []corev1.EndpointAddress
	for _, ip := range slices.SortedFunc(maps.Keys(without), netip.Addr.Compare) {
		list = append(list, corev1.EndpointAddress{IP: ip.String()})
	}
	return list
}

// write makes the Service of a part with its targets, or deletes it if there are none. It
// leaves a Service of the user's with this name as it is.
func (t *Targets) write(ctx context.Context, part metrics.Part, targets []corev1.EndpointSubset) error {
	services, endpoints := t.api.CoreV1().Services(namespace), t.api.CoreV1().Endpoints(namespace)
	existing, err := services.Get(ctx, string(part), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && targets == nil:
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return err
	case err == nil && existing.Labels[managerLabel] != manager:
		t.log.Infof("The Service %s/%s is not kedge's, so kedge leaves it and its endpoints alone", namespace, part)
		return nil
	case targets == nil:
		// A controller of Kubernetes deletes the Endpoints with their Service.
		if err := services.Delete(ctx, string(part), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	own := metav1.ApplyOptions{FieldManager: manager, Force: true}
	marks := map[string]string{nameLabel: string(part), managerLabel: manager}
	port := targets[0].Ports[0].Port
	service := applycorev1.Service(string(part), namespace).WithLabels(marks).WithSpec(applycorev1.ServiceSpec().
		WithClusterIP(corev1.ClusterIPNone).
		WithPorts(applycorev1.ServicePort().WithName(portName).WithPort(port).WithProtocol(corev1.ProtocolTCP)))
	if _, err := services.Apply(ctx, service, own); err != nil {
		return err
	}
	object := applycorev1.Endpoints(string(part), namespace).WithLabels(marks)
	for _, target := range targets {
		subset := applycorev1.EndpointSubset().WithPorts(applycorev1.EndpointPort().
			WithName(portName).WithPort(target.Ports[0].Port).WithProtocol(corev1.ProtocolTCP))
		for _, address := range target.Addresses {
			one := applycorev1.EndpointAddress().WithIP(address.IP)
			if address.NodeName != nil {
				one.WithNodeName(*address.NodeName).WithTargetRef(applycorev1.ObjectReference().WithKind(address.TargetRef.Kind).WithName(address.TargetRef.Name))
			}
			subset.WithAddresses(one)
		}
		object.WithSubsets(subset)
	}
	_, err = endpoints.Apply(ctx, object, own)
	return err
}
