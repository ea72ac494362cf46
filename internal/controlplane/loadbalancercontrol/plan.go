package loadbalancercontrol

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

	"github.com/kedge-dev/kedge/internal/base/gateways"
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
	reasonWaiting  = servicelb.Waiting
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
	// reserved are the ranges of pods and Services.
	reserved []netip.Prefix
	// local returns the nodes with a ready endpoint of a Service, and the ports of each.
	local func(*corev1.Service) localPorts
	// namespace returns the labels of a namespace.
	namespace func(name string) labels.Set
	// held are addresses of pools that Services, NAMESPACE/NAME, already have.
	held map[netip.Addr]string
}

// outcome is the plan for a Service.
type outcome struct {
	addresses []netip.Addr
	// unserved are the ports that an address does not serve, as servicelb.Port writes them.
	unserved map[netip.Addr][]string
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
		var hosts localPorts
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

// localPorts are the nodes with a ready endpoint of a Service, with the ports of the Service that
// the endpoints there have, as servicelb.Port writes them. Nil means that it does not matter where
// endpoints are.
type localPorts map[string]map[string]bool

func (l localPorts) has(node string) bool {
	_, has := l[node]
	return has || l == nil
}

// isFront tells whether the ports of a Service belong to Gateways and Ingresses that do not know
// each other. A port that a node cannot serve must not cost the others their addresses. With other
// Services, it costs the node, as with k3s: whoever made the Service wants all of its ports.
func isFront(service *corev1.Service) bool {
	return service.Name != "" && service.Labels[gateways.FrontLabel] == service.Name
}

// offer is what nodes offer to a Service.
type offer struct {
	service *corev1.Service
	ports   []string
	// serving are nodes with the ports that they serve. holding has also those of nodes without
	// a ready endpoint.
	serving, holding map[*node][]string
	// conflicts and inUse are texts about ports that are not free, with the nodes.
	conflicts, inUse map[string][]string
}

// ofNodes gives a Service the addresses of nodes. If local is not nil, only nodes in it may
// serve.
func (w *world) ofNodes(service *corev1.Service, o *outcome, claimed claims, local localPorts) {
	found := &offer{
		service: service, ports: w.portsFor(service, o), serving: map[*node][]string{}, holding: map[*node][]string{},
		conflicts: map[string][]string{}, inUse: map[string][]string{},
	}
	if len(found.ports) == 0 {
		return
	}
	usable := w.eligible(service)
	for _, node := range usable {
		found.ask(node, claimed, local, o)
	}
	w.addressesFrom(found, o)
	switch {
	case len(found.conflicts)+len(found.inUse) > 0:
		found.failTaken(o)
	case len(usable) == 0:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: no node is Ready and allowed by the labels of nodes and Service")
	case len(o.addresses) == 0 && !o.waiting && local != nil:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: externalTrafficPolicy is Local, and no available node has a ready endpoint")
	case len(o.addresses) == 0 && !o.waiting:
		o.fail(reasonUnavailable, "There are no available nodes for LoadBalancer: the nodes have no addresses of the families of the Service")
	}
}

// failTaken says which ports are not free, and what to do.
func (f *offer) failTaken(o *outcome) {
	reason := reasonConflict
	if len(f.conflicts) == 0 {
		reason = reasonInUse
	}
	mend := "The Service gets no address of these nodes. Choose another port, or give the Service an address of a LoadBalancerPool"
	if isFront(f.service) {
		mend = "These nodes do not serve the port for Gateways and Ingresses. Free the port there"
	}
	taken := maps.Clone(f.conflicts)
	maps.Copy(taken, f.inUse)
	o.fail(reason, "%s. %s", list(taken), mend)
}

// portsFor returns the ports of a Service that nodes can serve at their addresses. A port in the
// range of NodePorts is served there already. If it costs the Service all of its ports, there are
// none.
func (w *world) portsFor(service *corev1.Service, o *outcome) (ports []string) {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if !w.nodePorts.Contains(int(port.Port)) || port.Port == port.NodePort {
			ports = append(ports, servicelb.Port(port))
			continue
		}
		o.fail(reasonReserved, "port %s is in the range of NodePorts, %s, which the nodes' addresses serve already: choose another port, or give the Service an address of a LoadBalancerPool",
			servicelb.Port(port), w.nodePorts)
		if !isFront(service) {
			return nil
		}
	}
	return ports
}

