package proxy

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	watch "k8s.io/kubernetes/pkg/proxy/config"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// Servers knows the servers of the cluster.
type Servers interface {
	// Servers returns their addresses, HOST:PORT, and a channel that is closed when they
	// change.
	Servers() (addresses []string, changed <-chan struct{})
}

// guard hides external addresses of a Service from the proxier if the addresses belong to somebody
// else. The API refuses such Services (controlplane/restriction), except those that were made before
// that rule, or before the node or the pool that has the address now. The controller of load
// balancers marks these. A guard hides addresses of its own node and of servers without a mark,
// because the node depends on them.
type guard struct {
	watch.ServiceHandler
	own []netip.Addr

	mu      sync.Mutex
	servers []netip.Addr
	// seen are the Services that have addresses that the cluster has not assigned.
	seen map[types.NamespacedName]guarded
}

// guarded is a Service as it is, and as the proxier knows it.
type guarded struct{ service, told *corev1.Service }

// newGuard returns the guard of a node. It knows the servers that are known already, so that rules for
// them are never written.
func newGuard(handler watch.ServiceHandler, cfg Config) *guard {
	g := &guard{ServiceHandler: handler, own: slices.Concat(cfg.NodeIPs, cfg.ExternalIPs), seen: map[types.NamespacedName]guarded{}}
	if cfg.Servers != nil {
		servers, _ := cfg.Servers.Servers()
		g.servers = hosts(literals(servers))
	}
	return g
}

// OnServiceAdd implements watch.ServiceHandler.
func (g *guard) OnServiceAdd(service *corev1.Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ServiceHandler.OnServiceAdd(g.noteLocked(service))
}

// OnServiceUpdate implements watch.ServiceHandler.
func (g *guard) OnServiceUpdate(before, service *corev1.Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before = g.toldLocked(before)
	g.ServiceHandler.OnServiceUpdate(before, g.noteLocked(service))
}

// OnServiceDelete implements watch.ServiceHandler.
func (g *guard) OnServiceDelete(service *corev1.Service) {
	g.mu.Lock()
	defer g.mu.Unlock()
	told := g.toldLocked(service)
	delete(g.seen, keyOf(service))
	g.ServiceHandler.OnServiceDelete(told)
}

func keyOf(service *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
}

// toldLocked returns a Service as the proxier knows it.
func (g *guard) toldLocked(service *corev1.Service) *corev1.Service {
	if known, has := g.seen[keyOf(service)]; has {
		return known.told
	}
	return service
}

// noteLocked returns a Service as the proxier is to know it.
func (g *guard) noteLocked(service *corev1.Service) *corev1.Service {
	if len(service.Spec.ExternalIPs)+len(service.Status.LoadBalancer.Ingress) == 0 {
		delete(g.seen, keyOf(service))
		return service
	}
	told := g.hideLocked(service)
	g.seen[keyOf(service)] = guarded{service, told}
	return told
}

// hideLocked returns a Service without addresses that belong to somebody else. It returns the Service
// itself if it has none.
func (g *guard) hideLocked(service *corev1.Service) *corev1.Service {
	refused := meta.IsStatusConditionFalse(service.Status.Conditions, servicelb.ExternalCondition)
	foreign := func(text string) bool {
		address, is := servicelb.Parse(text)
		return is && (servicelb.Special(address) != "" || slices.Contains(g.servers, address))
	}
	external := slices.DeleteFunc(slices.Clone(service.Spec.ExternalIPs), func(text string) bool {
		address, _ := servicelb.Parse(text)
		return refused || foreign(text) || slices.Contains(g.own, address)
	})
	// Those of the mode Proxy are not the proxier's, see ownAddresses.
	ingress := slices.DeleteFunc(slices.Clone(service.Status.LoadBalancer.Ingress), func(one corev1.LoadBalancerIngress) bool {
		return (one.IPMode == nil || *one.IPMode == corev1.LoadBalancerIPModeVIP) && foreign(one.IP)
	})
	if len(external) == len(service.Spec.ExternalIPs) && len(ingress) == len(service.Status.LoadBalancer.Ingress) {
		return service
	}
	hidden := service.DeepCopy()
	hidden.Spec.ExternalIPs, hidden.Status.LoadBalancer.Ingress = external, ingress
	return hidden
}

// learn takes the addresses of the servers over.
func (g *guard) learn(servers []netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servers = servers
	for key, known := range g.seen {
		told := g.hideLocked(known.service)
		if !equality.Semantic.DeepEqual(told.Spec.ExternalIPs, known.told.Spec.ExternalIPs) ||
			!equality.Semantic.DeepEqual(told.Status.LoadBalancer.Ingress, known.told.Status.LoadBalancer.Ingress) {
			g.ServiceHandler.OnServiceUpdate(known.told, told)
			g.seen[key] = guarded{known.service, told}
		}
	}
}

// follow keeps what depends on the addresses of servers in step, until ctx is cancelled.
func (p *Proxy) follow(ctx context.Context, g *guard) {
	if p.cfg.Servers == nil {
		return
	}
	for {
		servers, changed := p.cfg.Servers.Servers()
		addresses := resolve(ctx, servers)
		g.learn(hosts(addresses))
		p.passBy(ctx, addresses)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// resolve returns the addresses of servers, HOST:PORT. It leaves out names that cannot be resolved.
func resolve(ctx context.Context, servers []string) []netip.AddrPort {
	addresses := literals(servers)
	for _, server := range servers {
		host, port, is := splitName(server)
		if !is {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, resolvePatience)
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		for _, address := range found {
			addresses = append(addresses, netip.AddrPortFrom(address.Unmap(), port))
		}
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return slices.Compact(addresses)
}

// literals returns the addresses among servers, HOST:PORT, that are no names.
func literals(servers []string) (addresses []netip.AddrPort) {
	for _, server := range servers {
		if at, err := netip.ParseAddrPort(server); err == nil {
			addresses = append(addresses, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
	return addresses
}

// splitName splits the HOST:PORT of a server. It returns false if HOST is no name.
func splitName(server string) (name string, port uint16, is bool) {
	name, text, err := net.SplitHostPort(server)
	if err != nil {
		return "", 0, false
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", 0, false
	}
	number, err := strconv.ParseUint(text, 10, 16)
	return name, uint16(number), err == nil
}

// hosts returns addresses without their ports, each once.
func hosts(addresses []netip.AddrPort) (all []netip.Addr) {
	for _, at := range addresses {
		if !slices.Contains(all, at.Addr()) {
			all = append(all, at.Addr())
		}
	}
	return all
}
