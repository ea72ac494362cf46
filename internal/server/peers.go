package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
)

// newElection returns what decides which server runs controllers and scheduler, or
// nil where there is one server only. One that runs neither must not be elected.
func newElection(cfg config.Server, node host.Node, api api, store *state) *election.Election {
	if !store.Endpoint().Shared || cfg.DisableControllerManager && cfg.DisableScheduler {
		return nil
	}
	return election.New(election.Config{
		Client:   api.ClientConfig("system:kedge:election"),
		Identity: serverIdentity(cfg, node),
	})
}

// led makes a component of what one server at a time does, the one that leads.
func led(name string, leader *election.Election, loops election.Loops) component.Component {
	return component.Func(name, func(ctx context.Context, ready func()) error {
		return leader.RunLoops(ctx, loops, ready)
	})
}

// addTunnels adds what lets the other servers' API servers reach this server's node.
func addTunnels(group *component.Group, cfg *config.Config, node host.Node, kubeletPort int, certificates *pki.Server, api api, store *state) {
	settings := tunnel.AgentConfig{
		NodeName:    node.Name,
		NodeIPs:     node.IPs,
		KubeletPort: kubeletPort,
		PodCIDRs:    agent.OwnPodCIDRs(cfg.Cluster),
		Client:      api.ClientConfig(pki.NodeUser(node.Name), pki.NodesGroup, pki.NodeGroup(node.Name)),
		TLS:         certificates.NodeTLS(),
	}
	switch remote, elsewhere := api.(*remoteAPI); {
	case elsewhere:
		settings.Servers = remote.servers
		group.Add(withoutWaiting(tunnel.NewAgent(settings)), api)
	case store.Endpoint().Shared:
		servers := newOtherServers(api.Informers, advertiseAddress(cfg.Server, node))
		group.Add(servers, api)
		settings.Servers = servers
		group.Add(withoutWaiting(tunnel.NewAgent(settings)), servers)
	}
}

// newMembers returns the component that tells etcd's member which nodes are gone.
func newMembers(member *etcd.Member, source objectcache.Source) component.Component {
	return component.Func("members", func(ctx context.Context, ready func()) error {
		factory, err := source(ctx)
		if err != nil {
			return err
		}
		defer factory.Shutdown()
		_, err = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				if node, ok := object.(*corev1.Node); ok {
					member.NodeAdded(node.Name)
				}
			},
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
					member.NodeDeleted(key)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watch nodes: %w", err)
		}
		factory.StartWithContext(ctx)
		ready()
		<-ctx.Done()
		return nil
	})
}

// otherServers knows the cluster's other servers, to whom this server's node opens
// tunnels too: each API server reaches nodes by its own. It implements
// tunnel.Servers.
type otherServers struct {
	source objectcache.Source
	own    netip.Addr

	mu        sync.Mutex
	addresses []string
	changed   chan struct{}
}

func newOtherServers(source objectcache.Source, own netip.Addr) *otherServers {
	return &otherServers{source: source, own: own, changed: make(chan struct{})}
}

// Name implements component.Component.
func (*otherServers) Name() string { return "servers" }

// Run implements component.Component: it follows the endpoints of the Service
// kubernetes, to which each server adds itself.
func (o *otherServers) Run(ctx context.Context, ready func()) error {
	factory, err := o.source(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	_, err = factory.Discovery().V1().EndpointSlices().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    o.learn,
		UpdateFunc: func(_, object any) { o.learn(object) },
	})
	if err != nil {
		return fmt.Errorf("watch servers: %w", err)
	}
	factory.StartWithContext(ctx)
	ready()
	<-ctx.Done()
	return nil
}

// withoutWaiting makes a tunnel's component ready at once: there may be no other
// server yet, or none may be up.
func withoutWaiting(tunnel component.Component) component.Component {
	return component.Func(tunnel.Name(), func(ctx context.Context, ready func()) error {
		ready()
		return tunnel.Run(ctx, func() {})
	})
}

// learn takes the servers from the one EndpointSlice that lists them.
func (o *otherServers) learn(object any) {
	endpoints, ok := object.(*discoveryv1.EndpointSlice)
	if !ok || endpoints.Namespace != metav1.NamespaceDefault || endpoints.Name != "kubernetes" {
		return
	}
	addresses := serversOf(endpoints, o.own.String())
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Equal(addresses, o.addresses) {
		return
	}
	o.addresses = addresses
	close(o.changed)
	o.changed = make(chan struct{})
}

// serversOf returns HOST:PORT of all servers but one, in order.
func serversOf(endpoints *discoveryv1.EndpointSlice, but string) (addresses []string) {
	for _, port := range endpoints.Ports {
		for _, endpoint := range endpoints.Endpoints {
			if port.Port == nil || len(endpoint.Addresses) == 0 || endpoint.Addresses[0] == but {
				continue
			}
			addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
		}
	}
	slices.Sort(addresses)
	return addresses
}

// Servers implements tunnel.Servers.
func (o *otherServers) Servers() ([]string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.addresses, o.changed
}