// ask finds the ports that a node serves. It claims those that are free.
func (f *offer) ask(node *node, claimed claims, local localPorts, o *outcome) {
	families := f.service.Spec.IPFamilies
	var free []string
	for _, port := range f.ports {
		if first := claimed.of(node.name, port, families); first != nil {
			text := fmt.Sprintf("port %s belongs to the older Service %s/%s", port, first.Namespace, first.Name)
			f.conflicts[text] = append(f.conflicts[text], node.name)
			continue
		}
		switch owner, known := node.ports[port]; {
		case !known:
			o.waiting = true
		case owner != "":
			text := fmt.Sprintf("port %s is taken by %s", port, owner)
			f.inUse[text] = append(f.inUse[text], node.name)
		default:
			free = append(free, port)
		}
	}
	each := isFront(f.service)
	if len(free) == 0 || len(free) < len(f.ports) && !each {
		return
	}
	claimed.add(node.name, free, f.service)
	f.holding[node] = free
	if !local.has(node.name) {
		return
	}
	serves := free
	if each && local != nil {
		serves = slices.DeleteFunc(slices.Clone(free), func(port string) bool { return !local[node.name][port] })
	}
	if len(serves) > 0 {
		f.serving[node] = serves
	}
}

// addressesFrom gives a Service the addresses of the nodes that serve it. Nodes behind one router
// have one external address. All of them must have confirmed a port, because each of them serves
// what the status says.
func (w *world) addressesFrom(found *offer, o *outcome) {
	var serving []*node
	for _, node := range w.nodes {
		if found.serving[node] != nil {
			serving = append(serving, node)
		}
	}
	for _, address := range addressesOf(serving, found.service.Spec.IPFamilies) {
		var unserved []string
		for i := range found.service.Spec.Ports {
			port := servicelb.Port(&found.service.Spec.Ports[i])
			if !slices.Contains(found.ports, port) || !w.serves(found, address, port) {
				unserved = append(unserved, port)
			}
		}
		switch {
		case len(unserved) == 0:
		case isFront(found.service) && len(unserved) < len(found.service.Spec.Ports):
			if o.unserved == nil {
				o.unserved = map[netip.Addr][]string{}
			}
			o.unserved[address] = unserved
		default:
			if !o.waiting && len(found.conflicts) == 0 && len(found.inUse) == 0 {
				o.fail(reasonUnavailable, "The external address %s is also that of another node, which may not serve the Service", address)
			}
			continue
		}
		o.addresses = append(o.addresses, address)
	}
}

// serves tells whether the nodes with an address serve a port there.
func (w *world) serves(found *offer, address netip.Addr, port string) bool {
	some := false
	for _, node := range w.nodes {
		isExternal := node.available && node.answers && slices.Contains(node.external, address)
		if isExternal && !slices.Contains(found.holding[node], port) {
			return false
		}
		if (isExternal || slices.Contains(node.internal, address)) && slices.Contains(found.serving[node], port) {
			some = true
		}
	}
	return some
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

// add gives a Service ports on a node.
func (c claims) add(node string, ports []string, service *corev1.Service) {
	for _, family := range service.Spec.IPFamilies {
		for _, port := range ports {
			c[claim{node, port, family}] = service
		}
	}
}

// eligible returns the nodes whose addresses a Service may get.
func (w *world) eligible(service *corev1.Service) []*node {
	choice := w.choice()
	var found []*node
	for _, node := range w.nodes {
		if node.available && node.answers && choice.Allows(node.labels, service.Labels) {
			found = append(found, node)
		}
	}
	return found
}

// choice returns which labels of nodes decide.
func (w *world) choice() servicelb.Choice {
	return servicelb.ChoiceOf(func(yield func(map[string]string) bool) {
		for _, node := range w.nodes {
			if !yield(node.labels) {
				return
			}
		}
	})
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
