package loadbalancer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// Reasons of Events, and of the condition of a Service.
const (
	// k3s has these two, too.
	reasonUpdated     = "UpdatedLoadBalancer"
	reasonUnavailable = "UnAvailableLoadBalancer"

	reasonConflict = "PortConflict"
	reasonInUse    = "PortInUse"
	reasonReserved = "PortReserved"
	reasonWaiting  = "WaitingForNodes"
	reasonPool     = "NoPoolAddress"
	reasonAssigned = "AddressAssigned"
)

// world is what a plan depends on. Its objects are those of a cache.
type world struct {
	services  []*corev1.Service
	nodes     []*node
	pools     []*pool
	nodePorts net.PortRange
	// vip is the address of the control plane, or zero.
	vip netip.Addr
	// local returns the nodes with a ready endpoint of a Service.
	local func(*corev1.Service) map[string]bool
	// namespace returns the labels of a namespace.
	namespace func(name string) labels.Set
	// held are addresses of pools that Services, NAMESPACE/NAME, already have.
	held map[netip.Addr]string
}

// outcome is the plan for a Service.
type outcome struct {
	addresses []netip.Addr
	// mode is how the service proxy of other nodes treats the addresses. A node could claim
	// any address, so nobody but the node itself redirects packets for addresses of a node:
	// ownAddresses in internal/node/proxy.
	mode corev1.LoadBalancerIPMode
	// reason and message say why the Service lacks addresses that it could have. Both are
	// empty if nothing is wrong.
	reason, message string
	// waiting is true if a node has yet to say whether the ports are free.
	waiting bool
}

// fail records the first problem.
func (o *outcome) fail(reason, message string, args ...any) {
	if o.reason == "" {
		o.reason, o.message = reason, fmt.Sprintf(message, args...)
	}
}

// plan decides the addresses of all Services, by their UIDs. It also returns the addresses
// of pools with the nodes that may announce them.
//
// Of two Services that want the same port or address, the older one gets it.
func (w *world) plan() (outcomes map[types.UID]*outcome, leases map[netip.Addr]*announced) {
	slices.SortFunc(w.services, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	outcomes, leases = map[types.UID]*outcome{}, map[netip.Addr]*announced{}
	shares := newShares(w)
	claimed := claims{}
	for _, service := range w.services {
		o := &outcome{}
		outcomes[service.UID] = o
		var hosts map[string]bool
		if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			hosts = w.local(service)
		}
		if shares.wants(service) {
			o.mode = corev1.LoadBalancerIPModeVIP
			w.fromPools(service, o, shares, hosts, leases)
		} else {
			o.mode = corev1.LoadBalancerIPModeProxy
			w.ofNodes(service, o, claimed, hosts)
		}
	}
	return outcomes, leases
}

// claims are the ports that Services have on nodes.
type claims map[claim]*corev1.Service

type claim struct {
	node, port string
	family     corev1.IPFamily
}

