// Package loadbalancer is a node's part in Services of type LoadBalancer: it tells servers
// which ports of the node are free, and announces addresses of pools. The controller is
// internal/controlplane/loadbalancercontrol. The service proxy does the rest. The agent package
// runs it on every node.
//
// As long as no Service is of this type, the component only looks at each Service that
// changes. It watches Leases only while a Service has an address of a pool.
package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/node/announce"
)

// lookInterval is how often a port that a process has is looked at again.
const lookInterval = 15 * time.Second

// Config is what New needs.
type Config struct {
	// Client calls as servicelb.User, in the group of this node.
	Client *rest.Config
	// Reconnect closes the connections of Client, because a request that began at a time got
	// no answer. It is nil if the API is in this process.
	Reconnect func(began time.Time)
	// Informers provide Services and nodes.
	Informers objectcache.Source
	NodeName  string
	// Addresses are this node's addresses on which processes may listen.
	Addresses []netip.Addr
	// Reserved are the ports that kedge itself needs on this node.
	Reserved []host.Port
}

// loadBalancer is the component.
type loadBalancer struct {
	cfg Config
	log *logrus.Entry
	// api and host are fakes in tests.
	api  kubernetes.Interface
	host announce.Host
	// owner is what ownerOf returns.
	owner func(ctx context.Context, port string) string

	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
}

// New returns the component of a node.
func New(cfg Config) component.Component {
	return &loadBalancer{
		cfg: cfg, log: logrus.WithField("component", "loadbalancer"), host: announce.Linux{},
		owner: ownerOf(cfg.Addresses, cfg.Reserved),
	}
}

// Name implements component.Component.
func (*loadBalancer) Name() string { return "loadbalancer-node" }

// Run implements component.Component. It is ready at once. When ctx ends, the node no longer
// has addresses of pools, and another node takes them.
func (l *loadBalancer) Run(ctx context.Context, ready func()) error {
	if l.api == nil {
		api, err := kubernetes.NewForConfig(l.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		l.api = api
	}
	ctx, factory, end, err := l.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	changes := loop.NewChanges()
	services, nodes := factory.Core().V1().Services(), factory.Core().V1().Nodes()
	l.services, l.nodes = services.Lister(), nodes.Lister()
	// Adding a handler fails only on an informer that has stopped.
	_, _ = services.Informer().AddEventHandler(objectcache.Handler(changes, servicelb.IsOurs, nil))
	_, _ = nodes.Informer().AddEventHandler(objectcache.Handler(changes, func(node *corev1.Node) bool {
		return node.Name == l.cfg.NodeName && node.Annotations[servicelb.PortsAnnotation] != ""
	}, nil))
	synced := []cache.DoneChecker{services.Informer().HasSyncedChecker(), nodes.Informer().HasSyncedChecker()}
	factory.StartWithContext(ctx)
	ready()
	if cache.WaitFor(ctx, "", synced...) {
		l.loop(ctx, changes)
	}
	return nil
}

// loop follows the changes until ctx ends.
func (l *loadBalancer) loop(ctx context.Context, changes loop.Changes) {
	announcing := &announcing{loadBalancer: l}
	defer announcing.stop()
	// It is forbidden if the servers have disabled servicelb since this node started.
	loop.Loop{Log: l.log, Wake: changes, Quiet: apierrors.IsForbidden}.Run(ctx, func(ctx context.Context) (next loop.Next, err error) {
		// Listing a cache does not fail.
		services, _ := l.services.List(labels.Everything())
		announcing.set(ctx, l.announced(services))
		taken, err := l.syncPorts(ctx, wanted(services))
		if taken && err == nil {
			next.After = lookInterval
		}
		return next, err
	})
}

// syncPorts looks at the ports and reports them.
func (l *loadBalancer) syncPorts(ctx context.Context, ports map[string]bool) (taken bool, err error) {
	node, err := l.nodes.Get(l.cfg.NodeName)
	if err != nil {
		if len(ports) == 0 {
			return false, nil
		}
		return false, fmt.Errorf("find node %s: %w", l.cfg.NodeName, err)
	}
	found, taken := l.look(ctx, ports, readPorts(node))
	return taken, l.report(ctx, node, found)
}

// announced tells whether a Service has an address that is not a node's.
func (l *loadBalancer) announced(services []*corev1.Service) bool {
	var own map[string]bool
	for _, service := range services {
		if !servicelb.IsOurs(service) || !servicelb.IsMarked(service) {
			continue
		}
		if own == nil {
			own = l.nodeAddresses()
		}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if !own[ingress.IP] {
				return true
			}
		}
	}
	return false
}

func (l *loadBalancer) nodeAddresses() map[string]bool {
	all := map[string]bool{}
	nodes, _ := l.nodes.List(labels.Everything())
	for _, node := range nodes {
		for _, address := range node.Status.Addresses {
			all[address.Address] = true
		}
	}
	return all
}