// ofNodes gives a Service the addresses of nodes. If local is not nil, only nodes in it may
// serve.
func (w *world) ofNodes(service *corev1.Service, o *outcome, claimed claims, local map[string]bool) {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if w.nodePorts.Contains(int(port.Port)) && port.Port != port.NodePort {
			o.fail(reasonReserved, "port %s is in the range of NodePorts, %s, which the nodes' addresses serve already: choose another port, or give the Service an address of a LoadBalancerPool",
				servicelb.Port(port), w.nodePorts)
			return
		}
	}
	var serving []*node
	usable := 0
	var conflicts, inUse = map[string][]string{}, map[string][]string{}
	for _, node := range w.eligible(service) {
		usable++
		free := true
		for i := range service.Spec.Ports {
			port := servicelb.Port(&service.Spec.Ports[i])
			if first := claimed.of(node.name, port, service.Spec.IPFamilies); first != nil {
				text := fmt.Sprintf("port %s belongs to the older Service %s/%s", port, first.Namespace, first.Name)
				conflicts[text] = append(conflicts[text], node.name)
				free = false
				continue
			}
			switch owner, known := node.ports[port]; {
			case !known:
				o.waiting, free = true, false
			case owner != "":
				text := fmt.Sprintf("port %s is taken by %s", port, owner)
				inUse[text] = append(inUse[text], node.name)
				free = false
			}
		}
		if !free {
			continue
		}
		claimed.add(node.name, service)
		if local == nil || local[node.name] {
			serving = append(serving, node)
		}
	}
	o.addresses = slices.DeleteFunc(addressesOf(serving, service.Spec.IPFamilies), func(address netip.Addr) bool {
		// Nodes behind one router have one external address. All of them must have
		// confirmed the ports, because each of them serves what the status says.
		i := slices.IndexFunc(w.nodes, func(node *node) bool {
			return node.available && node.answers && slices.Contains(node.external, address) && !claimed.has(node.name, service)
		})
		if i >= 0 && !o.waiting && len(conflicts) == 0 && len(inUse) == 0 {
			o.fail(reasonUnavailable, "The external address %s is also that of node %s, which may not serve the Service", address, w.nodes[i].name)
		}
		return i >= 0
	})
	const mend = "The Service gets no address of these nodes. Choose another port, or give the Service an address of a LoadBalancerPool"
	switch {
	case len(conflicts) > 0:
		o.fail(reasonConflict, "%s. %s", list(conflicts), mend)
	case len(inUse) > 0:
		o.fail(reasonInUse, "%s. %s", list(inUse), mend)
	case usable == 0:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: no node is Ready and allowed by the labels of nodes and Service")
	case len(o.addresses) == 0 && !o.waiting && local != nil:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: externalTrafficPolicy is Local, and no available node has a ready endpoint")
	case len(o.addresses) == 0 && !o.waiting:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: the nodes have no addresses of the families of the Service")
	}
}

// list writes texts with the nodes that each is about.
func list(texts map[string][]string) string {
	var all []string
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		nodes := texts[text]
		slices.Sort(nodes)
		word := "nodes"
		if nodes = slices.Compact(nodes); len(nodes) == 1 {
			word = "node"
		}
		const shown = 5
		if more := len(nodes) - shown; more > 0 {
			nodes = append(nodes[:shown:shown], fmt.Sprintf("%d more", more))
		}
		all = append(all, fmt.Sprintf("%s on %s %s", text, word, strings.Join(nodes, ", ")))
	}
	return strings.Join(all, "; ")
}

// of returns the Service that has a port on a node, or nil.
func (c claims) of(node, port string, families []corev1.IPFamily) *corev1.Service {
	for _, family := range families {
		if service := c[claim{node, port, family}]; service != nil {
			return service
		}
	}
	return nil
}

// has tells whether a Service has its ports on a node.
func (c claims) has(node string, service *corev1.Service) bool {
	return !slices.ContainsFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return c.of(node, servicelb.Port(&port), service.Spec.IPFamilies) != service
	})
}

// add gives a Service all its ports on a node.
func (c claims) add(node string, service *corev1.Service) {
	for _, family := range service.Spec.IPFamilies {
		for i := range service.Spec.Ports {
			c[claim{node, servicelb.Port(&service.Spec.Ports[i]), family}] = service
		}
	}
}

// eligible returns the nodes whose addresses a Service may get: k3s's rules.
func (w *world) eligible(service *corev1.Service) []*node {
	enabled := slices.ContainsFunc(w.nodes, func(node *node) bool { return node.labels.Has(servicelb.EnableLabel) })
	var found []*node
	for _, node := range w.nodes {
		if !node.available || !node.answers {
			continue
		}
		if enabled && node.labels[servicelb.EnableLabel] != "true" {
			continue
		}
		if pool := service.Labels[servicelb.PoolLabel]; enabled && pool != "" && node.labels[servicelb.PoolLabel] != pool {
			continue
		}
		found = append(found, node)
	}
	return found
}

// addressesOf returns the addresses of nodes, those of the Service's first family first. If
// any node has an external address, it returns only external ones, as k3s does.
func addressesOf(nodes []*node, families []corev1.IPFamily) []netip.Addr {
	var external, internal []netip.Addr
	for _, node := range nodes {
		external = append(external, node.external...)
		internal = append(internal, node.internal...)
	}
	if len(external) > 0 {
		internal = external
	}
	slices.SortFunc(internal, netip.Addr.Compare)
	internal = slices.Compact(internal)
	var ordered []netip.Addr
	for _, family := range families {
		for _, address := range internal {
			if familyOf(address) == family {
				ordered = append(ordered, address)
			}
		}
	}
	return ordered
}

func familyOf(address netip.Addr) corev1.IPFamily {
	if address.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
